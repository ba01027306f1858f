# The lines a script prints for the host: "vpmu-guest: WORD REST".
#
#   init UPTIME            the first thing; what boot cost can be read now
#   kernel RELEASE         of Linux
#   begin/end NAME [CODE]  around each script
#   mark NAME              like init: the host may read the VMM's counters before the guest goes on
#   error TEXT             the guest's own trouble
#   done                   the last thing
# All other words belong to the script that prints them.
# shellcheck shell=dash

say() {
  word=$1
  shift
  echo "vpmu-guest: $word $*"
}

# Prefixes each line of standard input.
say_lines() { sed "s/^/vpmu-guest: $1 /"; }

# Removes the kernel's limits on sampling. With an interrupt for each sample, it would otherwise stop sampling for the rest of a timer tick.
sample_without_limit() {
  cd /proc/sys/kernel || return
  echo 25 >perf_cpu_time_max_percent # while it is 0 the rate cannot be written
  echo 100000000 >perf_event_max_sample_rate
  echo 0 >perf_cpu_time_max_percent
  cd / || return
}

# perf record reads all symbols of the kernel several times, which takes longer than everything else that it does. Scripts that look only at
# programs hide them.
hide_kernel_symbols() {
  : >/tmp/kallsyms
  mount --bind /tmp/kallsyms /proc/kallsyms
}

# The guest is idle for long enough that the host can read the VMM's counters between two pieces of work.
pause() { if grep -q vpmu.pause /proc/cmdline; then sleep 1; fi; }

mark() {
  say mark "$1"
  pause
}
