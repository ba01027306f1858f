"""Runs the tests of the project and closes with "N passed, N failed". As root, from a clone, on Debian 12 (`--only unit` on Debian 13, too).

    tools/test                    installs what is missing, builds, and runs all; long matrices are sampled
    tools/test --quick            build, lints, unit tests, test kernels on Skylake: minutes
    tools/test --full             all of the matrices, longer fuzzing, sanitizer builds, clang, Debian 13: hours
    tools/test --intel-host       all that runs on the emulated Intel host
    tools/test --only STEP...     these steps (and what they need); `unit` are the unit tests
    tools/test --list             the steps and what each took the last time

Steps run beside each other, by CTest; one line for each when it ends. What a step says is in build/logs/test/STEP.log. Tests that need a /dev/kvm
run on this machine's where it is fit, else in the bed.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = ROOT / "build/dev"
LOGS = ROOT / "build/logs/test"
# Packages that only a full run or one step needs, installed before any step runs: guests see this machine's files, which must stay the same meanwhile.
OF_FULL = ("lintian", "mkdocs", "mkdocs-material")
OF_STEP = {"profile-soft": ("chromium", "redis-tools"), "debian13": ("mmdebstrap",)}
TIMES = ROOT / "build/test-times.json"
STEP = "step."
UNIT = "unit"
INTEL_HOST = ["guest-second-cpu", "intel-host", "intel-host-sources", "intel-host-vmms", "linux-host", "linux-passed"]
NEEDS_KVM = "(^Kvm|OnKvm)"
NOT_STEPS = ["^[^s]", "^s[^t]", "^st[^e]"]
SLOWEST = 10
MENTIONED_CPU_SECONDS = 2
UNIT_SECONDS = 300  # that one unit test may take
SHOWN_LINES = 20
END_SECONDS = 300  # for steps that are interrupted to clean up
FAILED_LINE = re.compile(r"^FAIL ")
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


def declared_steps():
    """Name -> (configurations, text), as CMakeLists.txt declares them: before anything is built."""
    text = (ROOT / "tools/dev/test/CMakeLists.txt").read_text(encoding="utf-8")
    sets = dict(re.findall(r"^set\((\w+) IN ([\w ]+)\)", text, re.M))
    steps = {UNIT: (["quick", "usual", "full"], "unit tests and lints of the C++ tree")}
    for name, what, rest in re.findall(r'^vpmu_step\((\S+) "([^"]*)" (.*)\)$', text, re.M):
        where = re.match(r"IN ([a-z ]+)|\$\{(\w+)\}", rest)
        steps[name] = ((where[1] or sets[where[2]]).split(), what)
    return steps


def head():
    """Names the commit, or "none"."""
    try:
        said = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git: a copy, not a clone
        return "none"
    return said.stdout.strip() or "none"


def cpu_seconds(name):
    """The CPU time of a step and its children, but not of kept beds, as bash's `times` prints it."""
    path = LOGS / f"{name}.cpu"
    parts = re.findall(r"(\d+)m([\d.]+)s", path.read_text(encoding="ascii") if path.exists() else "")
    return sum(60 * int(minutes) + float(seconds) for minutes, seconds in parts)


def chosen_kvm():
    """Where tests with KVM run: "host" or "bed", as VPMU_KVM says; otherwise `vpmu doctor --kvm` decides. Prints why."""
    where, reason = os.environ.get("VPMU_KVM"), "VPMU_KVM says so"
    if not where:
        doctor = subprocess.run([BUILD / "tools/vpmu/vpmu", "doctor", "--kvm"], capture_output=True, text=True, check=False)
        where = "bed" if doctor.returncode else "host"
        unfit = [line for line in doctor.stdout.splitlines() if line.startswith("unfit")]
        reason = unfit[0] if unfit else "see vpmu doctor"
    elif where not in ("host", "bed"):
        sys.exit(f"test: VPMU_KVM is '{where}'; it may be host or bed")
    print(f"tests on KVM: {'in the bed, an emulated host with a real KVM' if where == 'bed' else 'on this machine'} ({reason})", flush=True)
    return where


def last_times():
    return json.loads(TIMES.read_text(encoding="utf-8")) if TIMES.exists() else {}


