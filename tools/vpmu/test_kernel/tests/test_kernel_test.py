"""`vpmu test-kernel` on Debian's kernels, without KVM

Kernels that are known to be right pass on the models, and what is wrong fails.
"""

import json
import pathlib
import signal
import subprocess
import time
import xml.etree.ElementTree

import pytest

import fetched as environment_of
from paths import CACHE, KERNEL, PROGRAM, models

MODELS = ("nehalem", "skylake")
KERNELS = {"6.1": KERNEL, "6.12": CACHE / "l1/boot/vmlinuz"}
LEAST_CHECKS = 20  # of each model
WRONG = ("skylake", "count.instructions")
LIMIT_SECONDS = 600
SLOW_LIMIT_SECONDS = 5400
LEAST_PERF_CHECKS = 25  # of each model


class Runner:
    """Runs the program, with its files in a directory of its own."""

    def __init__(self, workspace):
        self.workspace = workspace
        self.temporary = workspace / "temporary"
        self.temporary.mkdir()
        self.environment = {**environment_of.environment(), "TMPDIR": str(self.temporary)}

    def run(self, *options, kernel=KERNEL, limit=LIMIT_SECONDS):
        process = self.start(*options, kernel=kernel)
        output, errors = process.communicate(timeout=limit)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def start(self, *options, kernel=KERNEL):
        command = [PROGRAM, "test-kernel", kernel, *options]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment)

    def path(self, name):
        return self.workspace / name

    def good_report(self, names, kernel=KERNEL):
        """The report of models, all of whose checks pass."""
        path = self.path("good.json")
        ended = self.run("--models", ",".join(names), "--format", "json", "--output", path, kernel=kernel)
        assert ended.returncode == 0 and ended.stdout == "", f"code {ended.returncode}: {ended.stdout} {ended.stderr}"
        lines = ended.stderr.splitlines()
        assert len(lines) > 1 and all(line.endswith(": passed") for line in lines[:-1]), f"progress: {ended.stderr}"
        report = json.loads(path.read_text(encoding="ascii"))
        assert [model["model"] for model in report["models"]] == list(names)
        for model in report["models"]:
            checks = [one["name"] for one in model["checks"]]
            assert len(set(checks)) == len(checks) >= LEAST_CHECKS, f"{model['model']}: {checks}"
            passed = [one["name"] for one in model["checks"] if one["outcome"] == "pass"]
            assert len(passed) >= LEAST_CHECKS and not any(one["outcome"] == "fail" for one in model["checks"]), f"{model['checks']}"
        return path


@pytest.fixture
def runner(fetched, program, tmp_path):
    return Runner(tmp_path)


def of_all_models(usual):
    return [model if model in usual else pytest.param(model, marks=pytest.mark.full) for model in models()]


@pytest.mark.parametrize("model", of_all_models(("nehalem", "haswell")))
@pytest.mark.parametrize("kernel", KERNELS)
def test_all_checks_pass(runner, kernel, model):
    runner.good_report([model], KERNELS[kernel])


def test_a_check_that_expects_something_wrong_fails_alone(runner):
    ended = runner.run("--models", ",".join(MODELS), "--expect-wrong", "/".join(WRONG), "--format", "junit", "--quiet")
    assert ended.returncode == 1 and ended.stderr == "", f"code {ended.returncode}: {ended.stderr}"
    suites = xml.etree.ElementTree.fromstring(ended.stdout)
    failed = [(suite.get("name"), case.get("name"), case.find("failure").get("message"))
              for suite in suites for case in suite if case.find("failure") is not None]
    assert len(suites) == len(MODELS) and failed == [(*WRONG, "expected not 100004, seen 100004")], f"{failed}"
    assert suites.get("failures") == "1", f"{suites.attrib}"


def test_a_kernel_without_the_capabilities_of_the_pmu_is_found_out(runner):
    """It takes PEBS and the LBR for those of other processors; what needs neither of them is right."""
    ended = runner.run("--models", "skylake", "--append", "clearcpuid=pdcm", "--format", "tap", "--quiet")
    failed = {line.rsplit(" ", 1)[1] for line in ended.stdout.splitlines() if line.startswith("not ok ")}
    expected = {"log.driver", "precise.1", "precise.2", "precise.3", "precise.batch", "lbr.branches", "lbr.stack", "mem.loads", "mem.stores", "frontend"}
    assert ended.returncode == 1 and failed == expected, f"code {ended.returncode}, failed: {sorted(failed)}"


