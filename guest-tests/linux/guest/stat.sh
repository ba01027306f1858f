# perf stat with its default events, as comma-separated values.
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

perf stat -x, -o /tmp/stat split 1000 || say error "perf stat failed"
grep , /tmp/stat | say_lines stat
