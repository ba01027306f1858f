#!/usr/bin/env python3
"""Checks the form of references: to Intel's manual (`SDM 3B 18.8.1.1`, `SDM 3C table 35-2`) and to our rules (`rule P6`).

    tools/dev/lint/sdm_refs.py [ROOT]

A rule has to be in vpmu/docs/rules.md, and each rule that rules.md marks as modelled in the core has to be cited by a test of the core.
"""
import re

from source_tree import files, finish, root_from_arguments

RULES_FILE = "vpmu/docs/rules.md"
VOLUME = r"(1|2[ABCD]|3[ABCD]|4)"
PLACE = r"(\d+(\.\d+)+|(figures?|tables?) \d+-\d+|chapter \d+|appendix [A-Z]|[A-Z][A-Z0-9]+\b)"
REFERENCE = re.compile(rf"SDM {VOLUME} {PLACE}")
# The manual as such, and not a place in it.
PLAIN = re.compile(r"SDM (volumes? \d|names?\b|terms?\b)")
MENTION = re.compile(r"\bSDM\b[^\n]{0,40}")

RULE_ID = r"[A-Z]\d+[a-z]?"
RULE_CITATION = re.compile(rf"\b[Rr]ules? ({RULE_ID}(?:(?:, | and | to | with | in |, and ){RULE_ID})*)")
RULE_ROW = re.compile(rf"^\| ({RULE_ID}) \|.*\| (core|elsewhere|not modelled) \|$", re.MULTILINE)


def unwrapped(text):
    """`text` with each comment of several lines joined to one line."""
    return re.sub(r"\n[ \t]*//[/!]?<?[ \t]*", " ", text)


def manual_findings(name, text):
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        for match in MENTION.finditer(unwrapped("\n".join(lines[number - 1:number + 1]))):
            if match.start() < len(line) and not REFERENCE.match(match.group()) and not PLAIN.match(match.group()):
                yield f"{name}:{number}: '{match.group()}' names no volume and place, as in 'SDM 3B 18.8.1.1'"


def expand(citation):
    """The ids of 'P6', 'P7, P8 and Q1' or 'C1 to C3'."""
    ids = set(re.findall(RULE_ID, citation))
    for first, last in re.findall(rf"({RULE_ID}) to ({RULE_ID})", citation):
        if first[0] == last[0] and first[1:].isdigit() and last[1:].isdigit():
            ids |= {f"{first[0]}{n}" for n in range(int(first[1:]), int(last[1:]) + 1)}
    return ids


def main():
    root = root_from_arguments()
    rules = dict(RULE_ROW.findall((root / RULES_FILE).read_text(encoding="utf-8"))) if (root / RULES_FILE).is_file() else {}
    sources = files(root, ".hpp", ".cpp", ".S")
    findings = [] if rules else [f"{RULES_FILE}: no table of rules"]
    tested = set()
    for path in sources:
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        findings += manual_findings(name, text)
        text = unwrapped(text)
        cited = set().union(*(expand(c) for c in RULE_CITATION.findall(text)))
        findings += [f"{name}: rule {rule} is not in {RULES_FILE}" for rule in sorted(cited - rules.keys())]
        if name.startswith("vpmu/tests/"):
            tested |= set().union(*(set(re.findall(RULE_ID, c)) for c in RULE_CITATION.findall(text) if " to " not in c))
    untested = sorted(rule for rule, place in rules.items() if place == "core" and rule not in tested)
    findings += [f"{RULES_FILE}: rule {rule} is modelled by the core and cited by none of its tests" for rule in untested]
    finish("sdm_refs", findings, len(sources), "Name volume and section, figure or table; cite rules by id.")


if __name__ == "__main__":
    main()
