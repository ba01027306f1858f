"""judge of what perf can do on each model

On a good log, and on logs with one thing wrong each.
"""

import functools
import hashlib
import subprocess
import tempfile
import unittest

import pytest

import console_log
import disassembly
import facility_checks
import generations
from good_logs import boot, store_levels
import memory_checks
import models
import stepper
from paths import LINUX

pytestmark = pytest.mark.quick


def assembled(name, directory):
    """A program of the guest, as build-initramfs makes it."""
    path = f"{directory}/{name}"
    subprocess.run(["cc", "-static", "-no-pie", "-nostdlib", "-o", path, LINUX / f"programs/{name}.S"], check=True)
    return disassembly.load(path)


with tempfile.TemporaryDirectory() as place:
    PROGRAMS = {name: assembled(name, place) for name in ("chase", "calls", "lines")}
CALLS = stepper.run(PROGRAMS["calls"], PROGRAMS["calls"].addresses_of("_start")[0])


def at(program, label):
    return PROGRAMS[program].addresses_of(label)[0]


def precise_lines(modifier):
    first, step = {"p": (104, 104), "pp": (103, 104), "ppp": (128, 129)}[modifier]
    yield from (f"vpmu-guest: precise {modifier} {address:x}" for address in CALLS.path[first::step])


def walked_lines(name, model, kernel):
    begin, _ = PROGRAMS["chase"].objects["array"]
    for loop, size in facility_checks.CLASSES.items():
        places = f"{begin:x} {begin + size - 8:x}"
        if name == "loads":
            ip, latency = at("chase", f"{loop}_load"), facility_checks.LATENCIES[loop][0]
            yield f"vpmu-guest: walked loads 18 {ip:x} {latency} OP_LOAD {memory_checks.LOAD_LEVELS[loop]} TLB_L1_or_L2_hit {places}"
            yield f"vpmu-guest: walked loads 2 {ip:x} 30 OP_LOAD LVL_LFB/MAB_or_LFB/MAB_hit TLB_L1_or_L2_hit {places}"
        else:
            tlb = "TLB_L2_hit" if model.stores == "tlb" else "TLB_N/A"
            for label in ("link", "store"):
                yield f"vpmu-guest: walked stores 10 {at('chase', f'{loop}_{label}'):x} - OP_STORE {store_levels(model, kernel)[loop != 'l1']} {tlb} {places}"
    if name == "stores" and model.store_uops:
        yield sweep_line()


def sweep_line():
    return f"vpmu-guest: walked stores 14 {at('chase', 'sweep_store'):x} - OP_STORE {models.STORE_LEVELS[1]} TLB_N/A 0 0"


def shared_lines(model):
    stores = 490 if model.stores else 0
    for name, count in (("Total records", 80 + stores), ("Load Operations", 80), ("Load L1D hit", 20), ("Load L2D hit", 20), ("Load LLC hit", 20),
                        ("Load Local DRAM", 20), ("Store Operations", stores), ("Store L1D Hit", stores and 20), ("Store L1D Miss", stores and 470)):
        yield f"vpmu-guest: shared {count} {name}"


def branch_lines(model):
    for place in range(1003, len(CALLS.path), 1004):
        taken = [f"{begin:#x}/{to:#x}" for when, begin, to in CALLS.branches if when <= place]
        yield f"vpmu-guest: branches {CALLS.path[place]:x} {' '.join(taken[: -model.lbr_depth - 1 : -1])}"


def stack_lines():
    for place in range(1003, len(CALLS.path), 1004):
        yield " ".join(["vpmu-guest: stack", *(f"{address:x}" for address in (CALLS.path[place], *CALLS.callers[place]))])


def trace_line():
    text = "".join(f"{begin:x} {to:x}\n" for _, begin, to in CALLS.branches)
    return f"vpmu-guest: traced {len(CALLS.branches)} {hashlib.md5(text.encode()).hexdigest()}"


