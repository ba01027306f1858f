"""cycles of a pipeline, without KVM

Questions to a guest of each model:

LOOP: `perf stat` counts the cycles of a loop of programs/timed.S at two lengths. The difference for each round is what is known of such a CPU, within 5 %.
topdown-LOOP: where the issue slots of a loop go by top-down analysis, levels 1 and 2. metrics: that perf's own metrics of level 1 say the same of one.
memory-LOOP: what `perf stat -d -d` and the events of lines and page walks under way say of it.
loads-LOOP: from where `perf mem record` says its loads come, and how many cycles they take.
samples-LOOP: where `perf record -e cycles:upp` finds what a CPU waits for.
gigahertz: cycles for each second of CPU time.
"""

import dataclasses
import subprocess

import pytest

import fetched as files
import resumed
from paths import LINUX, PROGRAM

pytestmark = pytest.mark.seconds(60)

MODELS = ("ivybridge", "haswell", "skylake")
WITHIN = 0.05


@dataclasses.dataclass(frozen=True)
class Loop:
    """Cycles of a round of it: one figure, or one for each of MODELS; less what `less` takes. With `by_miss`, of a mispredicted branch."""

    cycles: tuple
    rounds: tuple = (5000, 50000)
    less: str = ""
    by_miss: bool = False
    within: float = WITHIN

    def known(self, model):
        return self.cycles[MODELS.index(model)] if len(self.cycles) > 1 else self.cycles[0]


def each(count, *cycles):
    return tuple(count * one for one in cycles)


# 248966 is Intel's Optimization Reference Manual (chapter 2, by the name of the micro-architecture; appendix C), InstLatX64 its published measurements.
LOOPS = {
    # 248966, appendix C: latencies of ADD and IMUL.
    "adds": Loop(each(8, 1)),
    "multiplications": Loop(each(8, 3)),
    # 248966, execution core: shifts have two ports, of which one is the loop's own branch's: 11 of them and the branch.
    "shifts": Loop((6,)),
    # 248966, load and store operations: two loads, one store a cycle.
    "loads": Loop(each(8, 1 / 2)),
    "stores": Loop(each(8, 1)),
    # 248966, rename: four fused micro-operations a cycle, here 7 and a fused pair.
    "issue": Loop(each(8, 1 / 4)),
    # uiCA (Abel and Reineke, 2022): two lines of the micro-op cache a cycle. So instructions of 10 bytes, 32 and a fused pair, are bound by the three ports of
    # Ivy Bridge (248966, execution core), and by issue.
    "windows": Loop((33 / 3, 33 / 4, 33 / 4)),
    # 248966, instruction fetch and predecode: 16 bytes a cycle.
    "decoding": Loop((3072 * 8 / 16,), rounds=(200, 1200)),
    # InstLatX64, DIV r64 1/1, whose both results are waited for, and the OR that joins them.
    "division_chain": Loop((32.0 + 1, 32.5 + 1, 37.8 + 1)),
    "divisions": Loop(each(8, 32.0 + 1, 32.5 + 1, 37.8 + 1), rounds=(1000, 10000)),
    # InstLatX64 and Agner Fog: a store that forwards to a load of the same general register.
    "forwarding": Loop(each(8, 5, 5, 4)),
    # Top-down analysis: 13 cycles for each LD_BLOCKS.STORE_FORWARD.
    "blocked": Loop(each(8, 13)),
    # 248966, table of load latencies, and what 4-KByte aliasing adds by top-down analysis' formula: 7 cycles for each LD_BLOCKS_PARTIAL.ADDRESS_ALIAS.
    "unaliased": Loop(each(8, 4)),
    "aliased": Loop(each(8, 7), less="unaliased"),
    # Agner Fog, "The microarchitecture of Intel, AMD and VIA CPUs": from 15 to 20.
    "random": Loop((17.5,), less="foreseen", by_miss=True, within=2.5 / 17.5, rounds=(10000, 60000)),
    "foreseen": Loop((4,)),
    # 248966, cache parameters; memory by vpmu/uarch/profiles.cpp: 53, 57 and 51 ns behind the L3, at 2.5 GHz.
    "chase_l1": Loop(each(8, 4)),
    "chase_l2": Loop(each(8, 12)),
    "chase_l3": Loop(each(8, 30, 34, 44), rounds=(5000, 20000)),
    "chase_memory": Loop(each(8, 162.5, 176.5, 171.5), rounds=(1000, 6000)),
    # 248966: ten fill buffers. They, and not the reorder buffer, bound 8 loads of 10 micro-operations.
    "overlapped": Loop(each(8, 162.5 / 10, 176.5 / 10, 171.5 / 10), rounds=(500, 12500)),
}