@pytest.mark.seconds(20)
def test_only_what_changed_is_told_of_a_baseline(runner):
    options = ["--models", "all", "--shard", "20/24", "--baseline", runner.good_report(MODELS), "--quiet"]  # skylake
    same = runner.run(*options)
    assert same.returncode == 0 and same.stdout.endswith(": 0 changed\n"), f"code {same.returncode}: {same.stdout} {same.stderr}"
    changed = runner.run(*options, "--expect-wrong", "/".join(WRONG))
    lines = changed.stdout.splitlines()
    assert changed.returncode == 1 and len(lines) == 2, f"code {changed.returncode}: {changed.stdout} {changed.stderr}"
    assert lines[1] == "skylake count.instructions: pass, now fail: expected not 100004, seen 100004", lines[1]


def test_a_guest_that_runs_nothing_is_no_success(runner):
    ended = runner.run("--models", "nehalem", "--append", "init=/none rdinit=/none", "--format", "tap", "--quiet")
    assert ended.returncode == 3, f"code {ended.returncode}: {ended.stdout} {ended.stderr}"
    assert ended.stdout.splitlines()[:1] == ["TAP version 14"] and "not ok 1 - nehalem run" in ended.stdout, ended.stdout


@pytest.mark.parametrize("words", ["{good} --models pentium", "{good} --shard 0/2", "{good} --baseline {bad}", "{good} --format xml", "{good} --expect-wrong skylake", "{good} --suite long", "/none", "{bad}"])
def test_wrong_use_is_told_on_one_line(runner, words):
    bad = runner.path("bad.json")
    bad.write_text("{}", encoding="ascii")
    kernel, *options = words.format(good=KERNEL, bad=bad).split()
    ended = runner.run(*options, kernel=kernel)
    assert ended.returncode == 2 and len(ended.stderr.splitlines()) == 1, f"code {ended.returncode}: {ended.stderr}"


def children_of(process):
    return pathlib.Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()


def test_a_signal_ends_all_guests(runner):
    process = runner.start("--models", ",".join(MODELS), "--jobs", "2")
    limit = time.monotonic() + LIMIT_SECONDS
    while len(children := children_of(process.pid)) < len(MODELS) and time.monotonic() < limit:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 3 and output == "" and errors.splitlines() == ["vpmu test-kernel: stopped by a signal"], f"code {process.returncode}: {output} {errors}"
    assert not [child for child in children if pathlib.Path(f"/proc/{child}").exists()], f"one of {children} runs on"


def test_only_a_killed_process_leaves_files_and_only_until_the_next(runner):
    process = runner.start("--models", ",".join(MODELS))
    limit = time.monotonic() + LIMIT_SECONDS
    while not (made := set(runner.temporary.iterdir())) and time.monotonic() < limit:
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=LIMIT_SECONDS)
    assert made and made <= set(runner.temporary.iterdir()), "it has made no directory, or something has removed it"
    runner.run("--models", MODELS[0])
    assert not list(runner.temporary.iterdir())


def test_all_checks_pass_with_the_time_of_a_pipeline(runner):
    ended = runner.run("--models", ",".join(MODELS), "--time", "pipeline", "--format", "json", "--quiet")
    assert ended.returncode == 0 and ended.stderr == "", f"code {ended.returncode}: {ended.stderr}"
    report = json.loads(ended.stdout)
    assert report["time"] == "pipeline" and len(report["models"]) == len(MODELS), f"{report['time']}, {len(report['models'])} models"
    for result in report["models"]:
        assert sum(one["outcome"] == "pass" for one in result["checks"]) >= LEAST_CHECKS, f"{result['model']}: {result['checks']}"


@pytest.mark.full
@pytest.mark.seconds(150)
@pytest.mark.parametrize("model", ["nehalem", "westmere", "sandybridge", "ivybridge", "haswell", "broadwell", "skylake"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_full_suite(runner, kernel, model):
    """On one model a check of perf expects something wrong, so that it is seen to be looked at; all others pass."""
    wrong = ["perf.record.2"] if model == "skylake" else []
    options = [option for name in wrong for option in ("--expect-wrong", f"{model}/{name}")]
    ended = runner.run("--models", model, "--suite", "full", "--format", "json", "--quiet", *options, kernel=KERNELS[kernel], limit=SLOW_LIMIT_SECONDS)
    assert ended.returncode == len(wrong) and ended.stderr == "", f"code {ended.returncode}: {ended.stderr}"
    report = json.loads(ended.stdout)
    result, = report["models"]
    assert (report["suite"], result["model"]) == ("full", model)
    failed = [(one["name"], one["seen"]) for one in result["checks"] if one["outcome"] == "fail"]
    assert [name for name, _ in failed] == wrong, f"{failed}"
    passed = [one["name"] for one in result["checks"] if one["name"].startswith("perf.") and one["outcome"] == "pass"]
    assert len(passed) >= LEAST_PERF_CHECKS, f"{passed}"
