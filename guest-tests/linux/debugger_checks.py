"""What guest/debug.sh printed: a debugger of the guest's stops a program that is counted meanwhile."""

from finding import require

DEBUGGED = {"step": 2000, "watch": 100}  # stops of guest/debug.sh


def check_debugged(run, _programs, mode):
    """A debugger's stops, of a program that is counted meanwhile."""
    lines = [line.split() for line in run.facts["debugged"] if line.startswith(mode + " ")]
    require(len(lines) == 1, f"{len(lines)} lines of {mode}, not 1: {'; '.join(run.facts['error'])}")
    right, count = int(lines[0][1]), int(lines[0][2])
    require(right == DEBUGGED[mode], f"{right} right stops of {DEBUGGED[mode]}")
    require(count > 0, "nothing was counted")
    return f"{right} stops, {count} instructions counted"


def check_debugged_exactly(run, _programs):
    """Each instruction that was stepped through is in the count; so few others are that a step cannot be in it twice."""
    lines = [line.split() for line in run.facts["debugged"] if line.startswith("step ")]
    require(len(lines) == 1, f"{len(lines)} lines of step, not 1")
    count, steps = int(lines[0][2]), DEBUGGED["step"]
    require(steps <= count < 1.5 * steps, f"{count} instructions counted of {steps} steps")
    return f"{count} instructions"


def debugger_checks(prefix, modes):
    """The checks of these modes: single-steps, watchpoints, the count of what was stepped through."""
    for mode in modes:
        if mode == "count":
            yield f"{prefix}debugged-count", check_debugged_exactly, ()
        else:
            yield f"{prefix}debugged-{mode}", check_debugged, (mode,)
