# Two CPUs compare their clocks while one of them is sampled:
#   clocks HAND_OVERS BACKWARD SAMPLES
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

perf record -q -N -o /tmp/data -C 0 -e cycles -F 1000 -- clocks 8 >/tmp/clocks 2>/tmp/log || say error "clocks: $(head -n 3 /tmp/log | tr '\n' ' ')"
say clocks "$(cat /tmp/clocks) $(perf script -i /tmp/data -F ip 2>/dev/null | wc -l)"
