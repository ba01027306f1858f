# perf stat with its default events, as comma-separated values.
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

# As a real-time task, so that the kernel's own threads do not take turns with the program: at each turn perf writes some ten MSRs, and
# until the last one task-clock runs while the counters do not. In the bed that is 2 ms a turn, and there may be 10 or 90 of them.
chrt -f 1 perf stat -x, -o /tmp/stat split 1000 || say error "perf stat failed"
grep , /tmp/stat | say_lines stat
