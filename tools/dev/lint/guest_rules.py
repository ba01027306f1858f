#!/usr/bin/env python3
"""Lists the rules of vpmu/docs/rules.md that no guest test cites, each with its reason.

    tools/dev/lint/guest_rules.py [ROOT]

A guest can observe most rules: then a test in guest-tests/tests cites it. The others are in the table of guest-tests/rules-without-a-test.md with a reason.
A rule in neither is a finding, and so is one in both.
"""
import re

from sdm_refs import RULE_CITATION, RULE_ROW, RULES_FILE, expand, unwrapped
from source_tree import files, finish, root_from_arguments

REASONS_FILE = "guest-tests/rules-without-a-test.md"
REASON_ROW = re.compile(r"^\| ([A-Z]\d+[a-z]?) \| (\S.*) \|$", re.MULTILINE)


def main():
    root = root_from_arguments()
    rules = dict(RULE_ROW.findall((root / RULES_FILE).read_text(encoding="utf-8")))
    reasons = dict(REASON_ROW.findall((root / REASONS_FILE).read_text(encoding="utf-8")))
    sources = [f for f in files(root, ".cpp") if f.relative_to(root).as_posix().startswith("guest-tests/tests/")]
    cited = set()
    for path in sources:
        for citation in RULE_CITATION.findall(unwrapped(path.read_text(encoding="utf-8"))):
            cited |= expand(citation)
    findings = [f"{RULES_FILE}: rule {rule} is cited by no guest test, and {REASONS_FILE} has no reason" for rule in rules if rule not in cited | reasons.keys()]
    findings += [f"{REASONS_FILE}: rule {rule} is cited by a guest test" for rule in reasons if rule in cited]
    findings += [f"{REASONS_FILE}: rule {rule} is not in {RULES_FILE}" for rule in reasons if rule not in rules]
    for rule, reason in reasons.items():
        print(f"without a guest test: {rule}: {reason}")
    finish("guest_rules", findings, len(sources), "Cite the rule in a test that shows it to a guest, or say why none can.")


if __name__ == "__main__":
    main()
