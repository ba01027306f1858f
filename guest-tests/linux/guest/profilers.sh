# What profilers other than perf count, of programs whose every instruction is known. Needs profilers.img:
#   likwid WHAT EVENT N        likwid-perfctr: of counted ("run"), and of the region of programs/regions.c with 1, 2 and 3 times its rounds
#   branch-group EVENT N, branch-metric VALUE NAME   its group BRANCH of counted
#   pcm WAY EVENT N            pcm-core of loop8, by perf ("perf") and by the registers themselves ("msr")
#   papi-avail TEXT            what papi_avail says of the counters and of some events
#   papi TEST TEXT             PAPI's own tests papi_tot_ins and papi_br_ins
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

insmod /lib/modules/msr.ko || say error "no msr.ko"
echo 0 >/proc/sys/kernel/randomize_va_space # the same run each time
echo -1 >/proc/sys/kernel/perf_event_paranoid # PAPI wants permission to count the kernel
ln -s /usr/bin/bash /bin/bash                 # likwid uses it to look for its daemon

# events NAME: the lines of likwid's tables, as "NAME EVENT N"; of the marker's regions only "loop"
events() { awk -F, -v name="$1" '/^TABLE,/ { on = $2 != "Region first" } on && $2 ~ /^(FIXC|PMC)[0-9]$/ { print name, $1, $3 }' /tmp/log; }

if grep -q "model name.*i5 CPU 660" /proc/cpuinfo; then memory=MEM_INST_RETIRED_LOADS:PMC1,MEM_INST_RETIRED_STORES:PMC2
else memory=MEM_UOPS_RETIRED_LOADS:PMC1,MEM_UOPS_RETIRED_STORES:PMC2; fi
all=INSTR_RETIRED_ANY:FIXC0,CPU_CLK_UNHALTED_CORE:FIXC1,BR_INST_RETIRED_ALL_BRANCHES:PMC0,$memory

likwid-perfctr -O -C 0 -g "$all" counted >/tmp/log 2>&1 || say error "likwid-perfctr: $(tail -n 3 /tmp/log | tr '\n' ' ')"
events run | say_lines likwid
for n in 1 2 3; do
  likwid-perfctr -O -C 0 -m -g "$all" regions "$n" >/tmp/log 2>&1 || say error "likwid-perfctr -m: $(tail -n 3 /tmp/log | tr '\n' ' ')"
  events "$n" | say_lines likwid
done
likwid-perfctr -O -C 0 -g BRANCH counted >/tmp/log 2>&1 || say error "likwid-perfctr -g BRANCH: $(tail -n 3 /tmp/log | tr '\n' ' ')"
events group | cut -d ' ' -f 2- | say_lines branch-group
awk -F, '/^TABLE,Group 1 Metric/ { on = 1; next } /^STRUCT|^TABLE/ { on = 0 } on && $2 ~ /^[0-9.e+-]+$/ { print $2, $1 }' /tmp/log | say_lines branch-metric

# The kernel leaves its events in the event-select registers, disabled; pcm would ask before it takes such counters.
export PCM_NO_AWS_WORKAROUND=1 # one counter of four would stay unused
for way in msr perf; do
  if [ "$way" = msr ]; then export PCM_NO_PERF=1; else unset PCM_NO_PERF; fi
  pcm-core -csv=/tmp/csv -e cpu/event=0xC4,umask=0x00,name=BRANCHES/ -- loop8 </dev/null >/tmp/log 2>&1 || say error "pcm-core: $(tail -n 3 /tmp/log | tr '\n' ' ')"
  awk -F, -v way="$way" '/^Core,/ { for (n = 1; n <= NF; ++n) name[n] = $n } /^\*,/ { for (n = 3; n <= 6; ++n) print way, name[n], $n }' /tmp/csv | say_lines pcm
done
papi_avail | grep -E '^Number Hardware|^PAPI_(TOT_INS|TOT_CYC|BR_INS|LD_INS|SR_INS|BR_MSP) |possible events' | say_lines papi-avail
for name in papi_tot_ins papi_br_ins; do
  "$name" 2>&1 | grep -E "Testing a|High|PASSED|FAILED|SKIPPED" | say_lines "papi $name"
done
