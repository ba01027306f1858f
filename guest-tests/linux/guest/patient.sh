# Exact counts and precise samples of `patient`, which runs for long, while somebody disturbs the guest:
#   patient EVENT N                perf stat
#   long-sample ADDRESS            every record of perf record, in order
#   lost N                         records that perf says it lost
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

sample_without_limit
hide_kernel_symbols
perf stat -x, -e instructions:u,branches:u -o /tmp/stat patient || say error "perf stat failed"
awk -F, 'NF > 2 { print "vpmu-guest: patient", $3, $1 }' /tmp/stat
say patient recording
perf record -q -N -o /tmp/data -e instructions:upp -c 1000003 patient >/tmp/log 2>&1 || say error "perf record: $(head -n 3 /tmp/log | tr '\n' ' ')"
perf script -i /tmp/data -G --comms patient -F ip 2>/dev/null | awk '{ print "vpmu-guest: long-sample", $1 }'
say lost "$(perf report -i /tmp/data --stats 2>/dev/null | sed -n 's/.*LOST[_A-Z]* events: *\([0-9]*\).*/\1/p' | awk '{ n += $1 } END { print n + 0 }')"
