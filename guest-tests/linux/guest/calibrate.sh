# What our own doctor says of this guest's PMU, which to the doctor is a host's.
#   calibrated VERDICT TEXT
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

echo 1 >/proc/sys/kernel/perf_event_paranoid
vpmu doctor | sed -n 's/^\([a-z]*\) *source perf: /\1 /p' | say_lines calibrated
