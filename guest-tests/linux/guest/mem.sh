# perf mem record on a program that walks one array:
#   mem EVENT IP ADDRESS          every sample of the program
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

if perf mem record -U -o /tmp/data -- -q -N --all-user -c 400009 arraywalk >/tmp/log 2>&1; then
  perf script -i /tmp/data --comms arraywalk -F event,ip,addr 2>/dev/null |
    awk '{ sub(/:$/, "", $1); print "vpmu-guest: mem", $1, $3, $2 }' | sed 's/^vpmu-guest: mem cpu\/\([a-z-]*\)[^ ]*/vpmu-guest: mem \1/'
else
  say error "perf mem record: $(head -n 3 /tmp/log | tr '\n' ' ')"
fi
