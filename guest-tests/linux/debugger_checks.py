"""What guest/debug.sh printed: a debugger of the guest's stops a program that is counted meanwhile."""

from finding import require

DEBUGGED = {"step": 2000, "watch": 100}  # stops


def check_debugged(run, _programs, mode, boots=1, most=None):
    """Each stop is where it has to be. `most`: each instruction that is stepped through is in an exact count, and not twice."""
    lines = [tuple(int(word) for word in words) for words in run.named("debugged", mode)]
    require(len(lines) == boots, f"{len(lines)} lines of {mode}, not {boots}: {'; '.join(run.facts['error'])}")
    for right, count in lines:
        require(right == DEBUGGED[mode], f"{right} right stops of {DEBUGGED[mode]}")
        require(count >= (DEBUGGED[mode] if most else 1) and (not most or count < most), f"{count} instructions counted")
    return f"{lines[0][0]} stops, {lines[0][1]} instructions counted"