def list_steps(steps):
    times = last_times()
    for name, (sizes, what) in steps.items():
        took = f"{times[name]:.0f} s" if name in times else "-"
        print(f"{name:<20}{took:>8}   {sizes[0]:<7}{what}")


def skip_reasons(junit):
    """The reasons for skipped tests, which GoogleTest prints below the source line, and how many tests each skipped."""
    suites = xml.etree.ElementTree.parse(junit)
    skipped = [case.findtext("system-out", "") for case in suites.iter("testcase") if case.find("skipped") is not None]
    reasons = [re.search(r": Skipped\n(.+)", said) for said in skipped]
    return collections.Counter(reason[1] if reason else "no reason given" for reason in reasons)


def start(command, **options):
    """A command with its children in a process group, which end() ends."""
    return subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, **options)


def end(process):
    """Asks the command and its children to end, which CTest does not do for its children, and waits until they have."""
    os.killpg(process.pid, signal.SIGTERM)
    process.wait()
    limit = time.monotonic() + END_SECONDS
    while time.monotonic() < limit:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)


class Run:
    """The tests of one call: shows each step's end, and counts."""

    def __init__(self, options, steps):
        self.options, self.steps = options, steps
        self.before, self.times = last_times(), {}
        self.passed, self.failed = 0, 0
        self.unit = {"passed": 0, "failed": 0, "skipped": 0, "seconds": 0.0}
        self.seed = options.seed or head()
        self.began = time.monotonic()

    def line(self, name, what, good, seconds, note=""):
        last = f"last {self.before[name]:.0f}" if name in self.before else ""
        cpu = f"CPU {cpu_seconds(name):.0f}" if cpu_seconds(name) >= MENTIONED_CPU_SECONDS else ""
        beside = ", ".join(filter(None, (cpu, last)))
        self.times[name] = seconds
        print(f"{what:<52}{'ok    ' if good else 'FAILED'}{seconds:>6.0f} s{f' ({beside})' if beside else ''}{'   ' + note if note else ''}", flush=True)

    def must(self, name, what, *commands):
        """Runs a step that all others depend on."""
        began, log = time.monotonic(), LOGS / f"{name}.log"
        with log.open("wb") as out:
            good = all(subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, check=False).returncode == 0
                       for command in commands)
        self.line(name, what, good, time.monotonic() - began)
        if not good:
            self.show_end_of(log)
            self.failed += 1
            sys.exit(self.finish())

    def show_end_of(self, log):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        shown = [line for line in lines if FAILED_LINE.match(line)][:SHOWN_LINES] or lines[-SHOWN_LINES:]
        print(*(f"    {line}" for line in shown), f"    (all of it: {log.relative_to(ROOT)})", sep="\n", flush=True)

    def step_ended(self, name, good, seconds):
        count, note = LOGS / f"{name}.count", LOGS / f"{name}.note"
        passed, failed = map(int, count.read_text().split()) if count.exists() else (0, 0)
        if not failed and not (good and (passed or name.startswith("fetch"))):
            failed = 1  # no check passed, or the step ended badly
        self.passed += passed
        self.failed += failed
        self.line(name, self.steps[name][1], not failed, seconds, note.read_text().strip() if note.exists() else "")
        if failed:
            self.show_end_of(LOGS / f"{name}.log")

    def unit_ended(self, name, outcome, seconds):
        self.times[name] = seconds
        self.unit["seconds"] += seconds
        kind = "passed" if outcome == "Passed" else "skipped" if "Skipped" in outcome else "failed"
        self.unit[kind] += 1
        if kind == "failed":
            print(f"FAILED {name}: {outcome.strip('*')}; build/dev/Testing/Temporary/LastTest.log", flush=True)

    def test_ended(self, line):
        """Handles a line of CTest's output."""
        if ended := OUTCOME.match(line):
            name, outcome, seconds = ended[1], ended[2], float(ended[3])
            if name.startswith(STEP):
                self.step_ended(name.removeprefix(STEP), outcome == "Passed", seconds)
            else:
                self.unit_ended(name, outcome, seconds)

    def ctest(self, only):
        """Runs the chosen tests, and reads every line in which CTest reports a test's end."""
        where = chosen_kvm()
        keep = ["tools/dev/bed/keep", "--"] if where == "bed" else []
        command = [*keep, "ctest", "--preset", "dev", "-C", self.options.size, "-j", str(self.options.jobs), "--timeout", str(UNIT_SECONDS), "--no-tests=error",
                   "--no-label-summary", "--resource-spec-file", str(self.resources()), "--output-junit", str(LOGS / "junit.xml"), "-E", NEEDS_KVM]
        if only is not None:
            named = [f"^step\\.{name}$" for name in only if name != UNIT] + (NOT_STEPS if UNIT in only else [])
            command += ["-R", "|".join(named)]
        environment = {**os.environ, "STEPS_SEED": self.seed, "VPMU_KVM": where, "STEPS_FULL": "1" if self.options.size == "full" else ""}
        with start(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                   errors="replace") as ctest, (LOGS / "ctest.log").open("w", encoding="utf-8") as log:
            try:
                for line in ctest.stdout:
                    log.write(line)
                    self.test_ended(line)
            except KeyboardInterrupt:
                end(ctest)
                raise
        if self.unit["passed"] or self.unit["failed"]:
            self.passed += self.unit["passed"]
            self.failed += self.unit["failed"]
            skipped = f", {self.unit['skipped']} skipped" if self.unit["skipped"] else ""
            self.line(UNIT, self.steps[UNIT][1], not self.unit["failed"], self.unit["seconds"],
                      f"{self.unit['passed']} passed, {self.unit['failed']} failed{skipped}")
            for reason, number in skip_reasons(LOGS / "junit.xml").most_common():
                print(f"    {number} skipped: {reason}", flush=True)
        if ctest.returncode != 0 and not self.failed:
            print(f"CTest ended with code {ctest.returncode}: build/logs/test/ctest.log")
            self.failed += 1

    def resources(self):
        """Writes CTest's resource file: how many GiB of memory are available."""
        free = next(int(line.split()[1]) for line in open("/proc/meminfo", encoding="ascii") if line.startswith("MemAvailable"))
        path = LOGS / "resources.json"
        slots = {"id": "0", "slots": max(4, free >> 20)}
        path.write_text(json.dumps({"version": {"major": 1, "minor": 0}, "local": [{"memory": [slots]}]}), encoding="ascii")
        return path

    def finish(self):
        TIMES.write_text(json.dumps(self.before | self.times, indent=1, sort_keys=True), encoding="ascii")
        one_by_one = {name: seconds for name, seconds in self.times.items() if name != UNIT}
        slowest = sorted(one_by_one, key=one_by_one.get, reverse=True)[:SLOWEST]
        print("the slowest:", ", ".join(f"{name} {one_by_one[name]:.0f} s" for name in slowest))
        if self.options.junit and (LOGS / "junit.xml").exists():
            self.options.junit.write_bytes((LOGS / "junit.xml").read_bytes())
        print(f"{(time.monotonic() - self.began) / 60:.1f} minutes; sampled by --seed {self.seed}")
        print(f"{self.passed} passed, {self.failed} failed")
        return 0 if self.passed and not self.failed else 1


def main():
    options, parser = parse_arguments()
    steps = declared_steps()
    if options.list:
        list_steps(steps)
        return 0
    if unknown := [name for name in options.only or () if name not in steps]:
        parser.error(f"--only {unknown[0]}: no such step; they are {', '.join(steps)}")
    if options.only and any(options.size not in steps[name][0] for name in options.only):
        options.size = "full"
    LOGS.mkdir(parents=True, exist_ok=True)
    for old in LOGS.glob("*.*"):
        if old.is_file():
            old.unlink()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run = Run(options, steps)
    chosen = options.only or [name for name in steps if options.size in steps[name][0]]
    more = [*(OF_FULL if options.size == "full" else ()), *(package for name in chosen for package in OF_STEP.get(name, ()))]
    run.must("packages", "packages from Debian", ["tools/setup", *more])
    run.must("build", "build", ["tools/dev/configure"], ["cmake", "--build", "--preset", "dev", "--parallel", str(options.jobs)])
    run.ctest(options.only)
    return run.finish()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
