"""Logs in which all is well, for tests that put errors into them."""

import json

import console_log
import disassembly
import suites
import memory_checks
import models
import profiler_checks

SPLIT = """
0000000000401610 <heavy>:
  401610:\tshl    $0x2,%rdi
  401614:\tmov    $0x0,%eax
  401619:\tadd    %rdi,%rax
  40161c:\tjne    401619 <heavy+0x9>
0000000000401630 <light>:
  401630:\tadd    %rdi,%rax
  401633:\tret
"""
LOOP8 = "\n0000000000401020 <loop8>:\n" + "".join(f"  {0x401020 + 3 * i:x}:\tdec    %rdi\n" for i in range(8)) + """
0000000000401038 <loop8_branch>:
  401038:\tjne    401020 <loop8>
000000000040103a <loop8_end>:
  40103a:\tret
"""
ARRAYWALK = """
00000000004c0000 g     O .bss	0000000000010000 array
0000000000401615 <walk>:
  401615:\tmov    (%rdi),%rax
  401618:\tadd    $0x1,%rax
  40161c:\tmov    %rax,(%rdi)
  40161f:\tadd    $0x8,%rdi
"""
COUNTED = """
0000000000401000 <_start>:
  401000:\tmov    $0x186a0,%ecx
  401005:\tlea    0xff4(%rip),%rsi
000000000040100c <counted_loop>:
  40100c:\tmov    (%rsi),%rax
  40100f:\tinc    %rax
  401012:\tmov    %rax,0x8(%rsi)
  401016:\tdec    %ecx
  401018:\tjne    40100c <counted_loop>
000000000040101a <counted_end>:
  40101a:\txor    %edi,%edi
  40101c:\tmov    $0x3c,%eax
  401021:\tsyscall
"""
PATIENT = COUNTED.replace("counted", "patient").replace("$0x186a0", "$0x2625a00")
LEVELS = """
0000000000402000 g     O .bss	0000000000c00000 array
000000000040101f <walk>:
  40101f:\tmov    (%rdi),%rax
  401022:\tadd    0x8(%rdi),%rax
  401026:\tmov    %rax,0x10(%rdi)
  40102a:\tadd    $0x40,%rdi
"""
PAPI_TOT_INS = """
00000000004019d9 <instructions_million>:
  4019d9:\txor    %ecx,%ecx
  4019db:\tmov    $0x7a11f,%ecx
  4019e0:\tdec    %ecx
  4019e2:\tjne    4019e0 <instructions_million+0x7>
  4019e4:\tmov    $0x0,%eax
  4019e9:\tret
00000000004019ea <instructions_fldcw>:
  4019f6:\tmov    $0x186a0,%ecx
  4019fb:\tfldl   -0x18(%rsp)
  401a17:\tfldcw  -0x4(%rsp)
  401a1b:\tloop   4019fb <instructions_fldcw+0x11>
  401a22:\tret
0000000000401a23 <instructions_rep>:
  401a2f:\tmov    $0x3e8,%edx
  401a35:\tmov    $0xd,%al
  401a3f:\trep stos %al,%es:(%rdi)
  401a41:\tdec    %edx
  401a43:\tjne    401a35 <instructions_rep+0x12>
  401a51:\tret
"""
LISTINGS = {"split": SPLIT, "loop8": LOOP8, "arraywalk": ARRAYWALK, "counted": COUNTED, "patient": PATIENT, "levels": LEVELS, "papi_tot_ins": PAPI_TOT_INS}
PROGRAMS = {name: disassembly.parse(text) for name, text in LISTINGS.items()}
BASELINE = {str(number): "Ok" for number in suites.PERF_TESTS if number != 4} | {"4.1": "Ok", "4.2": "Skip"}


