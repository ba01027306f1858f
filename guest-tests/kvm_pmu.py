#!/usr/bin/env python3
"""Compares the results of guest tests on KVM's own PMU (source kvm) with the table of kvm-pmu.md: a line for each test that ran.

    guest-tests --source kvm pmu_tests.elf | guest-tests/kvm_pmu.py
"""
import pathlib
import re
import sys

TABLE = pathlib.Path(__file__).parent / "kvm-pmu.md"


def compare(log, differing):
    """(passed, test, text) of each test in the log."""
    for verdict, test in re.findall(r"^(PASS|FAIL) ([A-Z]\w*\.\w+)", log, re.M):
        fails = verdict == "FAIL"
        if fails == (test in differing):
            yield True, test, f"fails: {differing[test]}" if fails else "passes"
        else:
            yield False, test, "fails, and is not in kvm-pmu.md" if fails else "passes, though it is in kvm-pmu.md"


def read_table():
    """How KVM differs, by test."""
    return dict(re.findall(r"^\| (\w+\.\w+) \| (.*) \|$", TABLE.read_text(encoding="ascii"), re.M))


def main():
    findings = list(compare(sys.stdin.read(), read_table()))
    for passed, test, text in findings:
        print("PASS" if passed else "FAIL", f"Kvm.{test}: {text}")
    return 0 if findings and all(passed for passed, _, _ in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