@dataclasses.dataclass(frozen=True)
class Samples:
    """At least this share of those within the loop are at its labels. A label is given with the bytes behind it that count, too."""

    rounds: int
    share: float
    places: tuple
    periods: tuple = (50021,)


SAMPLES = {
    # In the model Ivy Bridge waits for it in 28 of a round's 31 cycles, Haswell in 29 of 32: nine tenths. Behind a sample's interrupt the loop starts anew: with one period all samples
    # are of the same one of these cycles.
    "division": Samples(12500, 0.85, (("at_division", 1),), tuple(range(50021, 50053, 2))),
    "miss": Samples(15000, 0.9, (("at_miss", 1),)),
    # Behind a mispredicted branch: what retires first, whichever way it goes: a NOP, or a fused pair, for which Linux takes its branch where records have
    # no EventingIP. The rest is on the chain that the branch waits for.
    "random": Samples(300000, 0.55, (("behind_random", 5),)),
}

@dataclasses.dataclass(frozen=True)
class TopDown:
    """Most of its issue slots are of this part, level 1, and most of these are for this reason, level 2."""

    part: str
    rounds: tuple
    reason: str


TOP_DOWN = {
    "issue": TopDown("retiring", (5000, 50000), "base"),
    "footprint": TopDown("front end", (2, 6), "latency"),
    "constants": TopDown("front end", (200, 1200), "bandwidth"),
    "random": TopDown("bad speculation", (10000, 60000), "mispredictions"),
    "chase_memory": TopDown("back end", (1000, 6000), "memory"),
    "stream": TopDown("back end", (1000, 12000), "memory"),
    "blocked": TopDown("back end", (1000, 10000), "memory"),
    "divisions": TopDown("back end", (1000, 10000), "core"),
}
# A. Yasin, "A Top-Down Method for Performance Analysis", ISPASS 2014, tables 1 and 2. The back end is memory bound for the cycles in which nothing is executed
# while a load waits.
SLOTS = ("cycles", "idq_uops_not_delivered.core", "uops_issued.any", "uops_retired.retire_slots", "int_misc.recovery_cycles")
REASONS = ("idq_uops_not_delivered.cycles_0_uops_deliv.core", "br_misp_retired.all_branches", "machine_clears.smc")
MICROCODE = ("idq.ms_uops",)
MEMORY = {"ivybridge": "cycle_activity.stalls_ldm_pending", "haswell": "cycle_activity.stalls_ldm_pending", "skylake": "cycle_activity.stalls_mem_any"}
ISSUE_WIDTH = 4


@dataclasses.dataclass(frozen=True)
class Memory:
    """Of a round, the least and the most of each event."""

    rounds: tuple
    bounds: dict


# `perf stat -d -d`, by Linux' own names; L1D_PEND_MISS, which is lines under way, and cycles with some; page walks, and their cycles.
ALL_LOADS = ("L1-dcache-loads", "L1-dcache-load-misses", "LLC-loads", "LLC-load-misses", "dTLB-loads", "dTLB-load-misses")
# Both of L1D_PEND_MISS have one counter on some CPUs.
LINES = ("l1d_pend_miss.pending", "offcore_requests.demand_data_rd", "l1d_pend_miss.pending_cycles", "offcore_requests_outstanding.demand_data_rd")
WALKS = {"ivybridge": ("dtlb_load_misses.walk_completed", "dtlb_load_misses.walk_duration"),
         "haswell": ("dtlb_load_misses.walk_completed", "dtlb_load_misses.walk_duration"),
         "skylake": ("dtlb_load_misses.walk_completed", "dtlb_load_misses.walk_pending")}
