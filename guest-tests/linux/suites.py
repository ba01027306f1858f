"""What a Linux guest has to have printed, in suites of named checks.

| suite | of |
|---|---|
| single | one vCPU: everything but -a |
| smp | two vCPUs: -a |
| exact | one vCPU whose source counts each instruction |
| attached | the same in a QEMU that disturbs it |
| libvirt | the same in a domain of libvirt's |
| saved | the same in our VMM, saved and restored again and again |
| soft | the same boot twice without KVM: both the same |
| profilers | likwid, pcm and PAPI |
| rr | rr's recordings and replays |
| host | a host's PMU counts |
| passed | the host's PMU is passed through: no precise samples |

A check takes what the guest printed (console_log.Run) and the disassembled programs, and fails by AssertionError; one that cannot read a garbled line fails, too.
"""

import functools
import re

import disassembly
from attached_checks import attached_checks, check_disturbed, check_domain
from clock_checks import check_clocks
from count_checks import COUNTED_EVENTS, MIXED_EVENTS, check_as_qemu, check_count, check_count_nearly, check_precise_order, check_same_each_time
from debugger_checks import DEBUGGED, check_debugged, gdb_checks
from host_pmu_checks import check_events, check_levels, check_passed_pmu
from memory_checks import check_as_modelled, check_every_level, check_memory
from models import model_of
from paths import IMAGES, LINUX
from profiler_checks import profilers_checks
from rr_checks import check_rr
from selfcount_checks import selfcount_checks

HOST_PROGRAMS = ("bed:", "boot-guest:", "qemu-session:", "saved-guest:", "libvirt-domain:")
PMU_PREFIXES = ("Performance Events:", "core: ", "... ")
FORBIDDEN = ("irq loop stuck", "Uhhuh. NMI received", "unchecked MSR access", "Broken PMU", "PEBS disabled", "Oops", "general protection fault",
             "BUG:", "Kernel panic", "Marking TSC unstable")
MODES = [f"{kind}-{precise}" for precise in ("p", "pp", "ppp") for kind in ("freq", "period", "single")]
PERF_TESTS = (4, 17, 20, 21, 23, 24, 50, 71, 73, 77)
GRADES = {"FAILED": 0, "Skip": 1, "Ok": 2}

MIN_SAMPLES = 200  # fewer would make the shares below a matter of luck
MIN_PROGRAM_SHARE = 0.80  # of a program's own samples in its hot functions; the rest is start and end
HEAVY_PERCENT = (75.0, 85.0)
MAX_LOOP_SHARE = 0.30
CYCLES_TOLERANCE = 0.05
MAX_EXITS_PER_SAMPLE = 12
MAX_BOOT_EXITS = 450
MIN_CONSOLE_LINES = 100  # of a boot that is compared with another
MIN_BOOT_INSTRUCTIONS = 100_000_000
HOST_COUNTERS = {"exits.interrupted", "pmu.exits.kick", "vcpu.late_kicks", "vcpu.longest_kick_us"}  # of what the host did
MIN_SAMPLE_RATE = 4000  # what perf record asks for by default
PMU_EXITS = ("pmu.exits.rdmsr", "pmu.exits.wrmsr", "pmu.exits.debug", "pmu.walk.runs", "pmu.walk.steps")


def user_addresses(run, name):
    """Address -> samples of one recording, user mode only."""
    samples = {}
    for count, address in run.named("ip", name):
        if int(address, 16) < 1 << 63:
            samples[int(address, 16)] = samples.get(int(address, 16), 0) + int(count)
    return samples


def recorded(run, name):
    """The number of the program's samples in user mode. The kernel's share varies, and is large if exits are slow."""
    lines = run.named("record", name)
    assert lines, f"no recording {name}: {'; '.join(run.facts['error']) or 'the script did not get there'}"
    count = sum(user_addresses(run, name).values())
    assert count >= MIN_SAMPLES, f"{name} has {count} samples in user mode of {lines[0][0]}, needs {MIN_SAMPLES}"
    return count


def check_ended(run, _programs):
    """The guest ran to its end without trouble."""
    assert not run.facts["error"], "; ".join(run.facts["error"])
    failed = [line for line in run.facts["end"] if not line.endswith(" 0")]
    assert not failed, f"a script failed: {', '.join(failed)}"
    why = [line for line in run.kernel if line.startswith(HOST_PROGRAMS)] + [f"stuck {line}" for line in run.facts["stuck"]]
    assert run.facts["done"], "; ".join(["the guest did not finish", *why])
    assert run.first("exit") == "0", "; ".join([f"the VMM ended with {run.first('exit')}", *why])
    return f"{len(run.facts['end'])} scripts"


