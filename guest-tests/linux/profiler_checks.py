"""The checks of guest/profilers.sh: what likwid, pcm and PAPI count of programs whose every instruction is known."""

from dataclasses import dataclass

from disassembly import operands

COUNTED = {"instructions": 500_005, "branches": 100_001, "loads": 100_000, "stores": 100_000}  # of programs/counted.S
REGION = {"instructions": 500_000, "branches": 100_000, "loads": 100_000, "stores": 100_000}  # of programs/regions.c, each time more
LOOP8 = {"Instructions": 9 * 120_000_000 + 6, "Event0": 120_000_000 + 3}  # of programs/loop8.S
# likwid and its daemon run on the same CPU, in user mode as well. pcm counts the kernel too.
LIKWIDS_OWN = {"instructions": 10_000, "branches": 2_000, "loads": 3_000, "stores": 2_000}
PCMS_OWN = 0.005
PAPIS_OWN = {"instructions": 500, "branches": 100}
PAPI_RUNS = 100
PAPI_FUNCTIONS = {"instructions_million": 499_999, "instructions_fldcw": 100_000, "instructions_rep": 1000}  # rounds of the loop of each
PAPI_BRANCHES = 3 * 500_000 + 1  # of branches_testcode(), with its return
PAPI_EVENTS = ("PAPI_TOT_INS", "PAPI_TOT_CYC", "PAPI_BR_INS", "PAPI_LD_INS", "PAPI_SR_INS", "PAPI_BR_MSP")
GROUP = ("INSTR_RETIRED_ANY", "CPU_CLK_UNHALTED_CORE", "BR_INST_RETIRED_ALL_BRANCHES", "BR_MISP_RETIRED_ALL_BRANCHES")
SAME_TO = 5.1e-5  # likwid prints four decimals


@dataclass(frozen=True)
class Profiled:
    """A model as these tools know it."""

    loads: str
    stores: str
    papi_counters: int  # PAPI adds the fixed ones to those that the model has without SMT

    def event(self, kind):
        return {"instructions": "INSTR_RETIRED_ANY", "branches": "BR_INST_RETIRED_ALL_BRANCHES", "loads": self.loads, "stores": self.stores}[kind]


MODELS = {
    "westmere": Profiled("MEM_INST_RETIRED_LOADS", "MEM_INST_RETIRED_STORES", 7),
    "haswell": Profiled("MEM_UOPS_RETIRED_LOADS", "MEM_UOPS_RETIRED_STORES", 11),
}


def model_of(run):
    words = (run.first("model") or "").split()
    assert words and words[0] in MODELS, f"no such model: {words}"
    return MODELS[words[0]]


def one(lines, what):
    assert len(lines) == 1, f"{len(lines)} counts of {what}, not 1"
    return int(float(lines[0]))


def likwid(run, what, kind):
    event = model_of(run).event(kind)
    return one([count for name, count in run.named("likwid", what) if name == event and count != "-"], f"{event} in {what}")


def check_likwid_run(run, _programs, kind):
    count = likwid(run, "run", kind)
    more = count - COUNTED[kind]
    assert 0 <= more <= LIKWIDS_OWN[kind], f"counted {count} {kind}, not {COUNTED[kind]} to {COUNTED[kind] + LIKWIDS_OWN[kind]}"
    return f"{count}, {more} of them likwid's own"


def check_likwid_marker(run, _programs, kind):
    """What likwid itself executes in the region is the same each time, so that differences between counts are exactly the loop's."""
    counts = [likwid(run, times, kind) for times in "123"]
    differences = [after - before for before, after in zip(counts, counts[1:])]
    assert differences == [REGION[kind]] * 2, f"counted {counts} {kind}, which are {differences} more each time, not {REGION[kind]}"
    assert 0 <= counts[0] - REGION[kind] <= LIKWIDS_OWN[kind], f"counted {counts[0]} {kind}, not {REGION[kind]} to {REGION[kind] + LIKWIDS_OWN[kind]}"
    return f"{counts}, {REGION[kind]} more each time"


def check_likwid_group(run, _programs):
    instructions, cycles, branches, missed = (one([count for count, in run.named("branch-group", name)], name) for name in GROUP)
    for kind, count in (("instructions", instructions), ("branches", branches)):
        assert 0 <= count - COUNTED[kind] <= LIKWIDS_OWN[kind], f"counted {count} {kind}, not {COUNTED[kind]} to {COUNTED[kind] + LIKWIDS_OWN[kind]}"
    assert 0 < missed < LIKWIDS_OWN["branches"], f"{missed} branches mispredicted"
    expected = {"CPI": cycles / instructions, "Branch rate": branches / instructions, "Branch misprediction rate": missed / instructions,
                "Branch misprediction ratio": missed / branches, "Instructions per branch": instructions / branches}
    metrics = dict(reversed(line.split(" ", 1)) for line in run.facts["branch-metric"])
    for name, value in expected.items():
        assert name in metrics, f"no metric {name}"
        assert abs(float(metrics[name]) - value) <= SAME_TO, f"{name} is {metrics[name]}, not {value:.4f}"
    return ", ".join(f"{name} {metrics[name]}" for name in expected)


