# perf mem record on a program that walks one array:
#   array BEGIN END               where the array lies
#   mem EVENT IP ADDRESS          every sample of the program
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

if perf mem record -U -o /tmp/data -- -q -N -c 400009 arraywalk 200 >/tmp/log 2>&1; then
  sed -n 's/^array /vpmu-guest: array /p' /tmp/log
  perf script -i /tmp/data --comms arraywalk -F event,ip,addr 2>/dev/null |
    awk '{ sub(/:$/, "", $1); print "vpmu-guest: mem", $1, $3, $2 }' | sed 's/^vpmu-guest: mem cpu\/\([a-z-]*\)[^ ]*/vpmu-guest: mem \1/'
else
  say error "perf mem record: $(head -n 3 /tmp/log | tr '\n' ' ')"
fi