def check_pmu_lines(run, _programs):
    """The kernel's messages about this model's PMU are those for such a processor, and no others; guest/dmesg.sh may have printed them twice."""
    found = {re.sub(r"^\[ *[0-9.]+\] ", "", line) for line in run.kernel}
    found = {line for line in found if line.startswith(PMU_PREFIXES)}
    expected = set(model_of(run).pmu_lines)
    assert expected <= found, f"dmesg lacks the lines: {'; '.join(sorted(expected - found))}"
    assert found <= expected, f"dmesg has unexpected lines: {'; '.join(sorted(found - expected))}"
    return model_of(run).pmu_line


def check_no_complaint(run, _programs):
    assert len(run.kernel) >= 5, f"only {len(run.kernel)} lines of the kernel in the log"
    complaints = [line for line in run.kernel if any(text in line for text in FORBIDDEN)]
    assert not complaints, complaints[0] if complaints else ""
    return f"{len(run.kernel)} lines of the kernel"


def check_sample_rate(run, _programs):
    rate = int(run.first("max-sample-rate") or 0)
    assert rate >= MIN_SAMPLE_RATE, f"the guest lowered perf_event_max_sample_rate to {rate}, below {MIN_SAMPLE_RATE}"
    return str(rate)


def stat_values(run):
    values = {}
    for line in run.facts["stat"]:
        value, _, event = line.split(",")[:3]
        assert re.fullmatch(r"[0-9.]+", value), f"perf stat says {value} for {event}"
        values[event] = float(value)
    return values


def check_stat(run, _programs):
    values = stat_values(run)
    for event in ("task-clock", "cycles", "instructions"):
        assert values.get(event, 0) > 0, f"perf stat counted no {event}"
    for event in ("branches", "branch-misses"):
        assert values.get(event) == 0, f"perf stat counted {values.get(event)} {event}, which the clock does not count"
    rates = [float(match[1]) for line in run.kernel if (match := re.search(r"tsc: Detected ([0-9.]+) MHz", line))]
    assert rates, "dmesg does not tell the TSC rate"
    expected = values["task-clock"] * rates[-1] * 1000
    ratio = values["cycles"] / expected
    assert abs(ratio - 1) <= CYCLES_TOLERANCE, f"cycles are {ratio:.3f} of task-clock x TSC rate"
    return f"cycles / (task-clock x TSC rate) = {ratio:.3f}"


def check_default_stat(run, _programs):
    values = stat_values(run)
    for event in ("task-clock", "cycles", "instructions", "branches"):
        assert values.get(event, 0) > 0, f"perf stat counted no {event}"
    assert values.get("branch-misses", -1) >= 0, "perf stat counted no branch-misses"
    return f"{len(values)} events, {values['instructions']:.0f} instructions"


def check_split(run, _programs, name):
    count = recorded(run, name)
    percents = {symbol: float(percent) for percent, symbol in run.named("report", name)}
    heavy, light = percents.get("heavy", 0.0), percents.get("light", 0.0)
    assert heavy + light >= 100 * MIN_PROGRAM_SHARE, f"{name}: heavy and light have {heavy + light:.1f} % of the report: {percents}"
    share = 100 * heavy / (heavy + light)
    assert HEAVY_PERCENT[0] <= share <= HEAVY_PERCENT[1], f"{name}: heavy has {share:.1f} %, light the rest"
    return f"{count} samples, heavy {share:.1f} %"


def check_boundaries(run, programs, name):
    count = recorded(run, name)
    program = programs["loop8" if name.startswith("loop8") else "split"]
    addresses = user_addresses(run, name)
    wrong = [hex(address) for address in addresses if address not in program.instructions]
    assert not wrong, f"{name}: no instruction begins at {', '.join(wrong[:4])}"
    return f"{count} samples at {len(addresses)} addresses"


def check_loop(run, programs, name):
    count = recorded(run, name)
    program = programs["loop8"]
    body = sorted(address for symbol in ("loop8", "loop8_branch") for address in program.addresses_of(symbol))
    assert len(body) == 9, f"loop8 has {len(body)} instructions, not 8 and a branch"
    samples = user_addresses(run, name)
    hits = [samples.get(address, 0) for address in body]
    assert sum(hits) >= MIN_PROGRAM_SHARE * count, f"{name}: only {sum(hits)} of {count} samples in the loop"
    shares = [hit / sum(hits) for hit in hits]
    listing = " ".join(f"{100 * share:.0f}" for share in shares)
    assert max(shares) <= MAX_LOOP_SHARE, f"{name}: one instruction has {100 * max(shares):.0f} % of the samples ({listing})"
    assert sum(1 for hit in hits[:8] if hit) >= 6, f"{name}: fewer than 6 of 8 equal instructions were sampled ({listing})"
    return f"percent by instruction: {listing}"


def parse_results(lines):
    return {number: result for number, result, *_ in (line.split() for line in lines if line.strip() and not line.startswith("#"))}


