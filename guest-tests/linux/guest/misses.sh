# What a model of the processor counts on all CPUs, for long enough that resumed.py saves and restores it in the middle:
#   missed EVENT N
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

program='BEGIN { for (i = 0; i < 30000; ++i) a[i * 7 % 9973] = i; for (k in a) s += a[k] }'

awk "$program" &
perf stat -a -x, -e cache-misses,branch-misses,dTLB-load-misses,L1-dcache-load-misses -o /tmp/stat awk "$program" || say error "perf stat failed"
wait
awk -F, 'NF > 2 { print "vpmu-guest: missed", $3, $1 }' /tmp/stat
