"""judge of what KVM's own PMU does otherwise

The table, compared with logs that differ from it.
"""

import unittest

import pytest

import kvm_pmu

pytestmark = pytest.mark.quick
LOG = "PASS Pmi.ArrivesAsNmi (7 checks, 0.04 s)\nFAIL Lvtpc.HoldsAPmi (6 checks, 17.24 s)\n  pmi_test.cpp:126: does not hold\nSKIP Uncore.ClockCounts: why\n"


class KvmPmuTest(unittest.TestCase):
    def failing(self, differing, log=LOG):
        return [test for passed, test, _ in kvm_pmu.compare(log, differing) if not passed]

    def test_what_the_table_says_passes(self):
        self.assertEqual(self.failing({"Lvtpc.HoldsAPmi": "lost"}), [])
        self.assertEqual(len(list(kvm_pmu.compare(LOG, {}))), 2)

    def test_what_the_table_lacks_fails(self):
        self.assertEqual(self.failing({}), ["Lvtpc.HoldsAPmi"])

    def test_what_the_table_has_too_much_fails(self):
        self.assertEqual(self.failing({"Lvtpc.HoldsAPmi": "lost", "Pmi.ArrivesAsNmi": "lost"}), ["Pmi.ArrivesAsNmi"])

    def test_the_table_is_read(self):
        differing = kvm_pmu.read_table()
        self.assertIn("Freeze.BothAtOnce", differing)
        self.assertGreater(len(differing), 10)
        tests = "".join(path.read_text(encoding="utf-8") for path in (kvm_pmu.TABLE.parent / "tests").glob("*.cpp"))
        for name in differing:
            self.assertIn(f"GT_TEST({name.replace('.', '_')}", tests)