def counters(where, exits, records):
    vcpu = {"id": 0, "pmu.exits.rdmsr": exits, "pmu.exits.wrmsr": 0, "pmu.exits.debug": 0, "pmu.walk.runs": 0, "pmu.walk.steps": 0, "pmu.pebs.records": records, "pmu.pmi.nmi": records}
    return f"vpmu-host: counters {where} " + json.dumps({"machine": {}, "vcpus": [vcpu]})


def recording(name, heavy=80.0, light=19.0):
    yield f"vpmu-guest: record {name} 1000"
    yield f"vpmu-guest: ip {name} 600 401619"
    yield f"vpmu-guest: ip {name} 390 401630"
    yield f"vpmu-guest: ip {name} 10 ffffffff81000000"
    yield f"vpmu-guest: report {name} {heavy} heavy"
    yield f"vpmu-guest: report {name} {light} light"


def boot(model="skylake", kernel="6.1"):
    yield f"vpmu-host: model {model}"
    yield "vpmu-guest: init 1.23"
    yield counters("init", 424, 0)
    yield f"vpmu-guest: kernel {kernel}.0-56-cloud-amd64"
    yield "vpmu-guest: begin dmesg"
    yield "vpmu-guest: dmesg [    0.1] tsc: Detected 2400.000 MHz processor"
    for line in models.MODELS[model].pmu_lines:
        yield f"vpmu-guest: dmesg [    0.2] {line}"
    yield "vpmu-guest: max-sample-rate 100000"
    yield "vpmu-guest: end dmesg 0"


def single_lines():
    yield from boot()
    for line in ("1000.00,msec,task-clock,1,100.00,1,", "2388000000,,cycles,1,100.00,,", "1000,,instructions,1,100.00,,", "0,,branches,1,100.00,,",
                 "0,,branch-misses,1,100.00,,"):
        yield f"vpmu-guest: stat {line}"
    for precise in ("p", "pp", "ppp"):
        yield from recording(f"freq-{precise}")
        yield from recording(f"period-{precise}")
        yield counters(f"before-single-{precise}", 1000, 0)
        yield from recording(f"single-{precise}")
        yield counters(f"after-single-{precise}", 12000, 1000)
    for name in ("loop8-freq", "loop8-period"):
        yield f"vpmu-guest: record {name} 900"
        for index in range(8):
            yield f"vpmu-guest: ip {name} 100 {0x401020 + 3 * index:x}"
        yield f"vpmu-guest: ip {name} 100 401038"
    yield from ("vpmu-guest: debugged step 2000 7000", "vpmu-guest: debugged watch 100 900")
    for number, result in BASELINE.items():
        yield f"vpmu-guest: perf-test {number} {result} what it tests"
    yield from ("vpmu-guest: end record 0", "vpmu-guest: done", "vpmu-host: exit 0")


def host_lines():
    """A guest that counts with the host's PMU."""
    yield from boot()
    yield from 2 * ("vpmu-guest: count instructions:u 500005", "vpmu-guest: count branches:u 100001")
    for line in ("9.28,msec,task-clock,1,100.00,1,", "9349339,,cycles,1,100.00,,", "8340379,,instructions,1,100.00,,", "1405267,,branches,1,100.00,,",
                 "0,,branch-misses,1,100.00,,"):
        yield f"vpmu-guest: stat {line}"
    yield from ("vpmu-guest: level instructions:u 47185950", "vpmu-guest: level instructions:k 310220")
    yield from recording("sampled")
    for index in range(60):
        yield f"vpmu-guest: mem mem-loads 401615 {0x4c0000 + 8 * index:x}"
        yield f"vpmu-guest: mem mem-stores 40161c {0x4c0000 + 8 * index:x}"
    yield from ("vpmu-guest: end host-pmu 0", "vpmu-guest: done", "vpmu-host: exit 0")


def passed_lines():
    """Two guests with KVM's own PMU; the second may count architectural events alone."""
    for line in host_lines():
        yield line.replace("PEBS fmt3+, ", "")
    for loads in (746, 0):
        yield from ("vpmu-guest: event instructions:u 2125", f"vpmu-guest: event r01d1:u {loads}")


