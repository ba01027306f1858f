"""judge of public tests"""

import pytest

import public_suites
import results
from public_suites import VARIABLES, read_reasons

pytestmark = pytest.mark.quick

REASON = results.Reason("kvm-unit-tests", "pm*", "LLC misses*", "the model has no prefetcher")


def test_a_kvm_unit_test_says_each_line():
    text = "PASS: one\r\nFAIL: LLC misses-7\r\nSKIP: three\r\nSUMMARY: 3 tests"
    assert results.of_kvm_unit_test(text, 8) == results.Result(1, ["LLC misses-7"], ["three"])


def test_an_end_without_a_failed_line_is_one():
    assert results.of_kvm_unit_test("PASS: one\nUnhandled exception 13", 8).failed == ["ended with 8"]
    assert results.of_kvm_unit_test("SKIP: no PEBS", 8).failed == []
    assert results.of_kvm_unit_test("PASS: one\nSKIP: two", 7).failed == ["ended with 7"]
    assert results.of_kvm_unit_test("FAIL: one", 7).failed == ["one", "ended with 7"]
    assert results.of_kvm_unit_test("", 0) == results.Result(1, [], [])


def test_a_selftest_says_ok_or_its_code():
    assert results.of_selftest("[RUN]\tx\n[OK]\tx\n[FAIL]\ty is 3", 1) == results.Result(1, ["y is 3"], [])
    assert results.of_selftest("[OK]\tx", 0).passed == 2
    assert results.of_selftest("", 4) == results.Result(0, [], ["the whole test"])
    assert results.of_selftest("[OK]\tx", 139).failed == ["ended with 139"]
    assert results.of_selftest("", None).failed == ["ended with None"]


def test_a_perf_event_test_says_a_word():
    assert results.of_perf_event_test("Testing x... \x1b[32mPASSED\x1b[0m", 0).passed == 1
    assert results.of_perf_event_test("Testing x... UNEXPLAINED", 0).failed == ["UNEXPLAINED"]
    assert results.of_perf_event_test("Testing x... FAILED", 0).failed == ["FAILED"]
    assert results.of_perf_event_test("Testing x...", None).failed == ["does not end"]
    assert results.of_perf_event_test("", 139).failed == ["ended with 139"]


def test_a_line_without_a_reason_is_not_explained():
    judged = results.judge("pmu", results.Result(3, ["LLC misses-7", "other"], []), [REASON])
    assert judged.explained == [("LLC misses-7", REASON.reason)]
    assert judged.unexplained == ["other"]
    assert judged.used == {REASON}
    assert results.judge("apic", results.Result(0, ["LLC misses-7"], []), [REASON]).unexplained == ["LLC misses-7"]
    assert results.judge("pmu", results.Result(3, [], []), [REASON]).used == set()


def test_a_star_is_the_only_wildcard():
    assert results.matches("a[1]*", "a[1] and more")
    assert not results.matches("a?c", "abc")
    assert not results.matches("a.c", "abc")


def test_a_file_of_reasons_is_looked_at():
    suites = {"kvm-unit-tests": ""}
    assert results.malformed([REASON], suites) == []
    assert len(results.malformed([REASON, REASON, REASON._replace(suite="none"), REASON._replace(reason="", line="x")], suites)) == 3


def test_the_tests_of_a_configuration():
    config = "[one]\nfile = a.flat\nsmp = 2\ntest_args = 'x y'\nqemu_params = -cpu max -m 4g\n[two]\nfile = b.flat\narch = i386\n" \
             "#[three]\n[four]\nfile = c.flat\ngroups = nodefault\n"
    found = results.sections(config)
    assert [(test["name"], test["cpus"], test["arguments"], test["memory"]) for test in found] == [("one", "2", "x y", "2048M")]


def test_the_table_has_each_reason_once():
    result = results.Result(3, ["LLC misses-7", "LLC misses-8"], [])
    row = results.table([("kvm-unit-tests", "pmu", result, results.judge("pmu", result, [REASON]))]).splitlines()[2]
    assert row == f"| kvm-unit-tests | pmu | 3 | 2 | {REASON.reason} |"


EXPLAINED, UNEXPLAINED, GOOD = (results.Result(3, failed, []) for failed in (["LLC misses-7"], ["other"], []))


@pytest.mark.parametrize("only, tests, failed", [
    ("*", [("pmu", EXPLAINED)], []),
    ("*", [("pmu", EXPLAINED), ("apic", UNEXPLAINED)], ["kvm-unit-tests apic: 3 passed; not explained: other"]),
    ("*", [("pmu", GOOD)], ["kvm-unit-tests pm*: passes, though reasons.csv has a reason for \"LLC misses*\""]),
    ("apic", [("apic", GOOD)], []),
    ("none", [], ["kvm-unit-tests: 0 tests"]),
])
def test_a_suite_is_checked(monkeypatch, tmp_path, only, tests, failed):
    monkeypatch.setenv(VARIABLES["kvm-unit-tests"], str(tmp_path))
    monkeypatch.setattr(public_suites, "read_reasons", lambda: [REASON])
    monkeypatch.setitem(public_suites.RUNS, "kvm-unit-tests", lambda directory, given: iter(tests))
    rows = []
    seen = list(public_suites.checked("kvm-unit-tests", public_suites.Given("vpmu", only=only), rows))
    assert [text for ok, text in seen if not ok] == failed
    assert (len(seen), len(rows)) == (len(tests) + 1 + any("though" in line for line in failed), len(tests))


def test_reasons_are_well_formed():
    reasons = read_reasons()
    assert reasons
    assert not results.malformed(reasons, VARIABLES)
