"""The checks of guest/facilities.sh: what perf can do on a model, each judged by the program that was recorded."""

import bisect
import hashlib
from collections import Counter
from dataclasses import dataclass

import stepper
from memory_checks import LOAD_LEVELS
from models import MISSING, model_of

# Of programs/chase.S and guest/facilities.sh.
CLASSES = {"l1": 8 << 10, "l2": 64 << 10, "l3": 2 << 20, "memory": 16 << 20}  # loop -> bytes it goes through
ACCESSES = 10_000  # loads, and stores, of each loop
STORE_PERIOD = 499
LATENCIES = {"l1": (1, 7), "l2": (8, 25), "l3": (26, 120), "memory": (150, 500)}
PRECISE_PERIODS = {"p": 103, "pp": 103, "ppp": 128}
BRANCH_PERIOD = 1003
LINES, LINES_ROUNDS, LINES_PERIOD = 1024, 40, 997  # of programs/lines.S

MIN_CLASS_SAMPLES = 15
MIN_CLASS_SHARE = 0.90
MIN_PMIS = 200
UNCORE_TOLERANCE = 0.01
TOLERANCE = 0.10  # of counts whose program does a little more than its loop


class Missing(Exception):
    """perf can record, but our PMU does not yet deliver what it requests."""


@dataclass(frozen=True)
class Walked:
    """Samples of programs/chase.S that differ only in their data addresses."""

    count: int
    ip: int
    latency: str
    operation: str
    level: str
    first: int
    last: int


def about(value, expected):
    return abs(value - expected) <= TOLERANCE * expected


def check_opened(run, name):
    assert name in run.facts["opened"], f"not opened: {'; '.join(line for line in run.facts['refused'] if line.split()[0] == name)}"


def check_precise(run, programs, modifier):
    """Rules P1 and D4: the record is of the instruction after the overflow; :p shows the one after that, :pp and :ppp the recorded one."""
    check_opened(run, modifier)
    path = calls_of(programs).path
    period = PRECISE_PERIODS[modifier]
    expected = path[period + (modifier == "p") :: period + 1]
    samples = [int(address, 16) for (address,) in run.named("precise", modifier)]
    assert len(samples) == len(expected) > 0, f"{len(samples)} samples, not {len(expected)}"
    for number, (sample, wanted) in enumerate(zip(samples, expected), 1):
        assert sample == wanted, f"sample {number} is at {sample:#x}, not {wanted:#x}"
    return f"{len(samples)} samples, each at its instruction"


def walked(run, name):
    for count, ip, latency, operation, level, _, first, last in run.named("walked", name):
        yield Walked(int(count), int(ip, 16), latency, operation, level, int(first, 16), int(last, 16))


def check_walked(run, programs, name, labels, level_of, sweep_counts=False):
    """Every sample is of a loop's own instruction and within the memory that the loop accesses; nine of ten report the right level. The sweep
    before the last loop is sampled where its stores count one by one, and only there."""
    check_opened(run, name)
    program = programs["chase"]
    begin, _ = program.objects["array"]
    sweep = program.addresses_of("sweep_store")[0]
    swept = sum(sample.count for sample in walked(run, name) if sample.ip == sweep)
    assert (swept > 0) == sweep_counts, f"{swept} samples of the sweep by REP STOS at {sweep:#x}"
    samples = [sample for sample in walked(run, name) if sample.ip != sweep]
    loop_of = {program.addresses_of(f"{loop}_{label}")[0]: loop for loop in CLASSES for label in labels}
    seen, right = Counter(), Counter()
    for sample in samples:
        loop = loop_of.get(sample.ip)
        assert loop, f"{sample.count} samples at {sample.ip:#x}: {program.instructions.get(sample.ip)}"
        assert begin <= sample.first <= sample.last < begin + CLASSES[loop], f"{loop}: data addresses {sample.first:#x} to {sample.last:#x}"
        seen[loop] += sample.count
        right[loop] += sample.count if level_of(loop, sample) else 0
    for loop in CLASSES:
        assert seen[loop] >= MIN_CLASS_SAMPLES, f"{loop}: {seen[loop]} samples, needs {MIN_CLASS_SAMPLES}"
        all_of_loop = [sample for sample in samples if loop_of[sample.ip] == loop]
        assert right[loop] >= MIN_CLASS_SHARE * seen[loop], f"{loop}: only {right[loop]} of {seen[loop]} samples are right: {all_of_loop}"
    return ", ".join(f"{loop} {right[loop]} of {seen[loop]}" for loop in CLASSES)


def check_loads(run, programs):
    def as_it_must(loop, sample):
        least, most = LATENCIES[loop]
        return sample.operation == "OP_LOAD" and sample.level == LOAD_LEVELS[loop] and least <= int(sample.latency) <= most

    return check_walked(run, programs, "loads", ("load",), as_it_must)