def facility_lines(facility, model, kernel):
    if facility in (":p", ":pp", ":ppp"):
        yield from precise_lines(facility[1:])
    elif facility.startswith("mem "):
        yield from walked_lines(facility[4:], model, kernel)
    elif facility == "c2c":
        yield from shared_lines(model)
    elif facility == "PMIs":
        yield "vpmu-guest: interrupts 1010 1000 0"
    elif facility == "-b":
        yield from branch_lines(model)
    elif facility == "call-graph lbr":
        yield from stack_lines()
    elif facility == "offcore":
        yield "vpmu-guest: offcore-count 20100"
        yield from (f"vpmu-guest: offcore 40 {at('chase', f'{loop}_load') + 3:x}" for loop in ("l3", "memory"))
    elif facility == "frontend":
        yield from (f"vpmu-guest: fetched {event} {at('lines', 'lines') + 64 * line:x}" for event in (11, 12) for line in range(41))
    elif facility == "uncore":
        yield "vpmu-guest: tsc-mhz 2500.000"
        yield from (f"vpmu-guest: uncore {name} 0" for name in model.uncore)
        yield f"vpmu-guest: uncore-clock {model.uncore_clock} {round(25e6 * model.uncore_rate)} 10000000"
    else:
        yield trace_line()


@functools.lru_cache
def good_lines(name, kernel="6.1"):
    return list(lines_of(name, kernel))


def lines_of(name, kernel):
    model = models.MODELS[name]
    yield f"vpmu-host: model {name}"
    yield f"vpmu-guest: kernel {kernel}.95+deb12-cloud-amd64"
    for facility in facility_checks.CHECKS:
        refused = model.lacks(facility)
        for recording in facility_checks.RECORDINGS[facility]:
            yield f"vpmu-guest: refused {recording} it cannot" if refused else f"vpmu-guest: opened {recording}"
        if not refused:
            yield from facility_lines(facility, model, kernel)


