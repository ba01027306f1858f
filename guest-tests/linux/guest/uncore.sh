# The drivers that Linux keeps for real machines, for a guest that takes itself for one (boot-guest --bare-metal):
#   driver NAME TEXT                 of other drivers: "loaded", or why not
#   tsc-mhz N
#   opened uncore, refused uncore TEXT
#   uncore PMU N                     what it counted of an event that nobody delivers
#   uncore-clock PMU N NANOSECONDS   uncore clocks, and for how long it counted them
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

modules=/modules/$(uname -r)
devices=/sys/bus/event_source/devices

for name in intel-cstate rapl; do
  if insmod "$modules/$name.ko" 2>/tmp/log; then say driver "$name loaded"; else say driver "$name $(tail -n 1 /tmp/log)"; fi
done
say tsc-mhz "$(dmesg | sed -n 's/.*tsc: Detected \([0-9.]*\) MHz.*/\1/p')"
if insmod "$modules/intel-uncore.ko" 2>/tmp/log; then say opened uncore; else say refused uncore "$(tail -n 1 /tmp/log)"; fi

# counted EVENT: the count, or what perf prints instead, and the time
counted() { perf stat -a -x, -e "$1" -o /tmp/stat sleep 0.01 && awk -F, 'NF > 4 { print $1, $4 }' /tmp/stat; }

for path in "$devices"/uncore*; do
  [ -e "$path" ] || continue
  pmu=${path##*/}
  case $pmu in *_free_running_*) continue ;; esac # of the I/O stacks: not in MSRs that can be selected
  say uncore "$pmu" "$(counted "$pmu/config=0x101/" | cut -d ' ' -f 1)"
  if [ -e "$path/events/clockticks" ]; then clock=clockticks; elif [ "$pmu" = uncore_ubox ] && ! [ -e "$devices/uncore_wbox" ]; then clock=config=0xff; else continue; fi
  say uncore-clock "$pmu" "$(counted "$pmu/$clock/")"
done
