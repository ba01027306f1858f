"""What guest/clocks.sh printed: two CPUs compare their clocks."""

def check_clocks(run, _programs):
    """No CPU's clock is earlier than what the other CPU has read before, even while one of them is sampled."""
    lines = [[int(word) for word in line.split()] for line in run.facts["clocks"]]
    assert len(lines) == 1 and len(lines[0]) == 3, f"{lines}: {'; '.join(run.facts['error'])}"
    (hand_overs, backward, samples), = lines
    assert hand_overs >= 200 and samples >= 200, f"{hand_overs} hand-overs and {samples} samples are too few to judge"
    assert backward == 0, f"{backward} of {hand_overs} stamps were in the future"
    return f"{hand_overs} hand-overs beside {samples} samples"