class FacilityTest(unittest.TestCase):
    def outcomes(self, lines):
        run = console_log.parse("\n".join(lines))
        found = {}
        for facility in facility_checks.CHECKS:
            try:
                found[facility], _ = facility_checks.judge(run, PROGRAMS, facility)
            except AssertionError:
                found[facility] = "FAILED"
        return found

    def expected(self, name):
        return {facility: models.MODELS[name].lacks(facility) or "yes" for facility in facility_checks.CHECKS}

    def assert_changes(self, old, new, changed, name="skylake", cell="FAILED"):
        text = "\n".join(good_lines(name)) + "\n"
        self.assertIn(old, text)
        self.assertEqual(self.outcomes(text.replace(old, new).splitlines()), self.expected(name) | {changed: cell}, f"{old} -> {new}")

    def test_a_good_log_has_all_that_the_model_has(self):
        for name in models.MODELS:
            for kernel in models.KERNELS:
                self.assertEqual(self.outcomes(good_lines(name, kernel)), self.expected(name), f"{name} {kernel}")
        self.assertEqual(set(self.expected("skylake").values()), {"yes"})
        self.assertEqual(sum(cell == "yes" for cell in self.expected("nehalem").values()), 8)

    def test_no_nmi_may_belong_to_nobody(self):
        for name in ("nehalem-havendale", "sandybridge", "skylake"):
            self.assert_changes("interrupts 1010 1000 0", "interrupts 1010 1000 1", "PMIs", name)
        self.assert_changes("interrupts 1010 1000 0", "interrupts 3 3 0", "PMIs")

    def test_an_empty_log_passes_nothing(self):
        for name in ("nehalem", "nehalem-havendale", "haswell", "skylake"):
            self.assertEqual(set(self.outcomes([f"vpmu-host: model {name}"]).values()), {"FAILED"}, name)
        self.assertEqual(set(self.outcomes([]).values()), {"FAILED"})

    def test_a_facility_that_is_refused_fails(self):
        for facility, recordings in facility_checks.RECORDINGS.items():
            for recording in recordings:
                self.assert_changes(f"opened {recording}\n", f"refused {recording} no\n", facility)

    def test_a_facility_that_the_processor_lacks_must_be_refused(self):
        self.assert_changes("refused stores it", "opened stores", "mem stores", "westmere")
        self.assert_changes("refused trace it cannot", "", "BTS", "haswell")

    def test_without_records_a_facility_is_missing(self):
        self.assert_changes(trace_line(), "vpmu-guest: traced 0 d41d8", "BTS", cell=models.MISSING)
        self.assert_changes("offcore-count 20100", "offcore-count 0", "offcore", cell=models.MISSING)
        self.assert_changes("guest: fetched", "guest: other", "frontend", cell=models.MISSING)

    def test_an_instruction_beside_the_right_one_fails(self):
        for modifier in ("p", "pp", "ppp"):
            first = next(precise_lines(modifier))
            self.assert_changes(first, f"vpmu-guest: precise {modifier} {at('calls', 'last'):x}", ":" + modifier)
            self.assert_changes(first + "\n", "", ":" + modifier)

    def test_a_level_that_is_not_the_loops_fails(self):
        for loop in facility_checks.CLASSES:
            load = f"18 {at('chase', f'{loop}_load'):x} "
            level = memory_checks.LOAD_LEVELS[loop]
            latency = facility_checks.LATENCIES[loop][0]
            self.assert_changes(f"{load}{latency} OP_LOAD {level}", f"{load}{latency} OP_LOAD LVL_LFB/MAB_or_LFB/MAB_hit", "mem loads")
            self.assert_changes(f"{load}{latency} ", f"{load}{facility_checks.LATENCIES[loop][1] + 1} ", "mem loads")
            self.assert_changes(f"{load}{latency} OP_LOAD", f"{load}{latency} OP_STORE", "mem loads")
            self.assert_changes(f"walked loads {load}", f"walked loads 5 {load[3:]}", "mem loads")
            store = f"{at('chase', f'{loop}_store'):x} - OP_STORE "
            hit, miss = models.STORE_LEVELS
            self.assert_changes(store + (hit if loop == "l1" else miss), store + (miss if loop == "l1" else hit), "mem stores")

    def test_the_sweep_is_sampled_where_its_stores_count_one_by_one_and_only_there(self):
        self.assert_changes(sweep_line() + "\n", "", "mem stores", "haswell")
        self.assert_changes("opened stores\n", f"opened stores\n{sweep_line()}\n", "mem stores", "skylake")

    def test_how_stores_tell_their_level_depends_on_the_kernel(self):
        for name in models.MODELS:
            for kernel, other in (("6.1", "6.12"), ("6.12", "6.1")):
                lines = [line.replace(f"kernel {kernel}.", f"kernel {other}.") for line in good_lines(name, kernel)]
                failing = {"mem stores": "FAILED"} if models.MODELS[name].stores == "level" else {}
                self.assertEqual(self.outcomes(lines), self.expected(name) | failing, f"{name} {kernel}")

    def test_a_kernel_that_is_not_known_passes_nothing(self):
        for new in ("kernel 6.6.95", "kernel 6", "other"):
            lines = [line.replace("kernel 6.1.95", new) for line in good_lines("skylake")]
            self.assertEqual(set(self.outcomes(lines).values()), {"FAILED"}, new)

    def test_addresses_of_data_and_code_are_checked(self):
        begin, end = PROGRAMS["chase"].objects["array"]
        for loop, size in facility_checks.CLASSES.items():
            load = f"loads 18 {at('chase', f'{loop}_load'):x}"
            self.assert_changes(load, f"loads 18 {at('chase', f'{loop}_load') + 3:x}", "mem loads")
            line = next(line for line in good_lines("skylake") if load in line)
            self.assert_changes(line, line.replace(f" {begin + size - 8:x}", f" {begin + size:x}"), "mem loads")
            self.assert_changes(line, line.replace(f" {begin:x} ", f" {begin - 8:x} "), "mem loads")

    def test_totals_of_c2c_are_checked(self):
        for name in ("Total records", "Load Operations", "Load L1D hit", "Load L2D hit", "Load LLC hit", "Load Local DRAM"):
            line = next(line for line in good_lines("skylake") if line.endswith(name))
            self.assert_changes(line, f"vpmu-guest: shared 17 {name}", "c2c")
        self.assert_changes("470 Store L1D Miss", "0 Store L1D Miss", "c2c")
        self.assert_changes("20 Store L1D Hit", "0 Store L1D Hit", "c2c")
        self.assert_changes("20 Store L1D Hit\nvpmu-guest: shared 470", "470 Store L1D Hit\nvpmu-guest: shared 20", "c2c")
        self.assert_changes("0 Store Operations", "20 Store Operations", "c2c", "westmere")

    def test_branches_are_the_true_ones(self):
        for name in ("nehalem", "skylake"):
            line = next(branch_lines(models.MODELS[name]))
            words = line.split()
            self.assert_changes(line, " ".join(words[:-1]), "-b", name)  # the oldest is missing
            self.assert_changes(line, " ".join([*words[:3], *words[4:]]), "-b", name)  # the latest is missing
            self.assert_changes(line, line.replace(words[-1], "0x401000/0x401006"), "-b", name)
            self.assert_changes(line + "\n", "", "-b", name)

    def test_stacks_are_the_true_ones(self):
        line = next(line for line in stack_lines() if len(line.split()) > 5)
        words = line.split()
        self.assert_changes(line, " ".join(words[:-1]), "call-graph lbr")
        self.assert_changes(line, " ".join([*words[:3], *words[4:]]), "call-graph lbr")
        self.assert_changes(line, " ".join([*words[:2], "401000", *words[3:]]), "call-graph lbr")

    def test_a_trace_is_the_whole_path(self):
        count, digest = trace_line().split()[2:]
        self.assert_changes(f"traced {count}", f"traced {int(count) - 1}", "BTS")
        self.assert_changes(digest, digest[::-1], "BTS")

    def test_off_core_loads_are_those_of_the_far_loops(self):
        self.assert_changes("offcore-count 20100", "offcore-count 22100", "offcore")
        self.assert_changes("offcore-count 20100", "offcore-count 17900", "offcore")
        for loop, other in (("l3", "l1"), ("memory", "l2")):
            self.assert_changes(f"offcore 40 {at('chase', f'{loop}_load') + 3:x}", f"offcore 40 {at('chase', f'{other}_load') + 3:x}", "offcore")

    def test_the_uncores_pmus_and_clock_are_the_models(self):
        self.assert_changes("uncore uncore_arb 0\n", "", "uncore")
        self.assert_changes("uncore uncore_arb 0", "uncore uncore_arb 5", "uncore")
        self.assert_changes("uncore uncore_cbox 0", "uncore uncore_cbox 0\nvpmu-guest: uncore uncore_ubox 0", "uncore")
        self.assert_changes("25000000 10000000", "24700000 10000000", "uncore")
        self.assert_changes("20000000 10000000", "25000000 10000000", "uncore", "westmere")
        self.assert_changes("uncore-clock uncore_ubox", "uncore-clock uncore_pcu", "uncore", "haswell-ep")
        self.assert_changes("uncore-clock uncore_ubox", "other uncore_ubox", "uncore", "skylake-sp")

    def test_fetches_are_sampled_where_lines_begin(self):
        for event in (11, 12):
            first = f"fetched {event} {at('lines', 'lines'):x}\n"
            self.assert_changes(first, first.replace("0\n", "5\n"), "frontend")
            self.assert_changes(first, "", "frontend", cell="yes")  # one more or less is the start
        self.assert_changes("fetched 12", "other 12", "frontend", cell=models.MISSING)


