"""The checks of guest/selfcount.sh: what a program counts of itself by perf_event_open, signals and RDPMC."""


LOOP = 1_000_000  # of programs/selfcount.c
PERIOD = 100_000
SAMPLES = 99  # of a loop, one in 10,007 instructions, or in 10,008 with PEBS
FROM_ITS_OWN_ADDRESS = 2  # the level of precise_ip from which on Linux calls an address exact
SHARED_ROUNDS = 20
THREADS = 4
THREADS_OWN = 30  # instructions around each loop, and around all loops together
SCALED_TO = 0.15  # turns are some milliseconds long, and the clock of a guest on KVM is only about even


def check_sampled(run, _programs):
    """Without precise_ip there is no record of PEBS, and no address is called exact, however many overflows there are."""
    for precise in (0, 1, 2):
        lines = [tuple(map(int, line)) for line in run.named("self", "sampled") if line[:1] == [str(precise)]]
        exact = SAMPLES if precise >= FROM_ITS_OWN_ADDRESS else 0
        assert lines == [(precise, SAMPLES, exact)], f"precise_ip {precise}: {lines}, not {SAMPLES} samples, {exact} of them exact"
    return f"{SAMPLES} samples each, exact ones with precise_ip 2 alone"


def check_overflows(run, _programs):
    """Two counters of one event overflow at the same instruction every second time: no signal is lost."""
    lines = [tuple(map(int, line)) for line in run.named("self", "overflows")]
    assert len(lines) == 1, f"{len(lines)} lines, not 1"
    first, second, counted = lines[0]
    assert counted >= 10 * LOOP, f"{counted} instructions, less than those of 10 loops"
    assert (first, second) == (counted // PERIOD, counted // (2 * PERIOD)), f"{first} and {second} signals of {counted} instructions"
    return f"{first} and {second} signals"


def check_threads(run, _programs):
    """Each thread reads its own counter by RDPMC, however often it took turns with others."""
    lines = sorted(tuple(map(int, line)) for line in run.named("self", "thread"))
    assert [rounds for rounds, _ in lines] == [5 * (i + 1) for i in range(THREADS)], f"threads {lines}"
    for rounds, counted in lines:
        surplus = counted - rounds * LOOP
        assert 0 <= surplus <= (rounds + 1) * THREADS_OWN, f"{counted} instructions of {rounds} loops"
    return f"{THREADS} threads"


def check_shared(run, _programs):
    """Seven counts of one event take turns on five counters: each count is of a part of the time, and what is scaled up is right in the median."""
    lines = [tuple(map(int, line)) for line in run.named("self", "shared")]
    assert [singles for _, _, singles in lines] == [0, 4, 4, 4], f"groups beside {[singles for _, _, singles in lines]} others"
    raw, scaled, _ = lines[0]
    assert raw == scaled and 0 <= raw - SHARED_ROUNDS * LOOP <= (SHARED_ROUNDS + 1) * THREADS_OWN, f"alone {raw}, scaled {scaled}"
    for raw, scaled, _ in lines[1:]:
        assert 0 < raw < 0.9 * scaled, f"beside four others {raw} of {scaled}: they took no turns"
    raw, scaled, _ = sorted(lines[1:], key=lambda line: line[1])[1]
    error = scaled / (SHARED_ROUNDS * LOOP) - 1
    assert abs(error) <= SCALED_TO, f"beside four others {raw}, scaled up {scaled}, in the median of three: {100 * error:.1f} % wrong"
    return f"{100 * raw / scaled:.0f} % of the time, scaled up {100 * error:+.1f} %"


def selfcount_checks(suite):
    yield f"{suite}-self-sampled", check_sampled, ()
    yield f"{suite}-self-overflows", check_overflows, ()
    yield f"{suite}-self-threads", check_threads, ()
    yield f"{suite}-self-shared", check_shared, ()