NONE, EACH = (-0.1, 0.3), (7.6, 8.5)
# A line of memory is under way for what LOOPS has for one; a page walk loads one entry at least, and the first look-up takes 7 cycles.
LINES_OF_MEMORY, LINES_OF_L3 = (8 * 150, 8 * 190), (8 * 22, 8 * 45)
MEMORY_OF = {
    "chase_l1": Memory((5000, 50000), {"L1-dcache-loads": EACH, "L1-dcache-load-misses": NONE, "LLC-loads": NONE, "LLC-load-misses": NONE, "lines": NONE}),
    "chase_l2": Memory((5000, 50000), {"L1-dcache-loads": EACH, "L1-dcache-load-misses": EACH, "LLC-loads": NONE, "LLC-load-misses": NONE, "reads": NONE}),
    "chase_l3": Memory((5000, 20000), {"L1-dcache-loads": EACH, "L1-dcache-load-misses": EACH, "LLC-loads": EACH, "LLC-load-misses": NONE,
                                       "dTLB-load-misses": NONE, "lines": LINES_OF_L3, "at a time": (0.99, 1.01), "reads": EACH}),
    "chase_memory": Memory((1000, 6000), {"L1-dcache-loads": EACH, "L1-dcache-load-misses": EACH, "LLC-loads": EACH, "LLC-load-misses": EACH, "dTLB-loads": EACH,
                                          "dTLB-load-misses": NONE, "lines": LINES_OF_MEMORY, "at a time": (0.99, 1.01), "reads": EACH, "walks": NONE}),
    # 248966: ten fill buffers.
    "overlapped": Memory((500, 12500), {"LLC-load-misses": EACH, "lines": LINES_OF_MEMORY, "at a time": (9, 10)}),
    "walks": Memory((5000, 20000), {"L1-dcache-loads": EACH, "dTLB-loads": EACH, "dTLB-load-misses": EACH, "walks": EACH, "a walk": (11, 40)}),
}


@dataclasses.dataclass(frozen=True)
class Loads:
    """Where most of a loop's come from, by perf's names, and their median weight: the least and the most, in cycles, or what LOOPS has for one of the 8 of a loop, or this and at least and at most so much more."""

    rounds: int
    level: str
    weight: object
    tlb: str = "L1 or L2 hit"
    period: int = 47


# 248966, cache parameters, and LOOPS for memory. The latency of a load is its own, without what a store holds it up for.
LOADS_OF = {
    "chase_l1": Loads(2000, "L1", "chase_l1"),
    "chase_l2": Loads(2000, "L2", "chase_l2"),
    "chase_l3": Loads(2000, "L3", "chase_l3"),
    "chase_memory": Loads(2000, "Local RAM", "chase_memory"),
    "overlapped": Loads(2000, "Local RAM", "chase_memory"),
    # Most lines are on their way when they are loaded; the L2 has those that the streamer was far enough ahead for, as it is behind each interrupt. So the
    # interrupts are far apart, and 503 loads meet each of a round's and of a page's lines.
    "stream": Loads(12000, "Local RAM", (10, 185), period=502),
    "walks": Loads(8000, "Local RAM", ("chase_memory", 11, 40), "L2 miss"),  # a walk takes so many besides
    "blocked": Loads(2000, "L1", "chase_l1"),
}
LEAST_SAMPLES = 21
AGAIN = ("adds", "random", "chase_l3", "decoding")

