# How many cycles loops take by a model of the pipeline, for long enough that resumed.py saves and restores it in the middle of each:
#   took LOOP EVENT N
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

# On the CPU that booted: then the busiest CPU, by whose work resumed.py divides the run, is one that counts.
while read -r loop rounds; do
  taskset 1 perf stat -x, -e cycles:u,cycles,branch-misses:u -o /tmp/stat timed "$loop" "$rounds" || say error "perf stat of $loop failed"
  awk -F, -v loop="$loop" 'NF > 2 { print "vpmu-guest: took", loop, $3, $1 }' /tmp/stat
done <<LOOPS
adds 10000000
random 5000000
chase_l3 200000
decoding 20000
LOOPS

# With several CPUs, threads that take a line from each other: turns are short then, and long before and after.
perf stat -x, -e cycles:u,cycles -o /tmp/stat neighbours near 4000000 || say error "perf stat of neighbours failed"
awk -F, 'NF > 2 { print "vpmu-guest: took neighbours", $3, $1 }' /tmp/stat
