# perf stat with its default events, as comma-separated values.
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

sleep 1 # what the boot left behind would take turns with the program; perf's own work at each turn is in task-clock, not in cycles
perf stat -x, -o /tmp/stat split 3000 || say error "perf stat failed"
grep , /tmp/stat | say_lines stat
