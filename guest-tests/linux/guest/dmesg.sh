# The kernel's messages so far, and how far the kernel has throttled sampling.
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

# Not all of it: over an emulated serial port a whole boot takes seconds.
readonly words="perf|pmu|pebs|nmi|msr|tsc|irq loop|warn|bug:|oops|fault|panic|stuck|unchecked|took too long|cut here|call trace|core: |\.\.\. "
dmesg | grep -iE "$words" | say_lines dmesg
say max-sample-rate "$(cat /proc/sys/kernel/perf_event_max_sample_rate)"