# $1: a loop; $2: rounds. Before a loop is measured it runs once, so that the caches have its file.
SCRIPT = """set -e
took() { perf stat -x, -e cycles:u,branch-misses:u -o stat ./timed $1 $2; awk -F, -v n="took $1 $2" 'NF > 2 { n = n " " $1 } END { print n }' stat; }
counted() {
  perf stat -x, -e "$3" -o stat ./timed $1 $2
  awk -F, -v n="${4:-counted} $1 $2" 'NF > 2 { n = n " " $1 } END { print n }' stat
}
metrics() {
  perf stat -x, -M TopdownL1 -o stat ./timed $1 $2
  awk -F, '{ for (i = 2; i <= NF; i++) if ($i ~ /tma_/) { sub(/.*tma_/, "", $i); print "metric", $i, $(i - 1) } }' stat
}
samples() {
  perf record -q -e cycles:upp -c $3 -o data ./timed $1 $2 >/dev/null
  perf script -F ip -i data | awk -v n="sampled $1" '{ print n, $1 }'
}
loads() {
  perf record -q -d -W -e cpu/mem-loads,ldlat=3/upp -c $3 -o data ./timed $1 $2 >/dev/null
  perf script -F ip,weight,data_src -i data | awk -v n="load $1" '{ print n, $0 }'
}
gigahertz() {
  perf stat -x, -e cycles,task-clock -o stat ./timed adds 2000000
  awk -F, '$3 == "cycles" { c = $1 } $3 == "task-clock" { t = $1 } END { print "gigahertz", c / t / 1e6 }' stat
  awk '/^cpu MHz/ { print "nominal", $4 / 1000; exit }' /proc/cpuinfo
}
cd /tmp
cp "$0" timed
"""


class Guest:
    """What one guest of a model is asked, and what it says."""

    def __init__(self, timed, kernel, model):
        self.timed, self.kernel, self.model, self.lines, self.said, self.errors = timed, kernel, model, [], None, ""

    def another(self):
        """Of the same model, for questions of its own."""
        return Guest(self.timed, self.kernel, self.model)

    def ask(self, *lines):
        self.lines += [line for line in lines if line not in self.lines]

    def run(self, *options):
        words = [PROGRAM, "exec", "--accel", "soft", "--kernel", self.kernel, "--model", self.model, "--time", "pipeline", *options]
        done = subprocess.run([*words, "--", "sh", "-c", SCRIPT + "\n".join(self.lines), self.timed.path], env=files.environment(), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr:.300}"
        self.errors = done.stderr
        return [line.split() for line in done.stdout.splitlines()]

    def all_of(self, *begin):
        if self.said is None:
            self.said = ()  # one that fails is not asked again
            self.said = self.run()
        found = [line[len(begin):] for line in self.said if line[:len(begin)] == list(begin)]
        assert found, f"the guest says nothing of {' '.join(begin)}"
        return found

    def took(self, loop):
        """Cycles and mispredicted branches of a round."""
        few, many = LOOPS[loop].rounds
        at = [[int(word) for word in self.all_of("took", loop, str(rounds))[-1]] for rounds in (few, many)]
        return [(more - less) / (many - few) for less, more in zip(*at)]


class Timed:
    """The program with the loops, and where they are."""

    def __init__(self, directory):
        self.path = directory / "timed"
        subprocess.run(["gcc", "-static", "-nostdlib", LINUX / "programs/timed.S", "-o", self.path], check=True)
        symbols = subprocess.run(["nm", self.path], capture_output=True, text=True, check=True).stdout.splitlines()
        self.symbols = {name: int(at, 16) for at, _, name in (line.split() for line in symbols)}


def loop_takes(name):
    loop = LOOPS[name]

    def ask(guest):
        for one in filter(None, (name, loop.less)):
            few, many = LOOPS[one].rounds
            guest.ask(f"./timed {one} {few}", f"took {one} {few}", f"took {one} {many}")

    def judge(guest):
        cycles, misses = guest.took(name)
        if loop.less:
            cycles -= guest.took(loop.less)[0]
        if loop.by_miss:
            assert 0.4 < misses < 0.6, f"{misses:.3f} mispredicted branches a round"
            cycles /= misses
        known = loop.known(guest.model)
        said = f"{cycles:.3f} cycles, known {known:.3f}"
        assert abs(cycles / known - 1) <= loop.within, said

    return ask, judge


