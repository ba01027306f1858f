"""The checks of guest/rr.sh: what rr has recorded is what it replays."""

MIN_SWITCHES = 10  # of threads that count branches, in each recording


def check_rr(run, _programs):
    """A thread stops where its count of branches ended, each time in the same place; system calls are buffered, as rr does unless told otherwise."""
    lines = run.named("rr", "rounds")
    assert len(lines) == 1 and int(lines[0][0]) > 0, f"rounds {lines}"
    rounds = int(lines[0][0])
    recorded = {number: words for number, *words in run.named("rr", "record")}
    replayed = {number: words for number, *words in run.named("rr", "replay")}
    wanted = {str(number) for number in range(1, rounds + 1)}
    assert set(recorded) == wanted and set(replayed) == wanted, f"{len(recorded)} recorded and {len(replayed)} replayed of {rounds}"
    buffered = dict(run.named("rr", "buffered"))
    for number, (code, switches, *output) in recorded.items():
        assert code == "0" and len(output) == 2, f"recording {number} ended with {code}, and said {output}"
        assert int(switches) >= MIN_SWITCHES, f"recording {number} has {switches} switches of threads, needs {MIN_SWITCHES}"
        assert int(buffered.get(number, 0)) > 0, f"recording {number} made no use of rr's buffer for system calls"
        assert replayed[number] == [code, *output], f"recording {number} said {output}, its replay {replayed[number]}"
    return f"{rounds} of {rounds}, {min(int(words[1]) for words in recorded.values())} switches of threads or more"