def check_perf_test(run, _programs, number, baseline):
    mine = parse_results(run.facts["perf-test"])
    known = {part: result for part, result in baseline.items() if part.split(".")[0] == str(number)}
    assert known, f"the baseline has no perf test {number}"
    for part, result in known.items():
        assert part in mine, f"perf test {part} did not report"
        assert GRADES[mine[part]] >= GRADES[result], f"perf test {part}: {mine[part]}, under QEMU-KVM {result}"
    return ", ".join(f"{part} {mine[part]}" for part in known)


def pmu_exits(counters):
    missing = [name for name in PMU_EXITS if name not in counters]
    assert not missing, f"the VMM has no counter {', '.join(missing)}"
    return sum(counters[name] for name in PMU_EXITS)


def check_exits_per_sample(run, _programs, precise):
    """Of recordings that have an interrupt for each record and a fixed period, which no timer tick adjusts."""
    before, after = (run.counters.get(f"{when}-single-{precise}") for when in ("before", "after"))
    assert before is not None and after is not None, f"no counters around single-{precise}"
    records = after["pmu.pebs.records"] - before["pmu.pebs.records"]
    interrupts = after["pmu.pmi.nmi"] - before["pmu.pmi.nmi"]
    assert records >= MIN_SAMPLES, f"only {records} records, needs {MIN_SAMPLES}"
    assert interrupts >= 0.9 * records, f"{interrupts} interrupts for {records} records: not one for each"
    cost = (pmu_exits(after) - pmu_exits(before)) / records
    assert cost <= MAX_EXITS_PER_SAMPLE, f"{cost:.1f} exits per sample, at most {MAX_EXITS_PER_SAMPLE}"
    return f"{cost:.1f} exits per sample over {records} samples"


def check_boot_exits(run, _programs):
    assert "init" in run.counters, "no counters at init"
    exits = pmu_exits(run.counters["init"])
    assert 0 < exits <= MAX_BOOT_EXITS, f"{exits} PMU exits from start to init, must be 1 to {MAX_BOOT_EXITS}"
    return f"{exits} exits"


def single_checks(baseline):
    yield "guest-ends", check_ended, ()
    yield "dmesg-pmu", check_pmu_lines, ()
    yield "dmesg-clean", check_no_complaint, ()
    yield "boot-exits", check_boot_exits, ()
    yield "stat-cycles", check_stat, ()
    for mode in MODES:
        yield f"split-{mode}", check_split, (mode,)
        yield f"boundaries-{mode}", check_boundaries, (mode,)
    for precise in ("p", "pp", "ppp"):
        yield f"exits-per-sample-{precise}", check_exits_per_sample, (precise,)
    for name in ("loop8-freq", "loop8-period"):
        yield f"boundaries-{name}", check_boundaries, (name,)
        yield f"even-{name}", check_loop, (name,)
    for mode in DEBUGGED:
        yield f"debugged-{mode}", check_debugged, (mode,)
    for number in PERF_TESTS:
        yield f"perf-test-{number}", check_perf_test, (number, baseline)
    yield "sample-rate", check_sample_rate, ()


def smp_checks(_baseline):
    yield "smp-guest-ends", check_ended, ()
    yield "smp-dmesg-pmu", check_pmu_lines, ()
    yield "smp-dmesg-clean", check_no_complaint, ()
    yield "smp-split-all-cpus", check_split, ("all-cpus",)
    yield "smp-boundaries-all-cpus", check_boundaries, ("all-cpus",)
    yield "smp-clocks", check_clocks, ()


def disturbed_suite(suite, **least):
    yield f"{suite}-guest-ends", check_ended, ()
    yield f"{suite}-dmesg-pmu", check_pmu_lines, ()
    yield f"{suite}-dmesg-clean", check_no_complaint, ()
    yield from attached_checks(suite)
    yield f"{suite}-disturbed", check_disturbed, (least,)


def attached_suite(_baseline):
    return disturbed_suite("attached", **{"reset": 1, "stepped": 2, "saved": 2, "migrated": 2, "in-use": 2})


def saved_suite(_baseline):
    return disturbed_suite("saved", **{"saved": 3, "in-use": 2, "copied": 1})


def libvirt_suite(_baseline):
    yield "libvirt-guest-ends", check_ended, ()
    yield "libvirt-dmesg-pmu", check_pmu_lines, ()
    yield "libvirt-dmesg-clean", check_no_complaint, ()
    yield from attached_checks("libvirt")
    yield "libvirt-domain", check_domain, ()


