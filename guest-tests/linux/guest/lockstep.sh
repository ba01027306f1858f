# Perf, again and again: what guest-tests/linux/lockstep looks at besides the boot. Nothing it counts is right, for the source counts nothing.
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

while :; do
  say perf "begins"
  perf stat -x, -o /tmp/stat split 10 || say error "perf stat failed"
  perf record -q -e cpu-clock -F 500 -g -o /tmp/data split 10 >/tmp/log 2>&1 || say error "perf record: $(head -n 3 /tmp/log)"
  perf report -i /tmp/data --stdio >/tmp/report 2>/dev/null || say error "perf report failed"
  perf script -i /tmp/data >/tmp/script 2>/dev/null || say error "perf script failed"
  say perf "$(grep -c , /tmp/stat) counters, $(grep -c '^split' /tmp/script) samples"
done
