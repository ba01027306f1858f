# What a guest's PMU shows that counts with the host's PMU: perf stat of a program whose counts are known, samples, and memory accesses where there are such
# events. `count` is as in exact.sh, recordings as in record_run.sh:
#   mem EVENT IP ADDRESS          every sample of perf mem record on a program that walks one array
#   level EVENT N                  instructions in user mode, and the few in the kernel that run with them
# shellcheck shell=dash disable=SC1091,SC2034 # record_run.sh reads `first`
. /guest/speak.sh
. /guest/record_run.sh

sample_without_limit
hide_kernel_symbols
for _ in 1 2; do
  perf stat -x, -e instructions:u,branches:u -o /tmp/stat counted || say error "perf stat failed"
  awk -F, 'NF > 2 { print "vpmu-guest: count", $3, $1 }' /tmp/stat
done
perf stat -x, -o /tmp/stat split 10 || say error "perf stat failed"
grep , /tmp/stat | say_lines stat

perf stat -x, -e instructions:u,instructions:k -o /tmp/stat arraywalk short || say error "perf stat failed"
awk -F, 'NF > 2 { print "vpmu-guest: level", $3, $1 }' /tmp/stat

enough=200
if [ "$(cat /sys/bus/event_source/devices/cpu/caps/max_precise)" -gt 1 ]; then precise=:pp; fi
run sampled split 24 -- -e "cycles$precise" -c 40009
if [ -e /sys/bus/event_source/devices/cpu/events/mem-loads ]; then
  perf mem record -U -o /tmp/data -- -q -N --all-user -c 40009 arraywalk short >/tmp/log 2>&1 || say error "perf mem record: $(head -n 3 /tmp/log | tr '\n' ' ')"
  perf script -i /tmp/data --comms arraywalk -F event,ip,addr 2>/dev/null |
    awk '{ sub(/:$/, "", $1); print "vpmu-guest: mem", $1, $3, $2 }' | sed 's/^vpmu-guest: mem cpu\/\([a-z-]*\)[^ ]*/vpmu-guest: mem \1/'
fi