def slots_are_of(name):
    of = TOP_DOWN[name]

    def ask(guest):
        # The caches know of nothing that was not counted.
        guest.ask(f"perf stat -e cycles -o stat ./timed {name} {of.rounds[0]}")
        for some in (SLOTS, (*REASONS, MEMORY[guest.model]), MICROCODE):
            names = ",".join(f"{event}:u" for event in some)
            guest.ask(*(f"counted {name} {rounds} {names}" for rounds in of.rounds))

    def judge(guest):
        few, many = ([int(word) for line in guest.all_of("counted", name, str(rounds)) for word in line] for rounds in of.rounds)
        differences = (after - before for before, after in zip(few, many, strict=True))
        cycles, not_delivered, issued, retired, recovery, nothing_delivered, mispredictions, clears, for_memory, microcode = differences
        slots = ISSUE_WIDTH * cycles
        parts = {"retiring": retired, "front end": not_delivered, "bad speculation": issued - retired + ISSUE_WIDTH * recovery}
        parts["back end"] = slots - sum(parts.values())
        said = ", ".join(f"{part} {100 * share / slots:.0f} %" for part, share in parts.items())
        part = max(parts, key=parts.get)
        reason = {"retiring": "microcode" if 2 * microcode > retired else "base",
                  "front end": "latency" if 2 * ISSUE_WIDTH * nothing_delivered > not_delivered else "bandwidth",
                  "bad speculation": "mispredictions" if mispredictions > clears else "clears",
                  "back end": "memory" if for_memory > cycles / 2 else "core"}[part]
        said += f": {part}, {reason}"
        assert min(parts.values()) >= -0.02 * slots and (part, reason) == (of.part, of.reason), said

    return ask, judge


def memory_is_told_of(name):
    of = MEMORY_OF[name]

    def groups(guest):
        # On clients up to Ivy Bridge, Linux refuses LLC-load-misses: its value has bits that only servers have.
        return {"-d": ALL_LOADS[:2], "-d -d": ALL_LOADS[2:3] if guest.model == "ivybridge" else ALL_LOADS[2:4], "tlb": ALL_LOADS[4:], "lines": LINES[:2], "cycles": LINES[2:], "walks": WALKS[guest.model]}

    def ask(guest):
        guest.ask(f"perf stat -e cycles -o stat ./timed {name} {of.rounds[0]}")
        for some in groups(guest).values():
            names = ",".join(f"{event}:u" for event in some)
            guest.ask(*(f"counted {name} {rounds} {names} memory" for rounds in of.rounds))

    def judge(guest):
        few, many = ([int(word) for line in guest.all_of("memory", name, str(rounds)) for word in line] for rounds in of.rounds)
        events = [event for some in groups(guest).values() for event in some]
        seen = {event: (after - before) / (of.rounds[1] - of.rounds[0]) for event, before, after in zip(events, few, many, strict=True)}
        lines, reads, cycles, outstanding = (seen[event] for event in LINES)
        walks, walked = (seen[event] for event in WALKS[guest.model])
        seen |= {"lines": lines, "at a time": lines / cycles if cycles else 0, "reads": reads, "walks": walks, "a walk": walked / walks if walks else 0}
        bounds = {event: bound for event, bound in of.bounds.items() if event in seen}
        said = ", ".join(f"{event} {seen[event]:.2f}" for event in bounds)
        wrong = [event for event, (least, most) in bounds.items() if not least <= seen[event] <= most]
        assert not wrong, f"{', '.join(wrong)} of {said}"
        assert outstanding <= lines * 1.01 + 1 and seen.get("LLC-load-misses", 0) <= seen["LLC-loads"] + 0.1, f"{outstanding:.1f} outstanding; {said}"

    return ask, judge


def metrics_say_so(guest):
    seen = {line[0]: float(line[1]) for line in guest.all_of("metric")}
    assert set(seen) == {"retiring", "frontend_bound", "bad_speculation", "backend_bound"}
    # Some CPUs need more counters than they have for all of them, and perf takes turns.
    assert abs(sum(seen.values()) - 100) <= 5 and seen["backend_bound"] >= 90, seen


def samples_are_at(name):
    of = SAMPLES[name]

    def judge(guest):
        symbols = guest.timed.symbols
        begin, end = symbols[f"loop_{name}"], symbols[f"end_{name}"]
        seen = [at for at in (int(line[0], 16) for line in guest.all_of("sampled", name)) if begin <= at < end]
        there = sum(any(symbols[label] <= at < symbols[label] + size for label, size in of.places) for at in seen)
        assert len(seen) >= LEAST_SAMPLES and there > of.share * len(seen), f"{there} of {len(seen)} samples"

    return lambda guest: guest.ask(*(f"samples {name} {of.rounds} {period}" for period in of.periods)), judge