def smp_lines():
    yield from boot()
    yield from recording("all-cpus")
    yield "vpmu-guest: clocks 2000 0 7000"
    yield from ("vpmu-guest: done", "vpmu-host: exit 0")


def patient_lines():
    """The loop has five instructions, and a record comes 1,000,004 of them after the last one."""
    yield from boot("haswell")
    yield from ("vpmu-guest: patient instructions:u 200000005", "vpmu-guest: patient branches:u 40000001", "vpmu-guest: patient recording")
    for number in range(199):
        yield f"vpmu-guest: long-sample {('40100f', '40100c', '401018', '401016', '401012')[number % 5]}"
    yield from ("vpmu-guest: lost 0", "vpmu-guest: end patient 0", "vpmu-guest: done")


def attached_lines(disturbed="reset 1 stepped 30 saved 4 migrated 3 in-use 7"):
    yield from patient_lines()
    yield from (f"vpmu-host: disturbed {disturbed}", "vpmu-host: exit 0")


def libvirt_lines():
    yield from ("vpmu-host: domain refused same", "vpmu-host: domain enabled haswell exact", "vpmu-host: domain changed 20")
    yield from patient_lines()
    yield counters("end", 2000, 199)
    yield from ("vpmu-host: exit 0", "vpmu-host: domain disabled same", "vpmu-host: domain own-vmm done")


def exact_lines(model="skylake", kernel="6.1"):
    yield from boot(model, kernel)
    yield from ("vpmu-guest: count instructions:u 500005", "vpmu-guest: count branches:u 100001") * 2
    loop = ("40100c", "40100f", "401012", "401016", "401018")
    for number in range(1, 499):  # two instructions stand before the loop
        yield f"vpmu-guest: sample {loop[(number * 1004 - 3) % 5]}"
    for event, number in (("instructions", 2125), ("branches", 702), ("loads", 780), ("stores", 580)):
        yield from (f"vpmu-guest: mixed {event} {number}",) * 2
        yield f"vpmu-host: qemu-count mixed {event} {number}"
    yield from ("vpmu-guest: conditional 360",) * 100
    yield from ("vpmu-guest: debugged step 2000 2029", "vpmu-guest: debugged watch 100 836")
    yield from (f"vpmu-guest: self sampled {precise} 99 {99 if precise == 2 else 0}" for precise in range(3))
    yield "vpmu-guest: self overflows 100 50 10002504"
    yield from (f"vpmu-guest: self thread {rounds} {rounds}0000{6 * rounds + 27:02}" for rounds in (5, 10))
    yield from (f"vpmu-guest: self thread {rounds} {rounds}000{6 * rounds + 27:03}" for rounds in (20, 15))
    yield "vpmu-guest: self shared 20000144 20000144 0"
    yield from (f"vpmu-guest: self shared 4999810 {scaled} 4" for scaled in (26000000, 20014704, 14000000))
    yield from modelled_lines(models.MODELS[model], kernel)
    yield from ("vpmu-guest: end exact 0", "vpmu-guest: done", "vpmu-host: exit 0")


def store_levels(model, kernel):
    """Perf's words for stores that hit, and missed, the L1."""
    between = "_or_N/A" if model.stores == "level" and kernel == "6.12" else ""
    return f"LVL_L1{between}_hit", f"LVL_L1{between}_miss"


