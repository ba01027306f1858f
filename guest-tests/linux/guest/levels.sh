# perf mem record on a program whose accesses end at every level of a model's caches:
#   sampled IP ADDRESS LATENCY OPERATION LEVEL TLB    each of its records, in order, as perf decodes them: "_" for blanks, "-" for no latency
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

# sample KIND THRESHOLD FIELDS
sample() {
  perf mem record -t "$1" --ldlat "$2" -o /tmp/data -- -q -N --all-user -c 1000 levels >/tmp/log 2>&1 ||
    say error "perf mem record: $(head -n 3 /tmp/log | tr '\n' ' ')"
  perf script -i /tmp/data --comms levels -F "$3" 2>/tmp/log >/tmp/script || say error "perf script: $(head -n 3 /tmp/log | tr '\n' ' ')"
  awk -F '|' '{
    gsub(/ /, "_", $2); gsub(/ /, "_", $3); gsub(/ /, "_", $5)
    split($1, before, " "); n = split($NF, behind, " ")
    print "vpmu-guest: sampled", behind[n], before[1], (n == 4 ? behind[3] : "-"), $2, $3, $5
  }' /tmp/script
}

sample_without_limit
hide_kernel_symbols
sample load 3 ip,addr,weight,data_src
sample load 30 ip,addr,weight,data_src
# Nehalem and Westmere have no event for stores.
if [ -e /sys/bus/event_source/devices/cpu/events/mem-stores ]; then sample store 3 ip,addr,data_src; fi