def check_pcm(run, _programs, way, event):
    model_of(run)
    count = one([count for name, count in run.named("pcm", way) if name == event], f"{event} by {way}")
    least = LOOP8[event]
    assert least <= count <= least * (1 + PCMS_OWN), f"counted {count}, not {least} to {least * (1 + PCMS_OWN):.0f}"
    return f"{count}, {100 * (count / least - 1):.2f} % of them not the program's"


def check_papi_counters(run, _programs):
    expected = model_of(run).papi_counters
    lines = [line for line in run.facts["papi-avail"] if line.startswith("Number Hardware Counters")]
    assert len(lines) == 1, f"{len(lines)} lines tell the number of counters, not 1"
    assert int(lines[0].split(":")[1]) == expected, f"{lines[0]}, not {expected}"
    return str(expected)


def check_papi_events(run, _programs):
    available = {line.split()[0] for line in run.facts["papi-avail"] if line.startswith("PAPI_") and line.split()[2] == "Yes"}
    missing = sorted(set(PAPI_EVENTS) - available)
    assert not missing, f"not available: {', '.join(missing)}"
    return " ".join(PAPI_EVENTS)


def executed(program, function, rounds):
    """How many instructions a call of a function executes that has one loop in it."""
    addresses = program.addresses_of(function)
    jumps = [(at, int(parts[0].split()[0], 16)) for at in addresses for mnemonic, parts in [operands(program.instructions[at])] if mnemonic in ("jne", "loop")]
    assert len(jumps) == 1, f"{function} has {len(jumps)} loops"
    (last, first), = jumps
    return len(addresses) + (rounds - 1) * sum(first <= at <= last for at in addresses)


def papi_lows(run, name):
    """The lowest count of each loop of a test, of which all runs but the first have it."""
    lines = [words for words in run.named("papi", name) if words[0] == "High:"]
    lows = []
    for _, high, _, low, _, average in lines:
        high, low, average = int(high), int(low), int(average)
        assert average == ((PAPI_RUNS - 1) * low + high) // PAPI_RUNS, f"counts from {low} to {high}, {average} in the middle: more than one is not {low}"
        lows.append(low)
    return lows


def check_papi_instructions(run, programs):
    """PAPI's own part in user mode is the same around each loop."""
    expected = [executed(programs["papi_tot_ins"], function, rounds) for function, rounds in PAPI_FUNCTIONS.items()]
    lows = papi_lows(run, "papi_tot_ins")
    assert len(lows) == len(expected), f"{len(lows)} loops, not {len(expected)}"
    more = [low - known for low, known in zip(lows, expected)]
    assert len(set(more)) == 1 and 0 < more[0] <= PAPIS_OWN["instructions"], f"counted {lows} of {expected}: {more} more"
    assert ["PASSED"] in run.named("papi", "papi_tot_ins"), "the test says that it failed"
    return f"{lows}, {more[0]} of each PAPI's own"


def check_papi_branches(run, _programs):
    lows = papi_lows(run, "papi_br_ins")
    assert len(lows) == 1, f"{len(lows)} loops, not 1"
    more = lows[0] - PAPI_BRANCHES
    assert 0 < more <= PAPIS_OWN["branches"], f"counted {lows[0]} of {PAPI_BRANCHES}"
    assert ["PASSED"] in run.named("papi", "papi_br_ins"), "the test says that it failed"
    return f"{lows[0]}, {more} of them PAPI's own"


def profilers_checks(_baseline):
    for kind in COUNTED:
        yield f"likwid-{kind}", check_likwid_run, (kind,)
        yield f"likwid-marker-{kind}", check_likwid_marker, (kind,)
    yield "likwid-group", check_likwid_group, ()
    for way in ("msr", "perf"):
        yield f"pcm-instructions-{way}", check_pcm, (way, "Instructions")
        yield f"pcm-branches-{way}", check_pcm, (way, "Event0")
    yield "papi-counters", check_papi_counters, ()
    yield "papi-events", check_papi_events, ()
    yield "papi-tot-ins", check_papi_instructions, ()
    yield "papi-br-ins", check_papi_branches, ()