def modelled_lines(model, kernel):
    """Of each level 15 samples at another address; the model logged more than was sampled."""
    hit, miss = ("TLB_L1_or_L2_hit", "TLB_L2_miss") if model.load_tlb else ("TLB_N/A",) * 2
    for number in range(15):
        for index, (level, text) in enumerate(memory_checks.LOAD_LEVELS.items()):
            place, latency = f"{0x402000 + 0x1000 * index + 64 * number:x}", 4 + index
            yield f"vpmu-guest: sampled 40101f {place} {latency} OP_LOAD {text} {miss if number == 0 else hit}"
            yield f"vpmu-host: modelled 0x40101f load 0x{place} {level} latency {latency} stlb_miss {int(number == 0)}"
            yield f"vpmu-host: modelled 0x401022 load 0x{place} l1 latency 4 stlb_miss 0"
        for index, (level, text) in enumerate(zip(("l1", "l3"), store_levels(model, kernel)) if model.stores else ()):
            place = f"{0x408010 + 0x1000 * index + 64 * number:x}"
            yield f"vpmu-guest: sampled 401026 {place} - OP_STORE {text} {'TLB_L2_miss' if model.stores == 'tlb' else 'TLB_N/A'}"
            yield f"vpmu-host: modelled 0x401026 store 0x{place} {level} latency 9 stlb_miss 1"


def soft_lines():
    for _ in range(2):
        yield from (f"[    0.{number:06}] a line of the kernel" for number in range(100))
        yield "vpmu-host: seconds-to-init 3.0"
        yield from exact_lines_without_exit()
        yield "vpmu-host: counters end " + json.dumps({"machine": {}, "vcpus": [{"id": 0, "soft.instructions": 1_400_000_000, "pmu.exits.kick": 3}]})
        yield "vpmu-host: exit 0"


def exact_lines_without_exit():
    return (line for line in exact_lines() if not line.startswith("vpmu-host: exit"))


def gdb_lines():
    yield "vpmu-guest: gdb stepi 959999200 0 902"
    yield "vpmu-guest: gdb break 959999200 24 1001"


def profiler_lines(model="haswell"):
    profiled = profiler_checks.MODELS[model]
    yield from boot(model)
    yield "vpmu-guest: begin profilers"
    for kind, count in profiler_checks.COUNTED.items():
        yield f"vpmu-guest: likwid run {profiled.event(kind)} {count + 840}"
        for times in (1, 2, 3):
            yield f"vpmu-guest: likwid {times} {profiled.event(kind)} {times * profiler_checks.REGION[kind] + 820}"
    for name, count in zip(profiler_checks.GROUP, (506450, 506450, 101315, 579)):
        yield f"vpmu-guest: branch-group {name} {count}"
    for metric in ("1 CPI", "0.2000 Branch rate", "0.0011 Branch misprediction rate", "0.0057 Branch misprediction ratio", "4.9988 Instructions per branch"):
        yield f"vpmu-guest: branch-metric {metric}"
    for way in ("msr", "perf"):
        yield f"vpmu-guest: pcm {way} Instructions 1081255491.00"
        yield f"vpmu-guest: pcm {way} Event0 120276876.00"
    yield f"vpmu-guest: papi-avail Number Hardware Counters : {profiled.papi_counters}"
    for name in profiler_checks.PAPI_EVENTS:
        yield f"vpmu-guest: papi-avail {name} 0x80000032  Yes   No   Something"
    for low in (1000002 + 184, 3 * 100000 + 2 + 184, 4 * 1000 + 2 + 184):
        yield f"vpmu-guest: papi papi_tot_ins    High: {low + 564}   Low:  {low}   Average:  {low + 5}"
    yield "vpmu-guest: papi papi_tot_ins PASSED"
    yield "vpmu-guest: papi papi_br_ins    High: 1500135   Low:  1500044   Average:  1500044"
    yield "vpmu-guest: papi papi_br_ins PASSED"
    yield "vpmu-guest: end profilers 0"
    yield from gdb_lines()
    yield "vpmu-guest: done"
    yield "vpmu-host: exit 0"


def failing(suite, text):
    """The names of the suite's checks that fail."""
    run, failed = console_log.parse(text), set()
    for name, check, arguments in suites.SUITES[suite](BASELINE):
        try:
            check(run, PROGRAMS, *arguments)
        except (AssertionError, ValueError, IndexError, KeyError):
            failed.add(name)
    return failed
