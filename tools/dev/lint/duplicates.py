#!/usr/bin/env python3
"""Finds duplicated code: runs of tokens that sim_c++ reports as alike, and whose names are nearly the same.

    tools/dev/lint/duplicates.py [ROOT]

sim_c++ treats all names as equal, so the rows of any two tables look like copies to it; here the names decide. These are not reported: declarations that end
in `override;`, because an interface requires them; lines of a list without a blank line between them.
"""
import difflib
import pathlib
import re
import subprocess
import tempfile

from source_tree import files, finish, required, root_from_arguments

SUFFIXES = (".hpp", ".cpp", ".h", ".c")
TOKENS = 100  # the shortest run: a function of some ten lines
ALIKE = 0.75  # at least this share of names and numbers is the same, in the same order
# Duplicates that are allowed, by their files.
ALLOWED = {
    # The beginning of a handler, whose VPMU_LEAVE leaves the handler itself.
    frozenset({"vpmu/exec/interpret/ops_alu.cpp", "vpmu/exec/interpret/ops_move.cpp"}),
    # LDMXCSR and XRSTOR, the two that load MXCSR, in the same session.
    frozenset({"vpmu/exec/tests/compiled_vector_test.cpp"}),
}
RUN = re.compile(r"^(\S+): line (\d+)-(\d+)\s*\|(\S+): line (\d+)-(\d+)\s*\[(\d+)\]$", re.M)
STATEMENT = re.compile(r"[^;{}]+;")


def without_overriding(text):
    """The text without declarations that override an interface's; each line keeps its number."""
    return STATEMENT.sub(lambda found: "\n" * found[0].count("\n") if found[0].endswith(" override;") else found[0], text)


def names(lines):
    return re.findall(r"\w+", re.sub(r"//.*", "", "\n".join(lines)))


def runs(root, sources):
    """What sim_c++ finds: tokens, and the two places as (path, first line, last line)."""
    program = required("sim_c++")
    with tempfile.TemporaryDirectory() as copies:
        for source in sources:
            copy = pathlib.Path(copies, source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(without_overriding((root / source).read_text(encoding="utf-8")), encoding="utf-8")
        # Wide enough for any two paths: sim_c++ truncates longer lines.
        said = subprocess.run([program, "-n", "-T", "-w", "500", "-r", str(TOKENS), "-i"], input="".join(f"{source}\n" for source in sources), cwd=copies, capture_output=True,
                              text=True, check=True)
    found = RUN.findall(said.stdout)
    if len(found) != said.stdout.count("]\n"):
        raise ValueError(f"cannot read what sim_c++ says: {said.stdout}")
    for path, first, last, other, other_first, other_last, tokens in found:
        yield int(tokens), (path, int(first), int(last)), (other, int(other_first), int(other_last))


def is_list(one, other):
    return one[0] == other[0] and other[1] <= one[2] + 1


def is_alike(lines, *places):
    one, other = (names(lines[path][first - 1:last]) for path, first, last in places)
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio() >= ALIKE


def main():
    root = root_from_arguments()
    sources = [path.relative_to(root).as_posix() for path in files(root, *SUFFIXES)]
    lines = {source: (root / source).read_text(encoding="utf-8").splitlines() for source in sources}
    findings = []
    for tokens, one, other in runs(root, sources):
        if not is_list(one, other) and is_alike(lines, one, other) and frozenset({one[0], other[0]}) not in ALLOWED:
            findings.append(f"{one[0]}:{one[1]}: {tokens} tokens are also in {other[0]}:{other[1]}-{other[2]}")
    finish("duplicates", sorted(findings), len(sources), "Make one function or header of both, or say in tools/dev/lint/duplicates.py why not.")


if __name__ == "__main__":
    main()
