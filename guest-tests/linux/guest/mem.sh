# perf mem record on a program that walks one array:
#   mem EVENT IP ADDRESS          every sample of the program
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

# How many samples a source that counts time takes of one run depends on what an exit costs here: with too few of loads or of stores, the
# recording is made again, longer.
enough=80

for times in 1 2 4 8; do
  if ! perf mem record -U -o /tmp/data -- -q -N --all-user -c 400009 /guest/times $times arraywalk >/tmp/log 2>&1; then
    say error "perf mem record: $(head -n 3 /tmp/log | tr '\n' ' ')"
    break
  fi
  perf script -i /tmp/data --comms arraywalk -F event,ip,addr 2>/dev/null |
    awk '{ sub(/:$/, "", $1); print "vpmu-guest: mem", $1, $3, $2 }' | sed 's/^vpmu-guest: mem cpu\/\([a-z-]*\)[^ ]*/vpmu-guest: mem \1/' >/tmp/mem
  if awk -v enough=$enough '{ n[$3]++ } END { exit n["mem-loads"] < enough || n["mem-stores"] < enough }' /tmp/mem; then break; fi
done
if [ -e /tmp/mem ]; then cat /tmp/mem; fi