class TableTest(unittest.TestCase):
    def test_every_cell_is_a_yes_or_a_reason_that_the_table_has(self):
        lines = (LINUX / "facilities.md").read_text(encoding="ascii").splitlines()
        reasons = {line[2]: line[5:] for line in lines if line.startswith("- ")}
        self.assertEqual(list(reasons.values()), list(models.REASONS))
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
        self.assertEqual(rows[0], ["model", "Linux", "dmesg", *facility_checks.CHECKS])
        self.assertEqual([(name, kernel) for name, kernel, *_ in rows[1:]], [guest for guest in generations.GUESTS if guest in self.in_table()])
        for name, kernel, dmesg, *cells in rows[1:]:
            self.assertEqual(dmesg, "yes", f"{name} {kernel}")
            for facility, cell in zip(facility_checks.CHECKS, cells, strict=True):
                reason = models.MODELS[name].lacks(facility)
                self.assertIn(reasons.get(cell, cell), (reason,) if reason else ("yes", models.MISSING), f"{name} {kernel} {facility}")

    def in_table(self, **options):
        return generations.guests_of(**options)

    def test_which_guests_are_booted(self):
        self.assertEqual(len(self.in_table()), len(models.MODELS) + 4)
        self.assertEqual(self.in_table(models="skylake,haswell-ep"), [("skylake", "6.1"), ("skylake", "6.12"), ("haswell-ep", "6.1")])
        self.assertEqual({name for name, _ in self.in_table(kernel="6.12")}, {"nehalem", "ivybridge", "haswell", "skylake"})
        self.assertEqual(self.in_table(models="haswell-ep", kernel="6.12"), [("haswell-ep", "6.12")])
        self.assertEqual(len(self.in_table(models="all", kernel="6.12")), len(models.MODELS))

    def test_what_was_not_measured_agrees_with_the_table(self):
        known = generations.known_rows()["haswell", "6.1"]
        row = dict.fromkeys(generations.COLUMNS, "yes") | {name: models.MODELS["haswell"].lacks(name) for name in ("frontend", "BTS")}
        whole = generations.row_of("haswell", "6.1", row)
        row.pop("uncore")
        without_uncore = generations.row_of("haswell", "6.1", row)
        self.assertTrue(generations.agrees(whole, known))
        self.assertNotEqual(without_uncore, whole)
        self.assertTrue(generations.agrees(without_uncore, known))
        self.assertFalse(generations.agrees(generations.row_of("haswell", "6.1", row | {":pp": "FAILED"}), known))

    def judged(self, lines, model="skylake", kernel="6.12", accel="soft"):
        """The row's columns that are not "yes", and the names of the checks that failed."""
        row, findings = generations.judge_guest("\n".join(lines), PROGRAMS, model, kernel, accel)
        return {column for column in generations.COLUMNS if row[column] != "yes"}, {line.split(":")[0] for line in findings if line.startswith("FAIL")}

    def test_the_guest_must_be_the_one_that_was_asked_for(self):
        lines = [*boot("skylake", "6.12"), *good_lines("skylake", "6.12")[2:], "vpmu-guest: done", "vpmu-host: exit 0"]
        self.assertEqual(self.judged(lines), (set(), set()))
        self.assertEqual(self.judged(lines, kernel="6.1"), ({"dmesg"}, {"FAIL skylake 6.1 kernel"}))
        self.assertEqual(self.judged(lines, model="skylake-u"), ({"dmesg"}, {"FAIL skylake-u 6.12 kernel"}))

    def test_kvm_must_have_run_it_where_it_was_asked_to(self):
        lines = [*boot("skylake", "6.12"), *good_lines("skylake", "6.12")[2:], "vpmu-guest: done"]
        counters = 'vpmu-host: counters end {"vcpus": [{"kvm.ioctls.KVM_GET_REGS": 7}]}'
        without, on_kvm = [*lines, "vpmu-host: exit 0"], [*lines, counters, "vpmu-host: exit 0"]
        wrong = ({"dmesg"}, {"FAIL skylake 6.12 kernel"})
        self.assertEqual(self.judged(on_kvm, accel="kvm"), (set(), set()))
        self.assertEqual(self.judged(without, accel="kvm"), wrong)
        self.assertEqual(self.judged(on_kvm), wrong)
        self.assertEqual(self.judged([*on_kvm, "vpmu-guest: done", "vpmu-host: exit 0"], accel="kvm"), wrong)


class StepperTest(unittest.TestCase):
    def test_the_path_of_calls(self):
        self.assertEqual(len(CALLS.branches), 400 * 16 + 200 - 1)
        self.assertEqual(CALLS.path[0], at("calls", "_start"))
        deepest = max(CALLS.callers, key=len)
        self.assertEqual(deepest, tuple(at("calls", f"call_{name}") for name in ("leaf", "inner", "middle", "outer")))
        self.assertEqual(CALLS.callers[-1], ())

