"""judge of likwid, pcm and PAPI

On good logs, and on logs with one thing wrong each.
"""

import unittest

import pytest

from good_logs import BASELINE, failing, profiler_lines
import profiler_checks
import suites

pytestmark = pytest.mark.quick


class ProfilersTest(unittest.TestCase):
    def failing(self, text):
        return failing("profilers", text)

    def doctored(self, old, new, model="haswell"):
        text = "\n".join(profiler_lines(model))
        self.assertIn(old, text)
        return self.failing(text.replace(old, new))

    def test_good_logs_pass_every_check(self):
        for model in profiler_checks.MODELS:
            self.assertEqual(self.failing("\n".join(profiler_lines(model))), set(), model)
        self.assertEqual(len(list(suites.SUITES["profilers"](BASELINE))), 21)

    def test_a_count_off_by_one_fails(self):
        for kind, count in profiler_checks.REGION.items():
            event = profiler_checks.MODELS["haswell"].event(kind)
            for times in (1, 2, 3):
                line = f"likwid {times} {event} {times * count + 820}"
                self.assertEqual(self.doctored(line, line[:-1] + "1"), {f"likwid-marker-{kind}"}, line)
            self.assertEqual(self.doctored(f"likwid run {event} {profiler_checks.COUNTED[kind] + 840}", f"likwid run {event} {profiler_checks.COUNTED[kind] - 1}"),
                             {f"likwid-{kind}"})
            self.assertEqual(self.doctored(f"likwid run {event} ", f"likwid run {event} -\n#"), {f"likwid-{kind}"})

    def test_the_same_count_too_high_each_time_fails(self):
        text = "\n".join(profiler_lines())
        for times in (1, 2, 3):
            line = f"likwid {times} INSTR_RETIRED_ANY "
            text = text.replace(f"{line}{times * 500_000 + 820}", f"{line}{times * 500_000 + 20_000}")
        self.assertEqual(self.failing(text), {"likwid-marker-instructions"})

    def test_a_group_that_does_not_add_up_fails(self):
        for old, new in (("0.2000 Branch rate", "0.2002 Branch rate"), ("1 CPI", "1.5 CPI"), ("4.9988 Instructions per branch", "5 Instructions"),
                         ("BR_MISP_RETIRED_ALL_BRANCHES 579", "BR_MISP_RETIRED_ALL_BRANCHES 0"), ("group INSTR_RETIRED_ANY 506450", "group INSTR_RETIRED_ANY 406450")):
            self.assertEqual(self.doctored(old, new), {"likwid-group"}, old)

    def test_pcm_below_the_program_or_far_above_fails(self):
        for way in ("msr", "perf"):
            for count in (1080000005, 1085500000):
                self.assertEqual(self.doctored(f"pcm {way} Instructions 1081255491", f"pcm {way} Instructions {count}"), {f"pcm-instructions-{way}"})
            for count in (120000002, 120700000):
                self.assertEqual(self.doctored(f"pcm {way} Event0 120276876", f"pcm {way} Event0 {count}"), {f"pcm-branches-{way}"})

    def test_other_counters_and_events_of_papi_fail(self):
        self.assertEqual(self.doctored("Counters : 11", "Counters : 0"), {"papi-counters"})
        for name in profiler_checks.PAPI_EVENTS:
            self.assertEqual(self.doctored(f"{name} 0x80000032  Yes", f"{name} 0x80000032  No "), {"papi-events"})

    def test_papis_own_tests_fail(self):
        for old, new in (("Low:  1000186", "Low:  1000187"), ("Low:  4186", "Low:  4185"), ("Average:  300191", "Average:  300192"),
                         ("papi_tot_ins PASSED", "papi_tot_ins FAILED!!!"), ("High: 4750", "Height: 4750")):
            self.assertEqual(self.doctored(old, new), {"papi-tot-ins"}, old)
        for old, new in (("Low:  1500044", "Low:  1500001"), ("Average:  1500044", "Average:  1500045"), ("papi_br_ins PASSED", "papi_br_ins FAILED!!!")):
            self.assertEqual(self.doctored(old, new), {"papi-br-ins"}, old)

    def test_another_model_fails(self):
        self.assertGreater(len(self.doctored("model haswell", "model skylake")), 10)