def check_stores(run, programs):
    def as_it_must(loop, sample):
        return sample.operation == "OP_STORE" and sample.level == model_of(run).store_levels[loop != "l1"]

    return check_walked(run, programs, "stores", ("link", "store"), as_it_must, model_of(run).store_uops)


def check_shared(run, _programs):
    """perf c2c counts the same levels."""
    check_opened(run, "c2c")
    totals = {name: int(count) for count, name in (line.split(" ", 1) for line in run.facts["shared"])}
    loads, stores = totals["Load Operations"], totals["Store Operations"]
    assert loads >= len(CLASSES) * MIN_CLASS_SAMPLES, f"{loads} loads, needs {len(CLASSES) * MIN_CLASS_SAMPLES}"
    for name in ("Load L1D hit", "Load L2D hit", "Load LLC hit", "Load Local DRAM"):
        assert about(totals[name], loads / len(CLASSES)), f"{totals[name]} of {name}, in {loads} loads of {len(CLASSES)} kinds"
    assert totals["Total records"] == loads + stores, f"{totals['Total records']} records, of them {loads} loads and {stores} stores"
    if not model_of(run).stores:
        assert stores == 0, f"{stores} stores"
        return f"{loads} loads"
    if model_of(run).stores == "tlb" and stores == 0:
        return f"{loads} loads; stores need the same counter, and their turn did not come"
    hits, misses = totals["Store L1D Hit"], totals["Store L1D Miss"]
    assert about(hits, ACCESSES / STORE_PERIOD), f"{hits} stores hit the L1, not {ACCESSES / STORE_PERIOD:.0f}"
    assert hits + misses == stores, f"{stores} stores, {misses} missed the L1"
    return f"{loads} loads, {stores} stores"


def calls_of(programs):
    return stepper.run(programs["calls"], programs["calls"].addresses_of("_start")[0])


def check_branches(run, programs):
    """The branches of each sample are the last ones before it, as many as the LBR holds."""
    check_opened(run, "branches")
    steps = calls_of(programs)
    places = range(BRANCH_PERIOD, len(steps.path), BRANCH_PERIOD + 1)
    samples = [line.split() for line in run.facts["branches"]]
    assert len(samples) == len(places) > 0, f"{len(samples)} samples, not {len(places)}"
    for number, (place, (ip, *branches)) in enumerate(zip(places, samples), 1):
        assert int(ip, 16) == steps.path[place], f"sample {number} is at {ip}, not {steps.path[place]:#x}"
        end = bisect.bisect_right(steps.branches, place, key=lambda branch: branch[0])
        expected = [f"{begin:#x}/{to:#x}" for _, begin, to in reversed(steps.branches[max(0, end - model_of(run).lbr_depth) : end])]
        assert branches == expected, f"sample {number} at {ip} has {' '.join(branches)}, not {' '.join(expected)}"
    return f"{len(samples)} samples of {model_of(run).lbr_depth} branches"


def check_stack(run, programs):
    """Whatever instruction is sampled, its callers are those of every time that it runs."""
    check_opened(run, "stack")
    steps = calls_of(programs)
    callers_of = dict(zip(steps.path, steps.callers))
    samples = [[int(address, 16) for address in line.split()] for line in run.facts["stack"]]
    assert len(samples) >= MIN_CLASS_SAMPLES, f"{len(samples)} samples, needs {MIN_CLASS_SAMPLES}"
    for ip, *callers in samples:
        assert ip in callers_of, f"calls has no instruction at {ip:#x}"
        assert tuple(callers) == callers_of[ip], f"{ip:#x} is called from {[hex(at) for at in callers]}, not {[hex(at) for at in callers_of[ip]]}"
    depths = sorted({len(sample) for sample in samples})
    assert len(depths) > 1, f"all stacks are {depths[0]} deep"
    return f"{len(samples)} stacks, {depths[0]} to {depths[-1]} deep"


def check_trace(run, programs):
    """Every branch that the program takes in user mode, in order."""
    check_opened(run, "trace")
    count, digest = run.first("traced").split()
    expected = "".join(f"{begin:x} {to:x}\n" for _, begin, to in calls_of(programs).branches)
    number = expected.count("\n")
    if int(count) == 0:
        raise Missing("no record of a branch is written")
    assert int(count) == number, f"{count} branches, not {number}"
    assert digest == hashlib.md5(expected.encode()).hexdigest(), f"{count} branches as expected, but not all of them are those of the program"
    return f"{number} branches"


def check_interrupts(run, _programs):
    """Rule V4: no NMI that nobody claims. Where Linux unmasks LVTPC first, an overflow before it stops the counters may cause an NMI whose work is
    done by then; Linux expects it."""
    check_opened(run, "pair")
    nmis, pmis, unclaimed = (int(number) for number in run.first("interrupts").split())
    assert pmis >= MIN_PMIS, f"{pmis} PMIs, needs {MIN_PMIS}"
    assert unclaimed == 0, f"{unclaimed} of {nmis} NMIs belonged to nobody"
    return f"{pmis} PMIs of {nmis} NMIs"


