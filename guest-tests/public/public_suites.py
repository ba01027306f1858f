"""Runs public tests of processors and of perf in guests without KVM."""

import csv
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import results

ROOT = pathlib.Path(__file__).resolve().parents[2]
REASONS = pathlib.Path(__file__).with_name("reasons.csv")
BUILDS = ROOT / "build/public"  # of suites that are given as sources
VARIABLES = {"kvm-unit-tests": "VPMU_KVM_UNIT_TESTS", "x86-selftests": "VPMU_X86_SELFTESTS", "perf_event_tests": "VPMU_PERF_EVENT_TESTS"}

# Two processors shake hands a million times: with short turns that takes seconds. Without the test device it does not ask for hypercalls.
APIC = {"options": ["--schedule", "500"], "environment": "TEST_DEVICE=0\n"}
# What a test of kvm-unit-tests needs besides what its unittests.cfg says.
SETTINGS = {"x2apic": APIC, "xapic": APIC, "s3": {"limit": 20}, "realmode": {"limit": 20}}


@dataclasses.dataclass
class Given:
    program: pathlib.Path
    model: str = "haswell"
    limit: int = 900  # seconds for a test of kvm-unit-tests; ten times as much for a whole other suite
    only: str = "*"  # tests with such a name


def read_reasons():
    with open(REASONS, newline="", encoding="utf-8") as file:
        return [results.Reason(**row) for row in csv.DictReader(file)]


def run(command, **more):
    return subprocess.run([str(word) for word in command], check=False, **more)


def build(directory, name, command):
    """A built copy of a suite's sources."""
    copy = BUILDS / name
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory, copy, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    with open(BUILDS / f"{name}.log", "wb") as log:
        done = run(["sh", "-c", command], cwd=copy, stdout=log, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise RuntimeError(f"{name} cannot be built: see {log.name}")
    return copy


def kvm_unit_tests(directory, given):
    if not list(directory.glob("x86/*.flat")):
        directory = build(directory, "kvm-unit-tests", "./configure --arch=x86_64 && make -j2")
    for test in results.sections((directory / "x86/unittests.cfg").read_text()):
        kernel = directory / "x86" / test["file"]
        if not results.matches(given.only, test["name"]) or not kernel.exists():
            continue
        settings = SETTINGS.get(test["name"], {})
        command = [given.program, "run", "--accel", "soft", "--model", given.model, "--memory", test["memory"], "--cpus", test["cpus"],
                   "--timeout", str(settings.get("limit", given.limit)), "--kernel", kernel, "--append", f"{kernel.name} {test['arguments']}"]
        with tempfile.NamedTemporaryFile("w") as environment:
            environment.write(settings.get("environment", ""))
            environment.flush()
            os.chmod(environment.name, 0o644)
            if "environment" in settings:
                command += ["--initrd", environment.name]
            done = run(command + settings.get("options", []), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        yield test["name"], results.of_kvm_unit_test(done.stdout.decode(errors="replace"), done.returncode)


def in_guest(given, directory, programs):
    """Runs programs in a Linux guest, one after the other: name, output and exit code of each; no code where it did not end."""
    with tempfile.TemporaryDirectory() as shared:
        shared = pathlib.Path(shared)
        os.chmod(shared, 0o777)
        (shared / "names").write_text("".join(f"{name}\n" for name in programs))
        script = (f"cd '{directory}'; export TESTS_QUIET=y; while read -r name; do out='{shared}'/$(echo $name | tr / .); "
                  f"(cd $(dirname $name) && exec ./$(basename $name)) >$out 2>&1 </dev/null; echo $? >$out.code; done <'{shared}/names'")
        run([given.program, "exec", "--accel", "soft", "--model", given.model, "--timeout", str(given.limit * 10), "--rw", shared, "--", "sh", "-c", script],
            stdin=subprocess.DEVNULL)
        for name in programs:
            out = shared / name.replace("/", ".")
            code = out.with_name(out.name + ".code")
            text = out.read_text(errors="replace") if out.exists() else ""
            yield name, text, int(code.read_text()) if code.exists() and code.read_text().strip() else None


def x86_selftests(directory, given):
    def programs(where):
        found = [path.name for path in where.iterdir() if re.search("_(32|64)$", path.name) and os.access(path, os.X_OK)]
        return sorted(name for name in found if results.matches(given.only, name))
    if not programs(directory):
        copy = BUILDS / "x86-selftests"
        copy.mkdir(parents=True, exist_ok=True)
        if run(["make", "-C", directory, f"OUTPUT={copy}"], stdout=subprocess.DEVNULL).returncode != 0:
            raise RuntimeError("x86-selftests cannot be built")
        directory = copy
    for name, text, code in in_guest(given, directory, programs(directory)):
        yield name, results.of_selftest(text, code)


def perf_event_tests(directory, given):
    if not (directory / "tests/overflow/simple_overflow_leader").exists():
        directory = build(directory, "perf_event_tests", "make")
    named = re.findall(r"^\s*\$TESTS_DIR/(\S+)\s*$", (directory / "run_tests.sh").read_text(), re.M)
    programs = [f"tests/{name}" for name in dict.fromkeys(named) if results.matches(given.only, name) and (directory / "tests" / name).exists()]
    for name, text, code in in_guest(given, directory, programs):
        yield name.removeprefix("tests/"), results.of_perf_event_test(text, code)


RUNS = {"kvm-unit-tests": kvm_unit_tests, "x86-selftests": x86_selftests, "perf_event_tests": perf_event_tests}


def checked(suite, given, rows):
    """Runs the suite that is in the directory that its variable names. Gives of each check whether it passes, and a line; adds what results.table() takes to `rows`."""
    own = [reason for reason in read_reasons() if reason.suite == suite]
    needed, tests = set(), 0
    for name, result in RUNS[suite](pathlib.Path(os.environ[VARIABLES[suite]]).resolve(), given):
        tests += 1
        judged = results.judge(name, result, own)
        needed.update(judged.used)
        rows.append((suite, name, result, judged))
        yield not judged.unexplained, f"{suite} {name}: {result.passed} passed" + "".join(f"; not explained: {line}" for line in judged.unexplained)
    yield tests > 0, f"{suite}: {tests} tests"
    if given.only == "*":
        for reason in own:
            if reason not in needed:
                yield False, f"{suite} {reason.test}: passes, though reasons.csv has a reason for \"{reason.line}\""
