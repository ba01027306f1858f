"""Tests of results.py: `python3 -m unittest discover -s guest-tests/public/tests`."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import results  # noqa: E402

REASON = results.Reason("kvm-unit-tests", "pm*", "LLC misses*", "the model has no prefetcher")


class Results(unittest.TestCase):
    def test_a_kvm_unit_test_says_each_line(self):
        text = "PASS: one\r\nFAIL: LLC misses-7\r\nSKIP: three\r\nSUMMARY: 3 tests"
        self.assertEqual(results.of_kvm_unit_test(text, 8), results.Result(1, ["LLC misses-7"], ["three"]))

    def test_an_end_without_a_failed_line_is_one(self):
        self.assertEqual(results.of_kvm_unit_test("PASS: one\nUnhandled exception 13", 8).failed, ["ended with 8"])
        self.assertEqual(results.of_kvm_unit_test("SKIP: no PEBS", 8).failed, [])
        self.assertEqual(results.of_kvm_unit_test("PASS: one\nSKIP: two", 7).failed, ["ended with 7"])
        self.assertEqual(results.of_kvm_unit_test("FAIL: one", 7).failed, ["one", "ended with 7"])
        self.assertEqual(results.of_kvm_unit_test("", 0), results.Result(1, [], []))

    def test_a_selftest_says_ok_or_its_code(self):
        self.assertEqual(results.of_selftest("[RUN]\tx\n[OK]\tx\n[FAIL]\ty is 3", 1), results.Result(1, ["y is 3"], []))
        self.assertEqual(results.of_selftest("[OK]\tx", 0).passed, 2)
        self.assertEqual(results.of_selftest("", 4), results.Result(0, [], ["the whole test"]))
        self.assertEqual(results.of_selftest("[OK]\tx", 139).failed, ["ended with 139"])
        self.assertEqual(results.of_selftest("", None).failed, ["ended with None"])

    def test_a_perf_event_test_says_a_word(self):
        self.assertEqual(results.of_perf_event_test("Testing x... \x1b[32mPASSED\x1b[0m", 0).passed, 1)
        self.assertEqual(results.of_perf_event_test("Testing x... UNEXPLAINED", 0).failed, ["UNEXPLAINED"])
        self.assertEqual(results.of_perf_event_test("Testing x... FAILED", 0).failed, ["FAILED"])
        self.assertEqual(results.of_perf_event_test("Testing x...", None).failed, ["does not end"])
        self.assertEqual(results.of_perf_event_test("", 139).failed, ["ended with 139"])

    def test_a_line_without_a_reason_is_not_explained(self):
        judged = results.judge("pmu", results.Result(3, ["LLC misses-7", "other"], []), [REASON])
        self.assertEqual(judged.explained, [("LLC misses-7", REASON.reason)])
        self.assertEqual(judged.unexplained, ["other"])
        self.assertEqual(judged.used, {REASON})
        self.assertEqual(results.judge("apic", results.Result(0, ["LLC misses-7"], []), [REASON]).unexplained, ["LLC misses-7"])
        self.assertEqual(results.judge("pmu", results.Result(3, [], []), [REASON]).used, set())

    def test_a_star_is_the_only_wildcard(self):
        self.assertTrue(results.matches("a[1]*", "a[1] and more"))
        self.assertFalse(results.matches("a?c", "abc"))
        self.assertFalse(results.matches("a.c", "abc"))

    def test_a_file_of_reasons_is_looked_at(self):
        suites = {"kvm-unit-tests": ""}
        self.assertEqual(results.malformed([REASON], suites), [])
        self.assertEqual(len(results.malformed([REASON, REASON, REASON._replace(suite="none"), REASON._replace(reason="", line="x")], suites)), 3)

    def test_the_tests_of_a_configuration(self):
        config = "[one]\nfile = a.flat\nsmp = 2\ntest_args = 'x y'\nqemu_params = -cpu max -m 4g\n[two]\nfile = b.flat\narch = i386\n" \
                 "#[three]\n[four]\nfile = c.flat\ngroups = nodefault\n"
        found = results.sections(config)
        self.assertEqual([(test["name"], test["cpus"], test["arguments"], test["memory"]) for test in found], [("one", "2", "x y", "2048M")])

    def test_the_table_has_each_reason_once(self):
        result = results.Result(3, ["LLC misses-7", "LLC misses-8"], [])
        row = results.table([("kvm-unit-tests", "pmu", result, results.judge("pmu", result, [REASON]))]).splitlines()[2]
        self.assertEqual(row, f"| kvm-unit-tests | pmu | 3 | 2 | {REASON.reason} |")


if __name__ == "__main__":
    unittest.main()
