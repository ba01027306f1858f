"""The judge's checks of counts that are known."""


COUNTED_ROUNDS = 100_000  # of the loop in programs/counted.S
COUNTED_EVENTS = {"instructions:u": 5 * COUNTED_ROUNDS + 5, "branches:u": COUNTED_ROUNDS + 1}
HOST_COUNT_TOLERANCE = 0.001
MIXED_EVENTS = ("instructions", "branches", "loads", "stores")
MIXED_CONDITIONAL = 20 * 18  # of programs/mixed.S
MIXED_RUNS = 100  # of guest/exact.sh
COUNTED_PERIOD = 1003  # of guest/exact.sh: not a multiple of the loop's length


def check_count(run, _programs, event):
    """perf stat, twice: the number is known and is the same each time."""
    counts = [int(count) for count, in run.named("count", event)]
    assert len(counts) == 2, f"{len(counts)} counts of {event}, not 2"
    expected = COUNTED_EVENTS[event]
    assert counts == [expected, expected], f"{event} counted {counts}, not {expected} twice"
    return f"{expected} twice"


def check_count_nearly(run, _programs, event):
    """Like check_count, on a host that may also count the return from an interrupt."""
    counts = [int(count) for count, in run.named("count", event)]
    assert len(counts) == 2, f"{len(counts)} counts of {event}, not 2"
    expected = COUNTED_EVENTS[event]
    worst = max(abs(count - expected) for count in counts)
    assert worst <= HOST_COUNT_TOLERANCE * expected, f"{event} counted {counts}, which is up to {worst} off {expected}"
    return f"{counts[0]} and {counts[1]} of {expected}"


def check_as_qemu(run, _programs, event):
    """perf stat, twice, counts what QEMU counts: a repeated string instruction is one instruction to both, and SYSCALL one branch."""
    counts = [int(count) for count, in run.named("mixed", event)]
    theirs = [int(count) for name, count in run.named("qemu-count", "mixed") if name == event]
    assert len(theirs) == 1 and theirs[0] > 0, f"{len(theirs)} counts of {event} by QEMU, not 1"
    assert counts == theirs * 2, f"{event} counted {counts}, not {theirs[0]} twice as by QEMU"
    return f"{theirs[0]} twice, as by QEMU"


def check_same_each_time(run, _programs):
    """rr's condition for a usable counter: conditional branches are the same in each run, whatever else runs."""
    counts = [int(count) for count in run.facts["conditional"]]
    assert len(counts) == MIXED_RUNS, f"{len(counts)} runs, not {MIXED_RUNS}"
    different = sorted(set(counts))
    assert different == [MIXED_CONDITIONAL], f"conditional branches counted {different}, not {MIXED_CONDITIONAL} each time"
    return f"{MIXED_CONDITIONAL} conditional branches, {MIXED_RUNS} times"


def counted_path(program):
    """The addresses of programs/counted.S in the order in which they run."""
    before = program.addresses_of("_start")
    loop = program.addresses_of("counted_loop")
    return before + loop * COUNTED_ROUNDS + program.addresses_of("counted_end")


def check_precise_order(run, programs):
    """Rule P1: the record is for the first instruction after the overflow, so sample k is instruction k * (period + 1)."""
    path = counted_path(programs["counted"])
    assert len(path) == COUNTED_EVENTS["instructions:u"], f"counted has {len(path)} instructions"
    samples = [int(address, 16) for address in run.facts["sample"]]
    expected = path[COUNTED_PERIOD :: COUNTED_PERIOD + 1]
    assert len(samples) == len(expected), f"{len(samples)} samples, not {len(expected)}"
    for number, (sample, wanted) in enumerate(zip(samples, expected), 1):
        assert sample == wanted, f"sample {number} is at {sample:#x}, not {wanted:#x}"
    return f"{len(samples)} samples, each at its instruction"