def loads_come_from(name):
    of = LOADS_OF[name]

    def judge(guest):
        begin, end = guest.timed.symbols[f"loop_{name}"], guest.timed.symbols[f"end_{name}"]
        # "... |OP LOAD|LVL L3 or L3 hit|...|TLB L1 or L2 hit|... WEIGHT IP"
        seen = [" ".join(line) for line in guest.all_of("load", name) if begin <= int(line[-1], 16) < end]
        weights = sorted(int(line.split()[-2]) for line in seen if f"|LVL {of.level}" in line and f"|TLB {of.tlb}|" in line)
        if isinstance(of.weight, str):
            least, most = (LOOPS[of.weight].known(guest.model) / 8 * (1 + by) for by in (-WITHIN, WITHIN))
        elif isinstance(of.weight[0], str):
            least, most = (int(LOOPS[of.weight[0]].known(guest.model) / 8) + more for more in of.weight[1:])  # a weight has no fraction
        else:
            least, most = of.weight
        median = weights[len(weights) // 2] if weights else 0
        said = f"{len(weights)} of {len(seen)} samples, median weight {median}"
        assert len(seen) >= LEAST_SAMPLES and len(weights) >= 0.8 * len(seen) and least <= median <= most, said + "; " + "; ".join(seen[:3])

    return lambda guest: guest.ask(f"loads {name} {of.rounds} {of.period}"), judge


def gigahertz(guest):
    seen, nominal = (float(guest.all_of(word)[0][0]) for word in ("gigahertz", "nominal"))
    assert abs(seen / nominal - 1) <= 0.02, f"{seen:.3f} GHz, not {nominal:.3f}"


# What the guest of a model is asked, and what its answers have to be. All questions of a model have one guest.
QUESTIONS = {
    **{loop: loop_takes(loop) for loop in LOOPS},
    **{f"topdown-{loop}": slots_are_of(loop) for loop in TOP_DOWN},
    **{f"memory-{loop}": memory_is_told_of(loop) for loop in MEMORY_OF},
    **{f"loads-{loop}": loads_come_from(loop) for loop in LOADS_OF},
    **{f"samples-{loop}": samples_are_at(loop) for loop in SAMPLES},
    "metrics": (lambda guest: guest.ask("metrics chase_memory 60000"), metrics_say_so),
    "gigahertz": (lambda guest: guest.ask("gigahertz"), gigahertz),
}


@pytest.fixture(scope="module", params=MODELS)
def guest(request, fetched, tmp_path_factory):
    asked = Guest(Timed(tmp_path_factory.mktemp("timed")), fetched, request.param)
    for item in request.session.items:
        given = getattr(item, "callspec", None)
        if item.path == request.path and given and given.params.get("guest") == request.param:
            QUESTIONS[given.params["question"]][0](asked)
    return asked


@pytest.mark.sample_tests(3)
@pytest.mark.parametrize("question", QUESTIONS)
def test_of(guest, question):
    QUESTIONS[question][1](guest)


OF_EACH_MODEL = pytest.mark.parametrize("guest_alone", MODELS, indirect=True)


@pytest.fixture
def guest_alone(request, fetched, tmp_path):
    return Guest(Timed(tmp_path), fetched, request.param)


def two_cpus(guest_alone):
    """A CPU whose instructions take long has as much of the time as another."""
    of_two = guest_alone.another()
    of_two.ask("for n in 0 1; do loop=$(echo chase_memory adds | cut -d' ' -f$((n + 1))); "
               "taskset $((n + 1)) perf stat -x, -e cycles,task-clock -o stat$n ./timed $loop $((n * 990000 + 10000)) & done; wait",
               "for n in 0 1; do awk -F, '$3 == \"cycles\" { c = $1 } $3 == \"task-clock\" { t = $1 } END { print \"gigahertz\", c / t / 1e6 }' stat$n; done",
               "awk '/^cpu MHz/ { print \"nominal\", $4 / 1000; exit }' /proc/cpuinfo")
    of_two.said = of_two.run("--cpus", "2")
    seen, nominal = [float(line[0]) for line in of_two.all_of("gigahertz")], float(of_two.all_of("nominal")[0][0])
    assert len(seen) == 2 and all(abs(one / nominal - 1) <= 0.05 for one in seen), f"{seen} GHz, not {nominal:.3f}"


def two_threads(guest_alone):
    """Two threads of a core take turns with what both want of it, issue slots, and not with what one leaves idle while it waits for itself."""
    of_two = guest_alone.another()
    for loop in ("issue", "adds"):
        run = f"perf stat -x, -e cycles:u -o stat$n ./timed {loop} 2000000"
        of_two.ask(f"n=alone; taskset 1 {run}; for n in 0 1; do taskset $((n + 1)) {run} & done; wait; "
                   f"for n in alone 0 1; do awk -F, 'NF > 2 {{ print \"{loop}\", $1 }}' stat$n; done")
    of_two.said = of_two.run("--cpus", "2", "--threads", "2")
    ratios = {}
    for loop in ("issue", "adds"):
        alone, *both = (int(line[0]) for line in of_two.all_of(loop))
        ratios[loop] = [one / alone for one in both]
    said = ", ".join(f"{loop} {one:.2f} and {other:.2f} times" for loop, (one, other) in ratios.items())
    assert all(1.6 < ratio < 2.1 for ratio in ratios["issue"]) and all(0.95 < ratio < 1.2 for ratio in ratios["adds"]), said


def own_part(guest_alone):
    """With --set, memory takes the cycles that were given, a smaller L3 no longer has a loop's data, CPUID tells its size, cycles for each second are as many as were given, and vpmu names all of it."""
    loops = ("chase_l3", "chase_memory")
    part = guest_alone.another()
    part.ask(*(f"took {name} {rounds}" for name in loops for rounds in LOOPS[name].rounds),
             "echo l3 $(cat /sys/devices/system/cpu/cpu0/cache/index3/size)", "gigahertz")
    part.said = part.run("--set", "dram=300", "--set", "l3=1M,mhz=3600")
    named = f"vpmu: the model is {guest_alone.model} with l3=1M,dram=300,mhz=3600"
    assert part.errors.splitlines().count(named) == 1, f"it does not say once \"{named}\": {part.errors:.300}"
    size = part.all_of("l3")[0][0]
    assert size == "1024K", f"the guest sees an L3 of {size}"
    cycles = {name: part.took(name)[0] / 8 for name in loops}  # of a load
    gigahertz = float(part.all_of("gigahertz")[0][0])
    said = ", ".join(f"{name} {took:.1f} cycles" for name, took in cycles.items()) + f", {gigahertz:.3f} GHz"
    # A page walk may come on top; of 2 MiB, half may be in 1 MiB.
    assert 300 * (1 - WITHIN) < cycles["chase_memory"] < 300 * (1 + WITHIN) and cycles["chase_l3"] >= 120 and abs(gigahertz / 3.6 - 1) <= 0.02, said


@pytest.mark.sample(1)
@OF_EACH_MODEL
@pytest.mark.parametrize("question", [two_cpus, two_threads, own_part])
def test_alone(guest_alone, question):
    question(guest_alone)


@pytest.mark.sample(1)
@OF_EACH_MODEL
def test_same_again(guest_alone):
    """Another run, which is not compiled, counts the same. (The guest that is saved and restored is compiled both times.)"""
    again = guest_alone.another()
    again.ask(*(f"took {name} {LOOPS[name].rounds[0]}" for name in AGAIN), "gigahertz")
    first, other = (again.run(*options) for options in ((), ("--no-jit",)))
    assert len(first) == len(AGAIN) + 2 and other == first, f"{first}, then {other}"


def test_of_a_guest_that_is_saved_and_restored(fetched, images, tmp_path):
    """It has a memory and an L3 of its own."""
    guest = resumed.Guest(tmp_path, fetched, images / "initramfs.img", time="pipeline", changes="l3=1M,dram=300", script="cycles", cpus=4, threads=2)
    resumed.does_the_same_in_parts(guest, parts=6, behind_percent=70)
