"""The judge's checks of a guest that counts with the host's PMU."""


def check_events(run, _programs):
    """One boot whose guest may count all events, and one that may count the architectural ones."""
    counts = [(name, int(count)) for name, count in (line.split() for line in run.facts["event"])]
    assert [name for name, _ in counts] == ["instructions:u", "r01d1:u"] * 2, f"counted {counts}"
    instructions, loads, instructions_alone, no_loads = (count for _, count in counts)
    assert instructions == instructions_alone > 0, f"{instructions} instructions, and {instructions_alone} under the event policy"
    assert loads > 0 == no_loads, f"{loads} loads, and {no_loads} under the event policy, which forbids them"
    return f"{loads} loads, none where only architectural events count"


def check_levels(run, _programs):
    """A counter of one privilege level leaves the other out."""
    counts = {event: int(count) for event, count in (line.split() for line in run.facts["level"])}
    user, kernel = counts.get("instructions:u", 0), counts.get("instructions:k", 0)
    assert user > 40_000_000, f"{user} instructions in user mode, of 47 million"
    assert 0 < kernel < user / 10, f"{kernel} instructions in the kernel beside {user} in user mode"
    return f"{user} instructions in user mode, {kernel} in the kernel"


def check_passed_pmu(run, _programs):
    """KVM's own PMU: of version 2, and without PEBS."""
    lines = [line for line in run.kernel if "Performance Events:" in line]
    expected = "Performance Events: Skylake events, 32-deep LBR, full-width counters, Intel PMU driver."
    assert lines and all(line.endswith(expected) for line in lines), f"dmesg says: {lines}"
    return expected