def check_offcore(run, programs):
    """LLC-loads, by OFFCORE_RESPONSE: what the loops through the L3 and memory load."""
    check_opened(run, "offcore")
    count = int(run.first("offcore-count") or 0)
    if count == 0:
        raise Missing("the event counts nothing")
    assert about(count, 2 * ACCESSES), f"{count} loads left the core, not about {2 * ACCESSES}"
    loops = {loop: set(programs["chase"].addresses_of(f"{loop}_load")) for loop in CLASSES}
    found = Counter()
    for number, ip in (line.split() for line in run.facts["offcore"]):
        found[next((loop for loop, body in loops.items() if int(ip, 16) in body), ip)] += int(number)
    for loop in ("l3", "memory"):
        assert found[loop] >= MIN_CLASS_SAMPLES, f"{found[loop]} samples in the loop {loop}, needs {MIN_CLASS_SAMPLES}"
    assert found["l3"] + found["memory"] >= MIN_CLASS_SHARE * found.total(), f"samples elsewhere: {found}"
    return f"{count} loads, {found['l3']} and {found['memory']} samples"


def check_frontend(run, programs):
    """FRONTEND_RETIRED: each line of programs/lines.S misses the decoded micro-op cache (event 11) and the L1 (12)."""
    lines = [address for address in programs["lines"].instructions if address % 64 == 0]
    for event in ("11", "12"):
        check_opened(run, f"frontend-{event}")
        samples = [int(address, 16) for (address,) in run.named("fetched", event)]
        if not samples:
            raise Missing("the event counts nothing")
        expected = LINES * LINES_ROUNDS / LINES_PERIOD
        assert about(len(samples), expected), f"event {event}: {len(samples)} samples, not about {expected:.0f}"
        wrong = [hex(address) for address in samples if address not in lines]
        assert not wrong, f"event {event}: sampled where no line begins: {', '.join(wrong[:4])}"
    return f"{len(samples)} samples, each where a line begins"


def check_uncore(run, _programs):
    """The uncore's driver finds the PMUs of the model; the uncore clock counts at its rate, and an event that nothing delivers counts nothing."""
    check_opened(run, "uncore")
    model = model_of(run)
    found = dict(line.split() for line in run.facts["uncore"])
    assert found.keys() == set(model.uncore), f"the uncore has the PMUs {' '.join(sorted(found))}, not {' '.join(sorted(model.uncore))}"
    counting = [name for name, count in found.items() if count != "0"]
    assert not counting, f"counts of events that nobody delivers: {' '.join(counting)}"
    clock, ticks, nanoseconds = (run.first("uncore-clock") or "").split()
    assert clock == model.uncore_clock, f"the uncore's clock is counted by {clock}, not {model.uncore_clock}"
    rate = int(ticks) / int(nanoseconds) * 1000 / float(run.first("tsc-mhz"))
    assert abs(rate - model.uncore_rate) <= UNCORE_TOLERANCE, f"the clock runs at {rate:.3f} of the TSC's rate, not {model.uncore_rate}"
    return f"{len(found)} PMUs, {rate:.4f} of the TSC's rate"


CHECKS = {
    ":p": lambda run, programs: check_precise(run, programs, "p"),
    ":pp": lambda run, programs: check_precise(run, programs, "pp"),
    ":ppp": lambda run, programs: check_precise(run, programs, "ppp"),
    "mem loads": check_loads,
    "mem stores": check_stores,
    "c2c": check_shared,
    "PMIs": check_interrupts,
    "-b": check_branches,
    "call-graph lbr": check_stack,
    "offcore": check_offcore,
    "frontend": check_frontend,
    "BTS": check_trace,
    "uncore": check_uncore,
}
# As guest/facilities.sh and guest/uncore.sh call them.
RECORDINGS = {":p": ["p"], ":pp": ["pp"], ":ppp": ["ppp"], "mem loads": ["loads"], "mem stores": ["stores"], "c2c": ["c2c"], "PMIs": ["pair"], "-b": ["branches"],
              "call-graph lbr": ["stack"], "offcore": ["offcore"], "frontend": ["frontend-11", "frontend-12"], "BTS": ["trace"],
              "uncore": ["uncore"]}


def check_refused(run, facility):
    """Linux and perf refuse what the processor lacks."""
    refused = {line.split()[0] for line in run.facts["refused"]}
    for name in RECORDINGS[facility]:
        assert name in refused, f"{name} was not refused"
        assert name not in run.facts["opened"], f"{name} was opened"


def judge(run, programs, facility):
    """The facility's entry in the table ("yes", the reason why there is none, or that it is missing), and a text for the log."""
    reason = model_of(run).lacks(facility)
    if reason:
        check_refused(run, facility)
        return reason, "refused"
    try:
        return "yes", CHECKS[facility](run, programs)
    except Missing as missing:
        return MISSING, str(missing)
    except (ValueError, IndexError, KeyError) as error:  # a garbled line is a failure of the run, not of the judge
        raise AssertionError(f"cannot read the log: {error!r}") from error
