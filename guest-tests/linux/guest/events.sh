# Which events are counted at all: an architectural one, and one that is specific to this processor.
#   event NAME N
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

perf stat -x, -e instructions:u,r01d1:u -o /tmp/stat mixed || say error "perf stat failed"
awk -F, 'NF > 2 { print "vpmu-guest: event", $3, $1 }' /tmp/stat
