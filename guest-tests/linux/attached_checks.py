"""The judge's checks of guests that are disturbed, or run by another VMM: QEMU disturbs one, our VMM saves and restores one, and one is a libvirt domain."""


PATIENT_ROUNDS = 40_000_000  # of the loop in programs/patient.S
PATIENT_EVENTS = {"instructions:u": 5 * PATIENT_ROUNDS + 5, "branches:u": PATIENT_ROUNDS + 1}
PATIENT_PERIOD = 1_000_003
# The emulator, the CPU, the PMU and the variables; more with the way back.
MIN_CHANGED_LINES = 8
MIN_RECORDS = 199  # of programs/patient.S


def check_patient(run, _programs, event):
    """A disturbed count is the same as an undisturbed one."""
    counts = [int(count) for count, in run.named("patient", event)]
    assert counts == [PATIENT_EVENTS[event]], f"{event} counted {counts}, not {PATIENT_EVENTS[event]}"
    return str(counts[0])


def check_long_order(run, programs):
    """As check_precise_order: no record is lost, torn or misplaced."""
    program = programs["patient"]
    before, loop = program.addresses_of("_start"), program.addresses_of("patient_loop")
    assert PATIENT_EVENTS["instructions:u"] == len(before) + PATIENT_ROUNDS * len(loop) + len(program.addresses_of("patient_end")), "the program patient does not have the instructions that PATIENT_EVENTS tells"
    places = range(PATIENT_PERIOD - len(before), PATIENT_ROUNDS * len(loop), PATIENT_PERIOD + 1)
    expected = [loop[place % len(loop)] for place in places]
    samples = [int(address, 16) for address in run.facts["long-sample"]]
    assert samples == expected, f"{len(samples)} samples, not {len(expected)}, or others: {[hex(s) for s, e in zip(samples, expected) if s != e][:3]}"
    assert run.facts["lost"] == ["0"], f"perf says it lost {run.facts['lost']}"
    return f"{len(samples)} samples, each at its instruction"


def check_disturbed(run, _programs, least):
    """The guest was reset, stepped, saved or migrated often enough, in the middle of its recordings."""
    words = (run.first("disturbed") or "").split()
    times = {what: int(number) for what, number in zip(words[::2], words[1::2])}
    missing = [what for what, number in least.items() if times.get(what, 0) < number]
    assert not missing, f"not enough of: {', '.join(missing)}; {times}"
    return run.first("disturbed")


def check_domain(run, _programs):
    """The domain had our PMU, which changed its definition; after disabling it, and after a failed enable, the definition was the original."""
    told = {words[0]: words[1:] for words in (line.split() for line in run.facts["domain"])}
    assert told.get("refused") == ["same"], f"after libvirt has refused an enable, the definition is {told.get('refused')}, not the same"
    assert told.get("enabled") == [run.first("model"), "exact"], f"enabled for {told.get('enabled')}, not {run.first('model')} exact"
    changed = int(told["changed"][0])
    assert changed >= MIN_CHANGED_LINES, f"only {changed} lines of the definition changed, at least {MIN_CHANGED_LINES}"
    assert told.get("disabled") == ["same"], f"after disable, the definition is {told.get('disabled')}, not the same"
    assert run.counters.get("end", {}).get("pmu.pebs.records", 0) >= MIN_RECORDS, f"the library wrote fewer than {MIN_RECORDS} records: did QEMU run with another one?"
    assert told.get("own-vmm") == ["done"], f"booted by our own VMM, the domain's guest ended as {told.get('own-vmm')}, not done"
    return f"{changed} lines changed, and back"


def attached_checks(suite):
    """The checks of guest/patient.sh, as rows of a suite of that name."""
    for event in PATIENT_EVENTS:
        yield f"{suite}-{event}", check_patient, (event,)
    yield f"{suite}-precise-order", check_long_order, ()
