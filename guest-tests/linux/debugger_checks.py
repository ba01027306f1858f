"""What guest/debug.sh printed: a debugger in the guest stops a program while a counter counts it."""


DEBUGGED = {"step": 2000, "watch": 100}  # stops


def check_debugged(run, _programs, mode, boots=1, most=None):
    """Each stop is where it has to be. `most`: each instruction that is stepped through is in an exact count, and not twice."""
    lines = [tuple(int(word) for word in words) for words in run.named("debugged", mode)]
    assert len(lines) == boots, f"{len(lines)} lines of {mode}, not {boots}: {'; '.join(run.facts['error'])}"
    # An estimate samples once a millisecond whether the guest is in user mode. A program that is stepped through is so for microseconds: maybe no sample meets it.
    least = DEBUGGED[mode] if most else 1 if mode == "watch" else 0
    for right, count in lines:
        assert right == DEBUGGED[mode], f"{right} right stops of {DEBUGGED[mode]}"
        assert count >= least and (not most or count < most), f"{count} instructions counted"
    return f"{lines[0][0]} stops, {lines[0][1]} instructions counted"


LOOP8_ROUNDS, LOOP8_DECREMENTS, LOOP8_BEGIN = 100, 8, 8 * 120_000_000
# Where loop8 then stands, from its label, and what has retired: two instructions before the loop, nine a round; INT3 for each breakpoint may count.
GDB = {"stepi": (0, 2 + 9 * LOOP8_ROUNDS, 0), "break": (3 * LOOP8_DECREMENTS, 2 + 9 * LOOP8_ROUNDS - 1, LOOP8_ROUNDS)}


def check_gdb(run, _programs, how):
    """gdb's single-steps and breakpoints end where they have to, and an exact count has each instruction once."""
    offset, retired, breakpoints = GDB[how]
    lines = run.named("gdb", how)
    assert len(lines) == 1 and len(lines[0]) == 3, f"{lines}: {'; '.join(run.facts['error'])}"
    rdi, stands, count = (int(word) for word in lines[0])
    assert (rdi, stands) == (LOOP8_BEGIN - LOOP8_ROUNDS * LOOP8_DECREMENTS, offset), f"RDI {rdi}, at loop8+{stands}"
    assert count in (retired, retired + breakpoints), f"{count} instructions counted, not {retired}"
    return f"at loop8+{stands}, {count} instructions counted"


def gdb_checks():
    for how in GDB:
        yield f"gdb-{how}", check_gdb, (how,)
