"""Runs the tests of the project and closes with "N passed, N failed". As root, from a clone, on Debian 12 (`--only unit` on Debian 13, too).

    tools/test                    installs what is missing, builds, and runs all; long matrices are sampled
    tools/test --quick            build, lints, unit tests, test kernels on Skylake: minutes
    tools/test --full             all of the matrices, longer fuzzing, sanitizer builds, clang, Debian 13: hours
    tools/test --intel-host       all that runs on the emulated Intel host
    tools/test --only STEP...     these steps; `unit` are the unit tests
    tools/test --list             the steps and what each took the last time

The unit tests run by CTest, then the system tests by pytest, each as many beside each other as there are cores. A step is a file of system tests; its line comes when the last of them has ended. What failed, and why,
is in build/logs/test/STEP.log, and what guests said in build/logs/test/STEP. Tests that need a /dev/kvm run on this machine's where it is fit, else in the bed.
"""
import argparse
import ast
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree

from paths import LOGS, PIPE, PROGRAM, ROOT, TIMES, step_of

UNIT = "unit"
UNIT_TEXT = "unit tests and lints of the C++ tree"
INTEL_HOST = ["guest-second-cpu", "intel-host", "intel-host-sources", "intel-host-vmms", "linux-host", "linux-passed"]
TESTS_BELOW = ("guest-tests", "tools")
NEEDS_KVM = "(^Kvm|OnKvm)"
SLOWEST = 10
MENTIONED_CPU_SECONDS = 2
UNIT_SECONDS = 300  # that one unit test may take
SHOWN_LINES = 20
END_SECONDS = 300  # for tests that are interrupted to clean up
GIB_OF_A_TEST = 4  # that a bed takes, and some more
# As CTest writes it: " 12/345 Test  #6: NAME .......   Passed    0.01 sec". GoogleTest may add a parameter to the name.
OUTCOME = re.compile(r"^\s*\d+/\d+ Test\s+#\d+: (\S+).*?(Passed|\*\*\*\w+)[^.]*\s([\d.]+) sec\s*$")


