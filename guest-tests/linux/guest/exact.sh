# Exact counts and precise samples of `counted`, and exact counts of `mixed`, for a VMM whose source counts each instruction:
#   count EVENT N                  perf stat of counted, twice
#   sample ADDRESS                 every record of perf record, in order
#   mixed EVENT N                  perf stat of mixed, twice
#   conditional N                  conditional branches of mixed, 100 times, while another process takes its turns
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

sample_without_limit
hide_kernel_symbols
# Nehalem and Westmere count loads and stores under other codes, and have no event for perf mem's stores.
if [ -e /sys/bus/event_source/devices/cpu/events/mem-stores ]; then
  loads_and_stores=r81d0:u,r82d0:u
else
  loads_and_stores=r010b:u,r020b:u
fi

for _ in 1 2; do
  perf stat -x, -e instructions:u,branches:u -o /tmp/stat counted || say error "perf stat failed"
  awk -F, 'NF > 2 { print "vpmu-guest: count", $3, $1 }' /tmp/stat
done
perf record -q -N -o /tmp/data -e instructions:upp -c 1003 counted >/tmp/log 2>&1 || say error "perf record: $(head -n 3 /tmp/log | tr '\n' ' ')"
perf script -i /tmp/data -G --comms counted -F ip 2>/dev/null | awk '{ print "vpmu-guest: sample", $1 }'

for _ in 1 2; do
  perf stat -x, -e instructions:u,branches:u,$loads_and_stores -o /tmp/stat mixed || say error "perf stat failed"
  awk -F, 'BEGIN { split("instructions branches loads stores", name, " ") } NF > 2 { print "vpmu-guest: mixed", name[++n], $1 }' /tmp/stat
done
yes >/dev/null &
other=$!
# Verbose, it prints each run's count.
perf stat -v -r 100 -x, -e r01c4:u -o /tmp/stat mixed >/tmp/log 2>&1 || say error "perf stat failed"
sed -n 's/^r01c4:u: \([0-9]*\) .*/vpmu-guest: conditional \1/p' /tmp/stat /tmp/log
kill "$other" || say error "the other process ended early"
