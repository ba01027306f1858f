# perf's own tests of what a virtual PMU can break: "perf-test NUMBER RESULT TEXT", RESULT one of Ok, Skip, FAILED.
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

for number in 4 17 20 21 23 24 50 71 73 77; do
  perf test "$number" >/tmp/log 2>&1
  # " 4.2: User space counter reading of instructions      : Ok"; a test with parts has one line for each.
  sed -n "s/^ *\(${number}[.0-9]*\): \(.*[^ ]\) *: \(Ok\|Skip\|FAILED\).*/vpmu-guest: perf-test \1 \3 \2/p" /tmp/log
done