def parse_arguments():
    parser = argparse.ArgumentParser(prog="tools/test", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_const", const="quick", dest="size", help="a few minutes' worth")
    size.add_argument("--full", action="store_const", const="full", dest="size", help="all there is")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="these steps")
    parser.add_argument("--intel-host", action="store_const", const=INTEL_HOST, dest="only", help="all steps on the emulated Intel host")
    parser.add_argument("--list", action="store_true", help="list the steps, run nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="cores to use (all)")
    parser.add_argument("--seed", help="what is sampled follows from it (the commit)")
    parser.add_argument("--junit", type=pathlib.Path, metavar="FILE", help="write the outcomes there, as JUnit's XML")
    options = parser.parse_args()
    options.size = options.size or "usual"
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: at least 1")
    return options, parser


@dataclasses.dataclass
class Step:
    """A file of system tests, or the unit tests, and what has come of it."""

    text: str
    sizes: tuple
    path: pathlib.Path = None
    packages: tuple = ()
    waiting: set = dataclasses.field(default_factory=set)  # the tests that have not ended
    outcomes: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    seconds: float = 0.0
    cpu: float = 0.0
    notes: list = dataclasses.field(default_factory=list)
    reasons: collections.Counter = dataclasses.field(default_factory=collections.Counter)  # of skipped tests
    failures: list = dataclasses.field(default_factory=list)

    @property
    def good(self):
        return not self.outcomes["failed"] and self.outcomes["passed"] + self.outcomes["skipped"] > 0


def read_step(path):
    """What a file says of itself: the first line of its text, its marks and its packages. Nothing is imported: this runs before anything is installed."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    values = {target.id: ast.unparse(node.value) for node in tree.body if isinstance(node, ast.Assign) for target in node.targets if isinstance(target, ast.Name)}
    marks = set(re.findall(r"pytest\.mark\.(\w+)", values.get("pytestmark", "")))
    sizes = ("full",) if "full" in marks else ("quick", "usual", "full") if "quick" in marks else ("usual", "full")
    return Step((ast.get_docstring(tree) or path.name).splitlines()[0].rstrip("."), sizes, path, ast.literal_eval(values.get("PACKAGES", "()")))


def find_steps():
    files = sorted(path for below in TESTS_BELOW for path in (ROOT / below).glob("**/tests/*_test.py"))
    return {UNIT: Step(UNIT_TEXT, ("quick", "usual", "full"))} | {step_of(path): read_step(path) for path in files}


def head():
    """Names the commit, or "none"."""
    try:
        said = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git: a copy, not a clone
        return "none"
    return said.stdout.strip() or "none"


def chosen_kvm():
    """Where tests with KVM run: "host" or "bed", as VPMU_KVM says; otherwise `vpmu doctor --kvm` decides. Prints why."""
    where, reason = os.environ.get("VPMU_KVM"), "VPMU_KVM says so"
    if not where:
        doctor = subprocess.run([PROGRAM, "doctor", "--kvm"], capture_output=True, text=True, check=False)
        where = "bed" if doctor.returncode else "host"
        unfit = [line for line in doctor.stdout.splitlines() if line.startswith("unfit")]
        reason = unfit[0] if unfit else "see vpmu doctor"
    elif where not in ("host", "bed"):
        sys.exit(f"test: VPMU_KVM is '{where}'; it may be host or bed")
    print(f"tests on KVM: {'in the bed, an emulated host with a real KVM' if where == 'bed' else 'on this machine'} ({reason})", flush=True)
    return where


def with_pytest():
    """A Python that has Debian's pytest: the first on the path may be another."""
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import pytest, pytest_timeout, xdist"], capture_output=True, check=False).returncode == 0:
            return python
    sys.exit("test: neither the python3 on the path nor /usr/bin/python3 has pytest, pytest-timeout and pytest-xdist; run tools/setup")


def available_gib():
    return next(int(line.split()[1]) >> 20 for line in open("/proc/meminfo", encoding="ascii") if line.startswith("MemAvailable"))


def last_times():
    return json.loads(TIMES.read_text(encoding="utf-8")) if TIMES.exists() else {}


def list_steps(steps):
    times = last_times()
    for name, step in steps.items():
        took = f"{times[name]:.0f} s" if name in times else "-"
        print(f"{name:<20}{took:>8}   {step.sizes[0]:<7}{step.text}")


def skip_reasons(junit):
    """The reasons for skipped unit tests, which GoogleTest prints below the source line, and how many tests each skipped."""
    suites = xml.etree.ElementTree.parse(junit)
    skipped = [case.findtext("system-out", "") for case in suites.iter("testcase") if case.find("skipped") is not None]
    reasons = [re.search(r": Skipped\n(.+)", said) for said in skipped]
    return collections.Counter(reason[1] if reason else "no reason given" for reason in reasons)


def start(command, **options):
    """A command with its children in a process group, which end() ends."""
    return subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, cwd=ROOT, **options)


def end(process):
    """Asks the command and its children to end, which CTest does not do for its children, and waits until they have."""
    os.killpg(process.pid, signal.SIGTERM)
    process.wait()
    limit = time.monotonic() + END_SECONDS
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < limit:
            os.killpg(process.pid, 0)
            time.sleep(0.1)


