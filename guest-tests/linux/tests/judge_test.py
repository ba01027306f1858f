"""judge of Linux guests

On a good log, and on logs with one thing wrong each: every check must have been seen to fail.
"""

import unittest

import pytest

import console_log
import disassembly
from good_logs import BASELINE, PROGRAMS, attached_lines, exact_lines, failing, host_lines, libvirt_lines, passed_lines, single_lines, smp_lines, soft_lines
import memory_checks
import models
import suites

pytestmark = pytest.mark.quick


class JudgeTest(unittest.TestCase):
    def failing(self, lines, suite="single"):
        """Names of the checks that fail."""
        return failing(suite, "\n".join(lines))

    def doctored(self, old, new, count=1, lines=single_lines):
        """The good log with the first `count` occurrences of a text replaced."""
        text = "\n".join(lines())
        self.assertIn(old, text)
        return text.replace(old, new, count).splitlines()

    def test_a_good_log_passes_every_check(self):
        self.assertEqual(self.failing(single_lines()), set())
        self.assertEqual(self.failing(smp_lines(), "smp"), set())
        for model in models.MODELS:
            self.assertEqual(self.failing(exact_lines(model), "exact"), set(), model)
            self.assertEqual(self.failing(exact_lines(model, "6.12"), "exact"), set(), model)
        self.assertEqual(self.failing(soft_lines(), "soft"), set())
        self.assertEqual(self.failing(host_lines(), "host"), set())
        self.assertEqual(self.failing(passed_lines(), "passed"), set())

    def test_an_empty_log_passes_no_check(self):
        for suite, checks in suites.SUITES.items():
            self.assertEqual(self.failing([], suite), {name for name, *_ in checks(BASELINE)})

    def test_the_suites_have_every_check(self):
        self.assertEqual(len(list(suites.single_checks(BASELINE))), 43)
        self.assertEqual(len(list(suites.smp_checks(BASELINE))), 6)
        self.assertEqual(len(list(suites.exact_checks(BASELINE))), 19)
        self.assertEqual(len(list(suites.soft_checks(BASELINE))), 3)
        self.assertEqual(len(list(suites.host_checks(BASELINE))), 11)
        self.assertEqual(len(list(suites.passed_checks(BASELINE))), 10)

    def test_a_host_that_counts_wrong_fails(self):
        for suite, lines in (("host", host_lines), ("passed", passed_lines)):
            for old, new, failing in (
                ("count instructions:u 500005", "count instructions:u 500506", "instructions:u"),
                ("count branches:u 100001", "count branches:u 99900", "branches:u"),
                ("vpmu-guest: count branches:u 100001\n", "", "branches:u"),
                ("8340379,,instructions", "0,,instructions", "stat"),
                ("1405267,,branches,", "<not counted>,,branches,", "stat"),
                ("instructions:k 310220", "instructions:k 47496170", "levels"),
                ("instructions:k 310220", "instructions:k 0", "levels"),
                ("Intel PMU driver.", "software events only.", "dmesg-pmu"),
                ("report sampled 80.0 heavy", "report sampled 60.0 heavy", "split"),
            ):
                text = "\n".join(lines())
                self.assertIn(old, text)
                self.assertEqual(self.failing(text.replace(old, new, 1).splitlines(), suite), {f"{suite}-{failing}"}, new)

    def test_an_event_that_counts_in_spite_of_the_policy_fails(self):
        for old, new in (("r01d1:u 0", "r01d1:u 1"), ("r01d1:u 746", "r01d1:u 0"), ("event instructions:u 2125", "event instructions:u 0"),
                         ("vpmu-guest: event r01d1:u 0", "")):
            text = "\n".join(passed_lines())
            self.assertIn(old, text)
            self.assertEqual(self.failing(text.replace(old, new, 1).splitlines(), "passed"), {"passed-events"}, new)

    def test_guest_errors_and_bad_ends_fail(self):
        for old, new in (
            ("vpmu-guest: done", "vpmu-guest: error perf failed\nvpmu-guest: done"),
            ("vpmu-guest: end record 0", "vpmu-guest: end record 1"),
            ("vpmu-guest: done", ""),
            ("vpmu-host: exit 0", "vpmu-host: exit 4"),
            ("vpmu-host: exit 0", ""),
        ):
            self.assertEqual(self.failing(self.doctored(old, new)), {"guest-ends"}, old)

    def test_a_debugger_that_loses_a_stop_fails(self):
        for old, new, failing in (
            ("debugged step 2000", "debugged step 1", {"exact-debugged-step"}),
            ("debugged step 2000 2029", "debugged step 2000 1999", {"exact-debugged-step"}),
            ("debugged step 2000 2029", "debugged step 2000 4000", {"exact-debugged-step"}),
            ("vpmu-guest: debugged step 2000 2029", "", {"exact-debugged-step"}),
            ("debugged watch 100 836", "debugged watch 99 836", {"exact-debugged-watch"}),
            ("debugged watch 100 836", "debugged watch 100 99", {"exact-debugged-watch"}),
            ("debugged watch 100 836", "debugged watch 100 1000", {"exact-debugged-watch"}),
        ):
            text = "\n".join(exact_lines())
            self.assertIn(old, text)
            self.assertEqual(self.failing(text.replace(old, new).splitlines(), "exact"), failing, new)
        self.assertEqual(self.failing(self.doctored("debugged step 2000", "debugged step 1999")), {"debugged-step"})
        self.assertEqual(self.failing(self.doctored("debugged watch 100", "debugged watch 99")), {"debugged-watch"})
        self.assertEqual(self.failing(self.doctored("debugged watch 100 900", "debugged watch 100 0")), {"debugged-watch"})

    def test_another_pmu_line_fails(self):
        self.assertEqual(self.failing(self.doctored("PEBS fmt3+, ", "")), {"dmesg-pmu"})
        self.assertEqual(self.failing(self.doctored("32-deep LBR, ", "")), {"dmesg-pmu"})
        self.assertEqual(self.failing(self.doctored("max period:             00007fff", "max period:             00000000")), {"dmesg-pmu"})
        self.assertEqual(self.failing(self.doctored("vpmu-guest: done", "[    0.3] core: CPU erratum AAJ80 worked around\nvpmu-guest: done")), {"dmesg-pmu"})
        self.assertEqual(self.failing(self.doctored("model skylake", "model haswell")), {"dmesg-pmu"})
        self.assertEqual(self.failing(self.doctored("model skylake", "model unknown")), {"dmesg-pmu"})

    def test_every_line_on_the_pmu_is_required(self):
        for name in ("nehalem", "skylake"):
            for line in models.MODELS[name].pmu_lines:
                lines = [other for other in exact_lines(name) if not other.endswith(line)]
                self.assertEqual(self.failing(lines, "exact"), {"exact-dmesg-pmu"}, line)

    def test_each_forbidden_message_fails(self):
        for text in suites.FORBIDDEN:
            for prefix in ("", "vpmu-guest: dmesg "):  # on the console itself and in dmesg
                lines = [*single_lines(), f"{prefix}[   12.0] xx {text} yy"]
                self.assertEqual(self.failing(lines), {"dmesg-clean"}, text)

    def test_a_log_without_kernel_messages_fails(self):
        lines = [line for line in single_lines() if "dmesg [" not in line]
        self.assertEqual(self.failing(lines), {"dmesg-clean", "dmesg-pmu", "stat-cycles"})

    def test_cycles_off_by_six_percent_fail(self):
        self.assertEqual(self.failing(self.doctored("2388000000,,cycles", "2256000000,,cycles")), {"stat-cycles"})
        self.assertEqual(self.failing(self.doctored("2388000000,,cycles", "2544000000,,cycles")), {"stat-cycles"})

    def test_an_event_not_counted_fails(self):
        self.assertEqual(self.failing(self.doctored("0,,branches", "<not counted>,,branches")), {"stat-cycles"})
        self.assertEqual(self.failing(self.doctored("1000,,instructions", "0,,instructions")), {"stat-cycles"})

    def test_an_event_that_the_clock_cannot_count_fails_if_it_counts(self):
        self.assertEqual(self.failing(self.doctored("0,,branches", "1,,branches")), {"stat-cycles"})
        self.assertEqual(self.failing(self.doctored("0,,branch-misses", "1,,branch-misses")), {"stat-cycles"})

    def test_a_wrong_split_fails(self):
        for heavy, light in ((74.0, 25.5), (86.0, 13.5), (60.0, 15.0)):
            for mode in suites.MODES:
                lines = [line for line in single_lines() if f"report {mode} " not in line]
                lines += [f"vpmu-guest: report {mode} {heavy} heavy", f"vpmu-guest: report {mode} {light} light"]
                self.assertEqual(self.failing(lines), {f"split-{mode}"})

    def test_too_few_samples_in_user_mode_fail(self):
        for address in ("401619", "ffffffff81000010"):
            lines = [line for line in single_lines() if "ip freq-p 390 " not in line]
            lines[lines.index("vpmu-guest: ip freq-p 600 401619")] = "vpmu-guest: ip freq-p 199 " + address
            self.assertEqual(self.failing(lines), {"split-freq-p", "boundaries-freq-p"})

    def test_an_address_inside_an_instruction_fails(self):
        for mode in suites.MODES:
            lines = [*single_lines(), f"vpmu-guest: ip {mode} 1 40161a"]
            self.assertEqual(self.failing(lines), {f"boundaries-{mode}"})
        lines = [*single_lines(), "vpmu-guest: ip loop8-freq 1 401021"]
        self.assertEqual(self.failing(lines), {"boundaries-loop8-freq"})

    def test_samples_piled_up_on_one_instruction_fail(self):
        lines = self.doctored("ip loop8-freq 100 401020", "ip loop8-freq 360 401020")
        self.assertEqual(self.failing(lines), {"even-loop8-freq"})

    def test_instructions_never_sampled_fail(self):
        lines = list(single_lines())
        for address in ("401020", "401026", "40102c"):
            lines = [line for line in lines if f"ip loop8-period 100 {address}" not in line]
        lines.append("vpmu-guest: ip loop8-period 60 401023")
        lines += [f"vpmu-guest: ip loop8-period 60 {address}" for address in ("401029", "40102f", "401035", "401038")]
        self.assertEqual(self.failing(lines), {"even-loop8-period"})

    def test_samples_outside_the_loop_fail(self):
        lines = [line for line in single_lines() if "ip loop8-freq" not in line] + ["vpmu-guest: ip loop8-freq 900 40103a"]
        self.assertEqual(self.failing(lines), {"even-loop8-freq"})

    def test_memory_samples_are_checked(self):
        for old, new in (
            ("mem mem-loads 401615 4c0000", "mem mem-loads 401615 4d0000"),  # address just past the array
            ("mem mem-loads 401615 4c0000", "mem mem-loads 401615 0"),
            ("mem mem-loads 401615 4c0000", "mem mem-loads 401618 4c0000"),  # no memory access
            ("mem mem-loads 401615 4c0000", "mem mem-loads 401616 4c0000"),  # no instruction
        ):
            self.assertEqual(self.failing(self.doctored(old, new, lines=host_lines), "host"), {"host-memory-loads"}, new)
        for new, count, failing in (("mem mem-stores 401615", 40, {"host-memory-stores"}), ("mem mem-stores 401615", 2, set()), ("mem other 40161c", 20, {"host-memory-stores"})):
            self.assertEqual(self.failing(self.doctored("mem mem-stores 40161c", new, count, host_lines), "host"), failing)

    def test_a_perf_test_worse_than_the_baseline_fails(self):
        for number in suites.PERF_TESTS:
            part = "4.1" if number == 4 else str(number)
            self.assertEqual(self.failing(self.doctored(f"perf-test {part} Ok", f"perf-test {part} FAILED")), {f"perf-test-{number}"})
            self.assertEqual(self.failing(self.doctored(f"perf-test {part} Ok", f"perf-test {part} Skip")), {f"perf-test-{number}"})
            self.assertEqual(self.failing(self.doctored(f"perf-test {part} Ok", "perf-test 99 Ok")), {f"perf-test-{number}"})

    def test_a_perf_test_better_than_the_baseline_passes(self):
        self.assertEqual(self.failing(self.doctored("perf-test 4.2 Skip", "perf-test 4.2 Ok")), set())

    def test_too_many_exits_fail(self):
        lines = [line.replace("12000", "13001") if "after-single-pp " in line else line for line in single_lines()]
        self.assertEqual(self.failing(lines), {"exits-per-sample-pp"})
        lines = [line.replace("424", "451") if "counters init" in line else line for line in single_lines()]
        self.assertEqual(self.failing(lines), {"boot-exits"})
        lines = [line.replace("424", "0") if "counters init" in line else line for line in single_lines()]
        self.assertEqual(self.failing(lines), {"boot-exits"})

    def test_exits_over_few_records_fail(self):
        lines = [line.replace('records": 1000', 'records": 150') if "after-single-p " in line else line for line in single_lines()]
        self.assertEqual(self.failing(lines), {"exits-per-sample-p"})

    def test_a_missing_counter_fails(self):
        lines = [line.replace("pmu.walk.steps", "steps") if "after-single-p " in line else line for line in single_lines()]
        self.assertEqual(self.failing(lines), {"exits-per-sample-p"})

    def test_a_collapsed_sample_rate_fails(self):
        self.assertEqual(self.failing(self.doctored("max-sample-rate 100000", "max-sample-rate 3999")), {"sample-rate"})

    def test_smp_checks_fail_too(self):
        text = "\n".join(smp_lines())
        for old, new, failing in (
            ("report all-cpus 80.0 heavy", "report all-cpus 50.0 heavy", "smp-split-all-cpus"),
            ("clocks 2000 0 7000", "clocks 2000 1 7000", "smp-clocks"),
            ("clocks 2000 0 7000", "clocks 199 0 7000", "smp-clocks"),
            ("clocks 2000 0 7000", "clocks 2000 0 199", "smp-clocks"),
            ("ip all-cpus 600 401619", "ip all-cpus 600 40161a", "smp-boundaries-all-cpus"),
            ("vpmu-guest: done", "", "smp-guest-ends"),
            ("fmt3+", "fmt3-", "smp-dmesg-pmu"),
            ("tsc: Detected", "irq loop stuck", "smp-dmesg-clean"),
        ):
            self.assertEqual(self.failing(text.replace(old, new).splitlines(), "smp"), {failing})


    def test_a_disturbed_guest(self):
        text = "\n".join(attached_lines())
        self.assertEqual(self.failing(text.splitlines(), "attached"), set())
        changes = [(what, f"{what.split()[0]} 0", "attached-disturbed") for what in ("reset 1", "stepped 30", "saved 4", "migrated 3", "in-use 7")]
        changes += [
            ("instructions:u 200000005", "instructions:u 200000004", "attached-instructions:u"),
            ("vpmu-guest: patient branches:u 40000001\n", "", "attached-branches:u"),
            ("vpmu-guest: long-sample 40100c\n", "", "attached-precise-order"),
            ("long-sample 40100c", "long-sample 40100f", "attached-precise-order"),
            ("lost 0", "lost 1", "attached-precise-order"),
            ("vpmu-host: disturbed", "vpmu-host: undisturbed", "attached-disturbed"),
            ("vpmu-host: exit 0", "vpmu-host: exit 1", "attached-guest-ends"),
        ]
        for old, new, failing in changes:
            self.assertEqual(self.failing(text.replace(old, new, 1).splitlines(), "attached"), {failing}, (old, new))

    def test_a_session_that_ends_early_says_why(self):
        text = "\n".join(attached_lines()).replace("vpmu-host: exit 0", "qemu-session: the guest did not end within 600 s")
        with self.assertRaisesRegex(AssertionError, "qemu-session: the guest did not end within 600 s"):
            suites.judge("attached", "attached-guest-ends", console_log.parse(text), PROGRAMS)

    def test_a_libvirt_domain(self):
        text = "\n".join(libvirt_lines())
        self.assertEqual(self.failing(text.splitlines(), "libvirt"), set())
        for old, new, failing in (
            ("refused same", "refused CHANGED", "libvirt-domain"),
            ("vpmu-host: domain refused same\n", "", "libvirt-domain"),
            ("enabled haswell exact", "enabled skylake exact", "libvirt-domain"),
            ("enabled haswell exact", "- - -", "libvirt-domain"),
            ("domain changed 20", "domain changed 0", "libvirt-domain"),
            ("disabled same", "disabled CHANGED", "libvirt-domain"),
            ("\nvpmu-host: domain disabled same", "", "libvirt-domain"),
            ("\nvpmu-host: domain own-vmm done", "", "libvirt-domain"),
            ("own-vmm done", "own-vmm FAILED", "libvirt-domain"),
            ('"pmu.pebs.records": 199', '"pmu.pebs.records": 0', "libvirt-domain"),
            ("instructions:u 200000005", "instructions:u 200000004", "libvirt-instructions:u"),
            ("branches:u 40000001", "branches:u 1", "libvirt-branches:u"),
            ("long-sample 40100c", "long-sample 40100f", "libvirt-precise-order"),
            ("tsc: Detected", "irq loop stuck", "libvirt-dmesg-clean"),
            ("fmt2+", "fmt2-", "libvirt-dmesg-pmu"),
            ("vpmu-host: exit 0", "vpmu-host: exit shut off (crashed)", "libvirt-guest-ends"),
        ):
            self.assertNotEqual(text, text.replace(old, new, 1), old)
            self.assertEqual(self.failing(text.replace(old, new, 1).splitlines(), "libvirt"), {failing}, (old, new))

    def test_a_saved_guest(self):
        text = "\n".join(attached_lines("saved 6 in-use 5 copied 2"))
        self.assertEqual(self.failing(text.splitlines(), "saved"), set())
        for old, new, failing in (
            ("saved 6", "saved 2", "saved-disturbed"),
            ("in-use 5", "in-use 1", "saved-disturbed"),
            ("copied 2", "copied 0", "saved-disturbed"),
            ("instructions:u 200000005", "instructions:u 200000006", "saved-instructions:u"),
            ("vpmu-guest: long-sample 40100c\n", "", "saved-precise-order"),
        ):
            self.assertEqual(self.failing(text.replace(old, new, 1).splitlines(), "saved"), {failing}, (old, new))

    def test_a_core_with_one_thread_has_all_counters(self):
        alone = [line.replace("generic registers:      4", "generic registers:      8").replace("000000070000000f", "00000007000000ff")
                 for line in exact_lines("haswell")]
        self.assertEqual(self.failing(alone, "exact"), {"exact-dmesg-pmu"})
        self.assertEqual(self.failing([*alone, "vpmu-host: threads 1"], "exact"), set())
        self.assertEqual(self.failing([*exact_lines("westmere"), "vpmu-host: threads 1"], "exact"), set())

    def test_exact_checks_fail_too(self):
        text = "\n".join(exact_lines())
        for old, new, failing in (
            ("count instructions:u 500005", "count instructions:u 500006", "exact-instructions:u"),
            ("vpmu-guest: count branches:u 100001\n", "", "exact-branches:u"),
            ("sample 40100f", "sample 401012", "exact-precise-order"),
            ("vpmu-guest: sample 40100f\n", "", "exact-precise-order"),
            ("mixed instructions 2125", "mixed instructions 2126", "exact-instructions-as-qemu"),
            ("vpmu-guest: mixed branches 702\n", "", "exact-branches-as-qemu"),
            ("qemu-count mixed loads 780", "qemu-count mixed loads 779", "exact-loads-as-qemu"),
            ("vpmu-host: qemu-count mixed stores 580\n", "", "exact-stores-as-qemu"),
            ("conditional 360", "conditional 361", "exact-same-each-time"),
            ("vpmu-guest: conditional 360\n", "", "exact-same-each-time"),
            ("self sampled 0 99 0", "self sampled 0 99 99", "exact-self-sampled"),  # of PEBS, which nobody asked for
            ("self sampled 2 99 99", "self sampled 2 99 98", "exact-self-sampled"),
            ("vpmu-guest: self sampled 1 99 0\n", "", "exact-self-sampled"),
            ("overflows 100 50", "overflows 100 49", "exact-self-overflows"),
            ("50 10002504", "50 9002504", "exact-self-overflows"),
            ("self thread 20 20000147", "self thread 20 19999999", "exact-self-threads"),
            ("self thread 20 20000147", "self thread 20 20001147", "exact-self-threads"),
            ("vpmu-guest: self thread 15 15000117\n", "", "exact-self-threads"),
            ("shared 4999810 20014704 4", "shared 4999810 12014704 4", "exact-self-shared"),
            ("shared 4999810 20014704 4", "shared 20014704 20014704 4", "exact-self-shared"),  # no turns
            ("shared 20000144 20000144 0", "shared 12000144 20000144 0", "exact-self-shared"),
            ("vpmu-guest: self shared 4999810 20014704 4\n", "", "exact-self-shared"),
            ("sampled 40101f 403040 5 ", "sampled 40101f 403040 6 ", "exact-samples-as-modelled"),  # another latency
            ("sampled 40101f 403040", "sampled 401022 403040", "exact-samples-as-modelled"),  # another instruction
            ("sampled 40101f 403040", "sampled 40102a 403040", "exact-samples-as-modelled"),  # none that loads
            ("sampled 40101f 402000 4 OP_LOAD LVL_L1_or_L1_hit TLB_L2_miss", "sampled 40101f 402000 4 OP_LOAD LVL_L1_or_L1_hit TLB_L1_or_L2_hit",
             "exact-samples-as-modelled"),
            ("408010 - OP_STORE LVL_L1_hit", "408010 - OP_STORE LVL_L1_miss", "exact-samples-as-modelled"),
            ("modelled 0x40101f load 0x403040 ", "modelled 0x40101f load 0x403048 ", "exact-samples-as-modelled"),
            ("vpmu-guest: done", "", "exact-guest-ends"),
            ("fmt3+", "fmt3-", "exact-dmesg-pmu"),
            ("tsc: Detected", "irq loop stuck", "exact-dmesg-clean"),
        ):
            self.assertIn(old, text)
            failed = self.failing(text.replace(old, new, 1).splitlines(), "exact")
            self.assertEqual(failed - {"exact-samples-at-every-level"} if "sampled" in old or "OP_STORE" in old else failed, {failing})

    def test_what_a_record_tells_depends_on_the_model(self):
        for model, old, new in (
            ("sandybridge", "408010 - OP_STORE LVL_L1_hit TLB_L2_miss", "408010 - OP_STORE LVL_L1_hit TLB_L2_hit"),
            ("sandybridge", "408010 - OP_STORE LVL_L1_hit TLB_L2_miss", "408010 - OP_STORE LVL_L1_hit TLB_N/A"),
            ("haswell", "408010 - OP_STORE LVL_L1_hit TLB_N/A", "408010 - OP_STORE LVL_L1_hit TLB_L2_miss"),
            ("nehalem", "402040 4 OP_LOAD LVL_L1_or_L1_hit TLB_N/A", "402040 4 OP_LOAD LVL_L1_or_L1_hit TLB_L1_or_L2_hit"),
            ("westmere", "402040 4 OP_LOAD LVL_L1_or_L1_hit TLB_L1_or_L2_hit", "402040 4 OP_LOAD LVL_L1_or_L1_hit TLB_N/A"),
        ):
            text = "\n".join(exact_lines(model))
            self.assertIn(old, text)
            self.assertEqual(self.failing(text.replace(old, new, 1).splitlines(), "exact"), {"exact-samples-as-modelled"}, (model, new))
        for kernel, other in (("6.1", "6.12"), ("6.12", "6.1")):
            lines = [line.replace(f"kernel {kernel}.", f"kernel {other}.") for line in exact_lines("skylake", kernel)]
            self.assertEqual(self.failing(lines, "exact"), {"exact-samples-as-modelled", "exact-samples-at-every-level"}, kernel)
        stores = [line for line in exact_lines() if "OP_STORE" in line]
        self.assertEqual(self.failing([*exact_lines("westmere"), *stores], "exact"), {"exact-samples-as-modelled", "exact-samples-at-every-level"})

    def test_a_level_without_samples_fails(self):
        for level, text in memory_checks.LOAD_LEVELS.items():
            sampled = f"OP_LOAD {text} TLB_L1_or_L2_hit"
            lines = [line for line in exact_lines() if not line.endswith(sampled)]
            self.assertEqual(self.failing(lines, "exact"), {"exact-samples-at-every-level"}, level)
        for old, new in (("TLB_L2_miss", "TLB_L1_or_L2_hit"), ("stlb_miss 1", "stlb_miss 0")):
            lines = [line.replace(old, new) for line in exact_lines()]
            self.assertIn("exact-samples-at-every-level" if old == "TLB_L2_miss" else "exact-samples-as-modelled", self.failing(lines, "exact"))
        unknown = [line.replace("LVL_L1_or_L1_hit", "LVL_L3_miss", 1) if "402040 4 OP_LOAD" in line else line for line in exact_lines()]
        self.assertEqual(self.failing(unknown, "exact"), {"exact-samples-as-modelled", "exact-samples-at-every-level"})


    def test_soft_checks_fail_too(self):
        text = "\n".join(soft_lines())
        for old, new, failing in (
            ("vpmu-guest: done", "", {"soft-console-alike"}),
            ("vpmu-host: exit 0", "vpmu-host: exit 3", {"soft-guest-ends"}),
            ("0.000042] a line", "0.000043] a line", {"soft-console-alike"}),
            ("1400000000", "1400000001", {"soft-counters-alike"}),
        ):
            self.assertIn(old, text)
            self.assertEqual(self.failing(text.replace(old, new, 1).splitlines(), "soft"), failing)
        self.assertEqual(self.failing(text.replace('"pmu.exits.kick": 3', '"pmu.exits.kick": 4', 1).splitlines(), "soft"), set(), "the host's")
        once = text[: text.index("vpmu-host: exit 0") + 20]
        self.assertEqual(self.failing(once.splitlines(), "soft"), {"soft-console-alike", "soft-counters-alike"})
        few = text.replace("1400000000", "14")
        self.assertEqual(self.failing(few.splitlines(), "soft"), {"soft-counters-alike"})


class DisassemblyTest(unittest.TestCase):
    def test_what_loads_and_what_stores(self):
        for text, load, store in (
            ("mov    (%rdi),%rax", True, False),
            ("mov    %rax,(%rdi)", False, True),
            ("mov    0x10(%rsp,%rax,8),%ecx", True, False),
            ("mov    %rax,-0x8(%rbp,%rcx,1)", False, True),
            ("mov    %fs:0x28(%rip),%rax", True, False),
            ("add    %rax,0x8(%rdi)", True, True),
            ("add    0x8(%rdi),%rax", True, False),
            ("cmp    $0x1,(%rdi)", True, False),
            ("lea    0x8(%rdi),%rax", False, False),
            ("nopw   0x0(%rax,%rax,1)", False, False),
            ("add    %rdi,%rax", False, False),
            ("jne    401020 <loop8>", False, False),
            ("push   %rbx", False, True),
            ("ret", False, False),
        ):
            self.assertEqual((disassembly.is_load(text), disassembly.is_store(text)), (load, store), text)