def exact_checks(_baseline):
    yield "exact-guest-ends", check_ended, ()
    yield "exact-dmesg-pmu", check_pmu_lines, ()
    yield "exact-dmesg-clean", check_no_complaint, ()
    for event in COUNTED_EVENTS:
        yield f"exact-{event}", check_count, (event,)
    yield "exact-precise-order", check_precise_order, ()
    for event in MIXED_EVENTS:
        yield f"exact-{event}-as-qemu", check_as_qemu, (event,)
    yield "exact-same-each-time", check_same_each_time, ()
    yield "exact-debugged-step", check_debugged, ("step", 1, 1.5 * DEBUGGED["step"])
    yield "exact-debugged-watch", check_debugged, ("watch", 1, 10 * DEBUGGED["watch"])
    yield from selfcount_checks("exact")
    yield "exact-samples-as-modelled", check_as_modelled, ()
    yield "exact-samples-at-every-level", check_every_level, ()


def check_consoles_alike(run, _programs):
    assert len(run.boots) == 2, f"{len(run.boots)} boots in the log, not 2"
    (first, _), (second, _) = run.boots
    assert len(first) >= MIN_CONSOLE_LINES, f"only {len(first)} lines on the console"
    for number, (one, other) in enumerate(zip(first, second)):
        assert one == other, f"line {number + 1}: {one!r} and then {other!r}"
    assert len(first) == len(second), f"{len(first)} lines and then {len(second)}"
    return f"{len(first)} lines, the same twice"


def check_counters_alike(run, _programs):
    assert len(run.boots) == 2, f"{len(run.boots)} boots in the log, not 2"
    first, second = ({name: value for name, value in last.items() if name not in HOST_COUNTERS} for _, last in run.boots)
    instructions = first.get("soft.instructions", 0)
    assert instructions >= MIN_BOOT_INSTRUCTIONS, f"only {instructions} instructions"
    differing = [f"{name}: {first.get(name)} and then {second.get(name)}" for name in first | second if first.get(name) != second.get(name)]
    assert not differing, "; ".join(differing)
    return f"{instructions} instructions and {len(first) - 1} other counters, the same twice"


def soft_checks(_baseline):
    yield "soft-guest-ends", check_ended, ()
    yield "soft-console-alike", check_consoles_alike, ()
    yield "soft-counters-alike", check_counters_alike, ()


def profilers_suite(baseline):
    yield "profilers-guest-ends", check_ended, ()
    yield "profilers-dmesg-clean", check_no_complaint, ()
    yield from (*gdb_checks(), *profilers_checks(baseline))


def rr_suite(_baseline):
    yield "rr-guest-ends", check_ended, ()
    yield "rr-dmesg-clean", check_no_complaint, ()
    yield "rr-same-each-time", check_rr, ()
    yield from gdb_checks()


def host_suite(suite, precise):
    yield f"{suite}-guest-ends", check_ended, ()
    yield f"{suite}-dmesg-pmu", check_pmu_lines if precise else check_passed_pmu, ()
    yield f"{suite}-dmesg-clean", check_no_complaint, ()
    for event in COUNTED_EVENTS:
        yield f"{suite}-{event}", check_count_nearly, (event,)
    yield f"{suite}-stat", check_default_stat, ()
    yield f"{suite}-levels", check_levels, ()
    yield f"{suite}-split", check_split, ("sampled",)
    yield f"{suite}-boundaries", check_boundaries, ("sampled",)
    if precise:
        yield f"{suite}-memory-loads", check_memory, ("mem-loads", disassembly.is_load)
        yield f"{suite}-memory-stores", check_memory, ("mem-stores", disassembly.is_store)


def host_checks(_baseline):
    return host_suite("host", precise=True)


def passed_checks(_baseline):
    yield from host_suite("passed", precise=False)
    yield "passed-events", check_events, ()


SUITES = {"attached": attached_suite, "exact": exact_checks, "host": host_checks, "libvirt": libvirt_suite, "passed": passed_checks,
          "profilers": profilers_suite, "rr": rr_suite, "saved": saved_suite, "single": single_checks, "smp": smp_checks, "soft": soft_checks}


def read_baseline():
    """Results of perf test under QEMU-KVM."""
    return parse_results((LINUX / "perf-test-baseline.txt").read_text(encoding="ascii").splitlines())


@functools.cache
def read_programs(suite):
    """The guest's programs, from build-initramfs."""
    names = ["../profilers/papi_tot_ins"] if suite == "profilers" else ["split", "loop8", "arraywalk", "counted", "levels", "patient"]
    return {name.rpartition("/")[2]: disassembly.load(f"{IMAGES}/programs/{name}") for name in names}


def names(suite):
    return [name for name, *_ in SUITES[suite](read_baseline())]


def judge(suite, name, run, programs=None):
    """One check of a suite. What it finds is shown if the test fails, and by pytest's -rP."""
    check, arguments = next((check, arguments) for row, check, arguments in SUITES[suite](read_baseline()) if row == name)
    print(check(run, programs or read_programs(suite), *arguments))
