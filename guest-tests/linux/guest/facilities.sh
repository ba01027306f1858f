# What perf can do with the PMU, one recording for each facility, all of programs whose every step is known:
#   opened NAME                    perf recorded; what was sampled follows
#   refused NAME TEXT              perf's or the kernel's reason
#   precise MODIFIER ADDRESS       each sample of calls, by cycles:MODIFIER
#   walked NAME N IP LATENCY OPERATION LEVEL TLB FIRST LAST   how many samples of chase are alike, with "_" for blanks and "-" for no latency,
#                                  and the lowest and highest of their data addresses
#   shared N NAME                  perf c2c's totals
#   branches IP FROM/TO...         each sample of calls and the branches before it, the latest first
#   stack IP ADDRESS...            each sample of calls and who called, the innermost first
#   traced N SUM                   the branches of calls, one by one: their number and the MD5 sum of lines "FROM TO"
#   offcore-count N, offcore N IP   loads of chase that left the core, and where some of them were sampled
#   fetched EVENT ADDRESS          each sample of lines
#   interrupts NMIS PMIS UNCLAIMED  NMIs, PMIs of these, and NMIs that belonged to nobody, after two events with short periods
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

echo madvise >/sys/kernel/mm/transparent_hugepage/enabled # a fault of 2 MiB is quicker than 512
sample_without_limit
hide_kernel_symbols
# Loads and stores share a counter on Sandy and Ivy Bridge. Where a sample's interrupt takes longer than a turn, as in the bed, the turn would go
# to the stores with each load that is sampled, and stay there while the program only loads.
echo 100000 >/sys/bus/event_source/devices/cpu/perf_event_mux_interval_ms

# open NAME COMMAND...: runs a recording; false when it was refused
open() {
  name=$1
  shift
  rm -f /tmp/data
  if "$@" >/tmp/log 2>&1; then
    say opened "$name"
  else
    say refused "$name" "$(tr '\n' ' ' </tmp/log | cut -c 1-200)"
    return 1
  fi
}

# script COMM FIELDS
script() { perf script -i /tmp/data -G --comms "$1" -F "$2" 2>/tmp/log || say error "perf script: $(head -n 3 /tmp/log | tr '\n' ' ')"; }

# walked NAME FIELDS: addresses are below 2^32, and of the same length
walked() {
  perf script -i /tmp/data --comms chase -F "$2" 2>/tmp/log | awk -F '|' -v name="$1" '{
    gsub(/ /, "_", $2); gsub(/ /, "_", $3); gsub(/ /, "_", $5)
    split($1, before, " "); n = split($NF, behind, " "); address = sprintf("%16s", before[1])
    kind = behind[n] " " (n == 4 ? behind[3] : "-") " " $2 " " $3 " " $5
    if (!count[kind]++ || address < first[kind]) first[kind] = address
    if (address > last[kind]) last[kind] = address
  } END { for (kind in count) print "vpmu-guest: walked", name, count[kind], kind, first[kind], last[kind] }'
}

# Broadwell takes multiples of 64 only at :ppp, from 128 on.
for step in p:103 pp:103 ppp:128; do
  modifier=${step%:*}
  open "$modifier" perf record -q -N -o /tmp/data -e "cycles:u$modifier" -c "${step#*:}" calls || continue
  script calls ip | awk -v name="$modifier" '{ print "vpmu-guest: precise", name, $1 }'
done

if open loads perf mem record -t load --ldlat 3 -o /tmp/data -- -q -N --all-user -c 199 chase; then walked loads ip,addr,weight,data_src; fi
if open stores perf mem record -t store -o /tmp/data -- -q -N --all-user -c 499 chase; then walked stores ip,addr,data_src; fi

# If there is no event for stores, of loads only.
if [ -e /sys/bus/event_source/devices/cpu/events/mem-stores ]; then events=; else events="-e ldlat-loads"; fi
# shellcheck disable=SC2086 # options are words
if open c2c perf c2c record $events -u --ldlat 3 -o /tmp/data -- -q -N -c 499 chase; then
  perf c2c report -i /tmp/data --stats 2>/tmp/log | sed -n 's/^ *\([A-Z][^:]*[^ ]\) *: *\([0-9]*\)$/\2 \1/p' | grep -E ' (Total records|Load|Store)' | say_lines shared
fi

if open branches perf record -q -N -b -o /tmp/data -e cycles:upp -c 1003 calls; then
  script calls ip,brstack | awk '/[0-9]/ { printf "vpmu-guest: branches %s", $1; for (i = 2; i <= NF; ++i) { split($i, f, "/"); printf " %s/%s", f[1], f[2] } print "" }'
fi
if open stack perf record -q -N --call-graph lbr -o /tmp/data -e cycles:u -c 1003 calls; then
  # perf script would print, for the innermost, where that function begins. The lists that follow "LBR call chain" are of the LBR first,
  # with where that function begins, and then of what perf makes of it.
  perf report -D -i /tmp/data 2>/tmp/log | awk '
    /PERF_RECORD_SAMPLE/ { if (line) print line; match($0, /0x[0-9a-f]+ period/); line = "vpmu-guest: stack " substr($0, RSTART + 2, RLENGTH - 9); list = 0 }
    /LBR call chain/ { list = 1; next }
    list && /^\.\.\.\.\. / { if ($2 == "0:") ++list; if (list == 2 && $2 != "0:" && $2 != "1:") { sub(/^0+/, "", $3); line = line " " $3 } }
    END { if (line) print line }'
fi
if open trace perf record -q -N -d -o /tmp/data -e branches:u -c 1 calls; then
  script calls ip,addr | awk '$2 == "=>" { print $1, $3 }' >/tmp/trace
  say traced "$(wc -l </tmp/trace) $(md5sum </tmp/trace | cut -d ' ' -f 1)"
fi
if open offcore perf record -q -N -o /tmp/data -e LLC-loads:u -c 199 chase; then
  perf stat -x, -e LLC-loads:u -o /tmp/stat chase && say offcore-count "$(sed -n 's/^\([0-9]*\),,LLC-loads.*/\1/p' /tmp/stat)"
  script chase ip | sort | uniq -c | awk '{ print "vpmu-guest: offcore", $1, $2 }'
fi
# Each event often overflows while the handler of the other runs.
if open pair perf record -q -N -o /tmp/data -e instructions -e branches -c 1009 calls; then
  say interrupts "$(awk '$1 == "NMI:" { n = $2 } $1 == "PMI:" { p = $2 } END { print n, p }' /proc/interrupts) $(dmesg | grep -c 'Dazed and confused')"
fi
for event in 11 12; do
  open "frontend-$event" perf record -q -N -o /tmp/data -e "cpu/event=0xc6,umask=1,frontend=0x$event/upp" -c 997 lines || continue
  script lines ip | awk -v name="$event" '{ print "vpmu-guest: fetched", name, $1 }'
done
