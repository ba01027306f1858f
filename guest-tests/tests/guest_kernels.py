"""Runs the bare-metal test kernels, and reads what the runner says of each test."""

import re
import subprocess

import bed
import kvm_pmu
from paths import GUEST_TESTS, ROOT, TEST_KERNEL

# What the runner says of a test; the lines below that of one that failed say why.
OUTCOME = re.compile(r"^(PASS|FAIL|SKIP) (\S+).*(?:\n  .*)*", re.M)
TOTALS = re.compile(r"^(\d+) passed, (\d+) failed", re.M)


def command(source, *options):
    return [GUEST_TESTS, "--source", source, *options, TEST_KERNEL]


def without_kvm(out, *options):
    with out.open("wb") as file:
        done = subprocess.run(command("exact", "--accel", "soft", *options), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=False)
    return bed.Ended(done.returncode, out)


def outcomes(ended):
    """The names of the tests that passed, and what the runner says of each that failed."""
    said = list(OUTCOME.finditer(ended.text))
    passed = [one[2] for one in said if one[1] == "PASS"]
    failed = [one[0] for one in said if one[1] == "FAIL"]
    totals = TOTALS.findall(ended.text)
    assert len(totals) == 1, f"the runner has not come to an end: {ended}"
    seen, expected = (len(passed), len(failed)), tuple(map(int, totals[0]))
    assert seen == expected, f"{seen} lines of passed and failed tests, but {expected} in the totals: {ended}"
    return passed, failed


def judge(ended, checks):
    passed, failed = outcomes(ended)
    checks(len(passed), failed)
    assert ended.code == 0, f"no test has failed, but: {ended}"


def judge_kvms_own(ended, checks):
    """With KVM's own PMU those tests fail that kvm-pmu.md names."""
    outcomes(ended)
    found = list(kvm_pmu.compare(ended.text, kvm_pmu.read_table()))
    checks(sum(good for good, _, _ in found), [f"{test}: {text}" for good, test, text in found if not good])
    assert ended.code in (0, 1), ended
