# What a user does: record a program precisely, look at the report, look at the instructions.
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

echo "# dmesg | grep 'Performance Events'"
dmesg | grep 'Performance Events'
# The same number of samples of a shorter program, for a VMM that looks at each instruction: before Haswell, Linux turns the LBR on for :pp.
period=1000003 rounds=600
if grep -q vpmu.short /proc/cmdline; then period=40009 rounds=24; fi
echo "# perf record -e cycles:pp -c $period split"
perf record -N -o /tmp/data -e cycles:pp -c $period split $rounds 2>&1 | grep -v '^$'
echo "# perf report"
perf report -i /tmp/data --stdio --percent-limit 1 2>/dev/null | grep -v '^#\|^$'
echo "# perf annotate heavy"
perf annotate -i /tmp/data --stdio --percent-limit 1 -s heavy 2>/dev/null | grep -v '^$'
