# The lines a script prints for the host: "vpmu-guest: WORD REST".
#
#   init UPTIME            the first thing; what boot cost can be read now
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

# The guest is idle for long enough that the host can read the VMM's counters between two pieces of work.
pause() { if grep -q vpmu.pause /proc/cmdline; then sleep 1; fi; }

mark() {
  say mark "$1"
  pause
}