class Run:
    """The tests of one call: shows each step's end, and counts."""

    def __init__(self, options, steps):
        self.options, self.steps = options, steps
        self.before, self.times = last_times(), {}
        self.passed = self.failed = 0
        self.junits = []
        self.seed = options.seed or head()
        self.began = time.monotonic()

    def line(self, name, what, good, seconds, cpu=0.0, note=""):
        last = f"last {self.before[name]:.0f}" if name in self.before else ""
        beside = ", ".join(filter(None, (f"CPU {cpu:.0f}" if cpu >= MENTIONED_CPU_SECONDS else "", last)))
        self.times[name] = seconds
        print(f"{what + ' ':<52}{'ok    ' if good else 'FAILED'}{seconds:>6.0f} s{f' ({beside})' if beside else ''}{'   ' + note if note else ''}", flush=True)

    def must(self, name, what, *commands):
        """Runs what all tests depend on."""
        began, log = time.monotonic(), LOGS / f"{name}.log"
        with log.open("wb") as out:
            good = all(subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, check=False).returncode == 0
                       for command in commands)
        self.line(name, what, good, time.monotonic() - began)
        if not good:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            print(*(f"    {line}" for line in lines[-SHOWN_LINES:]), f"    (all of it: {log.relative_to(ROOT)})", sep="\n", flush=True)
            self.failed += 1
            sys.exit(self.finish())

    def step_ended(self, name):
        step = self.steps[name]
        self.passed += step.outcomes["passed"]
        self.failed += step.outcomes["failed"] or int(not step.good)
        skipped = f", {step.outcomes['skipped']} skipped" if step.outcomes["skipped"] else ""
        note = ", ".join([f"{step.outcomes['passed']} passed, {step.outcomes['failed']} failed{skipped}", *step.notes])
        self.line(name, step.text, step.good, step.seconds, step.cpu, note)
        for reason, number in step.reasons.most_common():
            print(f"    {number} skipped: {reason}", flush=True)
        if step.failures:
            log = LOGS / f"{name}.log"
            log.write_text("\n".join(step.failures), encoding="utf-8")
            shown = [line for line in "\n".join(step.failures).splitlines() if line.startswith(("FAILED ", "E  "))][:SHOWN_LINES]
            print(*(f"    {line}" for line in shown), f"    (all of it: {log.relative_to(ROOT)})", sep="\n", flush=True)

    def unit_ended(self, line):
        """Handles a line of CTest's output."""
        if not (ended := OUTCOME.match(line)):
            return
        name, outcome, seconds = ended[1], ended[2], float(ended[3])
        step = self.steps[UNIT]
        self.times[name] = seconds
        step.seconds += seconds
        kind = "passed" if outcome == "Passed" else "skipped" if "Skipped" in outcome else "failed"
        step.outcomes[kind] += 1
        if kind == "failed":
            print(f"FAILED {name}: {outcome.strip('*')}; build/dev/Testing/Temporary/LastTest.log", flush=True)

    def unit_tests(self):
        junit = LOGS / "unit.xml"
        command = ["ctest", "--preset", "dev", "-j", str(self.options.jobs), "--timeout", str(UNIT_SECONDS), "--no-tests=error", "--no-label-summary", "--output-junit", str(junit),
                   "-E", NEEDS_KVM]
        with start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as ctest, (LOGS / "ctest.log").open("w", encoding="utf-8") as log:
            try:
                for line in ctest.stdout:
                    log.write(line)
                    self.unit_ended(line)
            except KeyboardInterrupt:
                end(ctest)
                raise
        step = self.steps[UNIT]
        if junit.exists():
            step.reasons = skip_reasons(junit)
            self.junits.append(junit)
        if ctest.returncode != 0 and not step.outcomes["failed"]:
            print(f"CTest ended with code {ctest.returncode}: build/logs/test/ctest.log")
            step.outcomes["failed"] = 1
        self.step_ended(UNIT)

    def test_told(self, told):
        """Handles what progress.py tells."""
        if "collected" in told:
            for test in told["collected"]:
                self.steps[step_of(test.split("::")[0])].waiting.add(test)
            return
        if "warned" in told:
            step = self.steps[step_of(told["warned"].split("::")[0])]
            step.notes.append(told["text"])
            if not step.waiting:  # the warning of its last test comes behind its line
                print(f"    {told['text']}", flush=True)
            return
        if "broken" in told:
            self.failed += 1
            print(f"FAILED {told['broken']}:", *(f"    {line}" for line in told["text"].splitlines()[-SHOWN_LINES:]), sep="\n", flush=True)
            return
        test, name = told["test"], step_of(told["test"].split("::")[0])
        step = self.steps[name]
        step.seconds += told["seconds"]
        self.times[test] = self.times.get(test, 0.0) + told["seconds"]
        if told["outcome"] == "failed":
            step.outcomes["failed"] += 1
            step.failures.append(f"FAILED {test} ({told['when']})\n{told['text']}\n{told['output']}\n")
        elif told["outcome"] == "skipped":
            step.outcomes["skipped"] += 1
            step.reasons[told["text"]] += 1
        elif told["when"] == "call":
            step.outcomes["passed"] += 1
        if told["when"] == "teardown":
            step.cpu += told.get("cpu", 0.0)
            step.outcomes["passed"] += max(0, told.get("checks", 0) - 1)
            step.notes += [told["note"]] if told.get("note") else []
            step.waiting.discard(test)
            if not step.waiting:
                self.step_ended(name)

    def system_tests(self, names):
        files = [str(self.steps[name].path.relative_to(ROOT)) for name in names if name != UNIT]
        if not files:
            return
        where, junit, workers = chosen_kvm(), LOGS / "system.xml", max(1, min(self.options.jobs, available_gib() // GIB_OF_A_TEST))
        keep = ["tools/dev/bed/keep", "--"] if where == "bed" else []
        reader, writer = os.pipe()
        command = [*keep, with_pytest(), "-m", "pytest", "-p", "progress", "-n", str(workers), "-q", "--size", self.options.size, "--seed", self.seed, *(["--named"] if self.options.only else []), f"--junitxml={junit}", *files]
        environment = {**os.environ, "VPMU_KVM": where, PIPE: str(writer), "PYTHONPATH": str(pathlib.Path(__file__).parent)}
        with (LOGS / "pytest.log").open("wb") as log, start(command, env=environment, stdout=log, stderr=subprocess.STDOUT, pass_fds=[writer]) as tests:
            os.close(writer)
            try:
                with os.fdopen(reader, encoding="utf-8") as told:
                    for line in told:
                        self.test_told(json.loads(line))
            except KeyboardInterrupt:
                end(tests)
                raise
        if junit.exists():
            self.junits.append(junit)
        for name in names:
            if self.steps[name].waiting:
                self.steps[name].outcomes["failed"] += len(self.steps[name].waiting)
                self.steps[name].failures.append("".join(f"FAILED {test}: it did not end\n" for test in sorted(self.steps[name].waiting)))
                self.step_ended(name)
        if tests.returncode != 0 and not self.failed:
            print(f"pytest ended with code {tests.returncode}: build/logs/test/pytest.log")
            self.failed += 1

    def finish(self):
        TIMES.write_text(json.dumps(self.before | self.times, indent=1, sort_keys=True), encoding="ascii")
        steps = {name: seconds for name, seconds in self.times.items() if name in self.steps and name != UNIT}
        print("the slowest:", ", ".join(f"{name} {steps[name]:.0f} s" for name in sorted(steps, key=steps.get, reverse=True)[:SLOWEST]))
        if self.options.junit:
            whole = xml.etree.ElementTree.Element("testsuites")
            for junit in self.junits:
                root = xml.etree.ElementTree.parse(junit).getroot()
                whole.extend([root] if root.tag == "testsuite" else root)
            xml.etree.ElementTree.ElementTree(whole).write(self.options.junit, encoding="utf-8", xml_declaration=True)
        print(f"{(time.monotonic() - self.began) / 60:.1f} minutes; sampled by --seed {self.seed}")
        print(f"{self.passed} passed, {self.failed} failed")
        return 0 if self.passed and not self.failed else 1


def main():
    options, parser = parse_arguments()
    steps = find_steps()
    if options.list:
        list_steps(steps)
        return 0
    if unknown := [name for name in options.only or () if name not in steps]:
        parser.error(f"--only {unknown[0]}: no such step; they are {', '.join(steps)}")
    if options.only and any(options.size not in steps[name].sizes for name in options.only):
        options.size = "full"
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run = Run(options, steps)
    chosen = options.only or [name for name, step in steps.items() if options.size in step.sizes]
    run.must("packages", "packages from Debian", ["tools/setup", *(package for name in chosen for package in steps[name].packages)])
    run.must("build", "build", ["tools/dev/configure"], ["cmake", "--build", "--preset", "dev", "--parallel", str(options.jobs)])
    if UNIT in chosen:
        run.unit_tests()
    run.system_tests(chosen)
    return run.finish()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
