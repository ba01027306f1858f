# What a user does: record a program precisely, look at the report, look at the instructions.
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

echo "# dmesg | grep 'Performance Events'"
dmesg | grep 'Performance Events'
echo "# perf record -e cycles:pp -c 1000003 split"
perf record -N -o /tmp/data -e cycles:pp -c 1000003 split 600 2>&1 | grep -v '^$'
echo "# perf report"
perf report -i /tmp/data --stdio --percent-limit 1 2>/dev/null | grep -v '^#\|^$'
echo "# perf annotate heavy"
perf annotate -i /tmp/data --stdio --percent-limit 1 -s heavy 2>/dev/null | grep -v '^$'
