# Records one program and prints what was sampled:
#   record NAME SAMPLES        how many samples the program got
#   report NAME PERCENT SYMBOL what perf report says of the time that the program spent in itself, not in the kernel
#   ip NAME COUNT ADDRESS      every sampled address of the program in user mode
# shellcheck shell=dash

# How much of the time is the kernel's depends on what an exit costs here, so a recording with too few samples in user mode is made again,
# twice as long. Of 800 samples, a share of 80 % lies within 5 points in all but one recording of 2000.
enough=800

# How many times a program runs in its first recording, and in its longest.
first=1
longest=8

# run NAME PROGRAM [ARGUMENT...] -- OPTION...: one perf record
run() {
  name=$1 program=$2
  shift 2
  arguments=
  while [ "$1" != -- ]; do
    arguments="$arguments $1"
    shift
  done
  shift
  times=$first
  while :; do
    # shellcheck disable=SC2086 # arguments are words
    if ! perf record -q -N -o /tmp/data "$@" -- /guest/times "$times" "$program" $arguments >/tmp/log 2>&1; then
      say error "$name: perf record: $(head -n 3 /tmp/log | tr '\n' ' ')"
      return
    fi
    perf script -i /tmp/data -G --comms "$program" -F ip 2>/dev/null | sort | uniq -c | awk '{ print $1, $2 }' >/tmp/ips
    if [ "$(awk '$2 !~ /^ffff/ { n += $1 } END { print n + 0 }' /tmp/ips)" -ge $enough ] || [ $times -ge $longest ]; then break; fi
    times=$((times * 2))
  done
  say record "$name $(awk '{ n += $1 } END { print n + 0 }' /tmp/ips)"
  awk -v name="$name" '$2 !~ /^ffff/ { print "vpmu-guest: ip", name, $1, $2 }' /tmp/ips
  perf report -i /tmp/data --stdio --comms "$program" --dsos "$program" --no-children -g none -F overhead,sym --percentage relative -w 0 2>/dev/null |
    awk -v name="$name" '$1 ~ /%$/ && n++ < 6 { sub("%", "", $1); print "vpmu-guest: report", name, $1, $NF }'
  rm -f /tmp/data
}
