# Precise sampling of split and loop8 in every mode. For each run:
#   record NAME SAMPLES        how many samples the program got
#   report NAME PERCENT SYMBOL what perf report says
#   ip NAME COUNT ADDRESS      every sampled address of the program
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

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
  # shellcheck disable=SC2086 # arguments are words
  if ! perf record -q -N -o /tmp/data "$@" -- "$program" $arguments >/tmp/log 2>&1; then
    say error "$name: perf record: $(head -n 3 /tmp/log | tr '\n' ' ')"
    return
  fi
  perf script -i /tmp/data --comms "$program" -F ip 2>/dev/null | sort | uniq -c >/tmp/ips
  say record "$name $(awk '{ n += $1 } END { print n + 0 }' /tmp/ips)"
  awk -v name="$name" '{ print "vpmu-guest: ip", name, $1, $2 }' /tmp/ips
  perf report -i /tmp/data --stdio --comms "$program" -F overhead,sym --percentage relative -w 0 2>/dev/null |
    awk -v name="$name" '$1 ~ /%$/ && n++ < 6 { sub("%", "", $1); print "vpmu-guest: report", name, $1, $NF }'
  rm -f /tmp/data
}

for precise in p pp ppp; do
  mark "before-freq-$precise"
  run "freq-$precise" split 1000 -- -e "cycles:$precise" -F 1000
  mark "after-freq-$precise"
  run "period-$precise" split 1000 -- -e "cycles:$precise" -c 2000003
done
run all-cpus split 1000 -- -a -e cycles:pp -F 1000
run loop8-freq loop8 -- -e cycles:pp -F 1000
run loop8-period loop8 -- -e cycles:pp -c 2000003
