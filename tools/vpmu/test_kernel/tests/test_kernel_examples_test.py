"""the examples of `vpmu test-kernel` for a CI

The commands of the repository's action.yml, of examples/github-actions.yml and of examples/kubernetes-job.yaml are run as they are, with two shards of two models. What is not run: what installs and builds, and
what is the CI's or the cluster's own.
"""

import json
import os
import re
import subprocess
import xml.etree.ElementTree

import pytest
import yaml

import fetched as environment_of
from paths import KERNEL, PROGRAM, ROOT

EXAMPLES = ROOT / "tools/vpmu/test_kernel/examples"
MODELS = ("nehalem", "skylake")
LIMIT_SECONDS = 600
PLACEHOLDER_IMAGE = "SET-ME/vpmu:SET-ME"
JOBS = ("vpmu-test", "vpmu-report")


class Runner:
    """Runs commands of the examples, with the program in their PATH."""

    def __init__(self, workspace):
        self.workspace = workspace
        programs = self.directory("programs")
        (programs / "vpmu").symlink_to(PROGRAM.resolve())
        self.environment = environment_of.environment() | {"PATH": f"{programs}:{os.environ['PATH']}"}

    def run(self, command, environment, directory):
        return subprocess.run(command, cwd=directory, env=self.environment | environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)

    def directory(self, name):
        path = self.workspace / name
        path.mkdir()
        return path


@pytest.fixture
def runner(fetched, program, tmp_path):
    return Runner(tmp_path)


def load(path):
    return [one for one in yaml.safe_load_all(path.read_text(encoding="ascii")) if one is not None]


def succeeded(ended, what):
    assert ended.returncode == 0, f"{what}: code {ended.returncode}: {ended.stdout[-300:]} {ended.stderr[-300:]}"


# The action.


def evaluate(text, inputs):
    """An expression of the action's environment: an input, or else what follows."""
    found = re.fullmatch(r"\$\{\{ inputs\.(\w+)( \|\| .*)? \}\}", text)
    assert found and found[1] in inputs, f"no input in {text}"
    return inputs[found[1]]


def run_action(runner, directory, **given):
    """Its steps that the inputs ask for, but those that install, build and upload."""
    action, = load(ROOT / "action.yml")
    unknown = set(given) - set(action["inputs"])
    assert not unknown, f"inputs that the action has not: {unknown}"
    inputs = {name: given.get(name, one["default"]) for name, one in action["inputs"].items()} | {"vpmu": str(PROGRAM.resolve())}
    wanted = "merge" if inputs["merge"] else "test"
    step, = (one for one in action["runs"]["steps"] if one["name"] == wanted)
    environment = {name: evaluate(value, inputs) for name, value in step["env"].items()}
    return runner.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]], environment, directory)


def workflow():
    one, = load(EXAMPLES / "github-actions.yml")
    return one["jobs"]


def inputs_of(job):
    """What the workflow's job gives to the action."""
    step, = (one for one in job["steps"] if one.get("uses") == "OWNER/vpmu@REF")
    return step["with"]


@pytest.fixture(scope="module")
def whole(fetched, program, tmp_path_factory):
    """Where the results of both shards are, by the workflow's inputs."""
    runner = Runner(tmp_path_factory.mktemp("workflow"))
    directory = runner.directory("action")
    given = inputs_of(workflow()["test"])
    assert given["shard"] == "${{ matrix.shard }}" and given["models"] == "all" and given["kernel"] == "bzImage", f"{given}"
    for shard in (1, 2):
        ended = run_action(runner, directory, **given | {"kernel": str(KERNEL.resolve()), "models": ",".join(MODELS), "shard": f"{shard}/2"})
        succeeded(ended, f"shard {shard}")
    return directory


def test_shards_of_the_workflow_are_all():
    shards = workflow()["test"]["strategy"]["matrix"]["shard"]
    assert shards == [f"{number}/{len(shards)}" for number in range(1, len(shards) + 1)]


@pytest.mark.seconds(15)
def test_the_workflow_tests_two_shards_and_merges_them(runner, whole):
    for shard in (1, 2):
        suite, = xml.etree.ElementTree.parse(whole / f"vpmu-shard-{shard}.xml").getroot()
        assert suite.get("name") == MODELS[shard - 1] and suite.get("failures") == "0", f"{suite.attrib}"
    succeeded(run_action(runner, whole, **inputs_of(workflow()["report"]) | {"merge": str(whole)}), "merge")
    suites = xml.etree.ElementTree.parse(whole / "vpmu-all.xml").getroot()
    assert [suite.get("name") for suite in suites] == list(MODELS) and suites.get("failures") == "0", f"{suites.attrib}"


def test_a_shard_that_the_workflow_has_lost_is_a_failure(runner, whole):
    left = runner.directory("left")
    (left / "vpmu-shard-1.json").write_bytes((whole / "vpmu-shard-1.json").read_bytes())
    ended = run_action(runner, left, merge=str(left))
    assert ended.returncode == 1 and "no report of shard 2/2" in ended.stdout, f"code {ended.returncode}: {ended.stdout} {ended.stderr}"


def test_the_action_fails_with_a_check_and_not_with_a_known_failure(runner, whole):
    directory = runner.directory("worse")
    report = json.loads((whole / "vpmu-shard-2.json").read_text(encoding="ascii"))
    report["models"][0]["checks"][1]["outcome"] = "fail"
    (directory / "vpmu-shard-2.json").write_text(json.dumps(report), encoding="ascii")
    (directory / "vpmu-shard-1.json").write_bytes((whole / "vpmu-shard-1.json").read_bytes())
    failed = run_action(runner, directory, merge=str(directory))
    assert failed.returncode == 1, f"code {failed.returncode}: {failed.stdout} {failed.stderr}"
    baseline = runner.workspace / "before.json"
    made = runner.run(["vpmu", "report", "merge", *map(str, directory.glob("*.json")), "--format", "json", "--output", str(baseline)], {}, directory)
    assert made.returncode == 1, f"code {made.returncode}: {made.stderr}"
    known = run_action(runner, directory, merge=str(directory), baseline=str(baseline))
    assert known.returncode == 0 and known.stdout.endswith(": 0 changed\n"), f"code {known.returncode}: {known.stdout} {known.stderr}"


# The cluster's jobs.


def container_of(name):
    job, = (one for one in load(EXAMPLES / "kubernetes-job.yaml") if one["kind"] == "Job" and one["metadata"]["name"] == name)
    container, = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == PLACEHOLDER_IMAGE
    return job["spec"], container


def run_container(runner, name, **given):
    """Its command, with another environment where the manifest has these names."""
    _, container = container_of(name)
    environment = {one["name"]: one["value"] for one in container["env"]}
    index = {"JOB_COMPLETION_INDEX": given.pop("index")} if "index" in given else {}
    assert set(given) <= set(environment), f"{name} has {sorted(environment)}"
    return runner.run(container["command"], environment | given | index, runner.workspace)


@pytest.mark.parametrize("name", JOBS)
def test_the_job_has_a_pod_for_each_shard(name):
    spec, _ = container_of("vpmu-test")
    shards, = (one["value"] for one in container_of(name)[1]["env"] if one["name"] == "SHARDS")
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"], f"{spec['completions']}"
    assert shards == str(spec["completions"])


@pytest.mark.seconds(15)
def test_the_job_tests_two_shards_and_merges_them(runner):
    results = runner.directory("results")
    for index in ("0", "1"):
        ended = run_container(runner, "vpmu-test", KERNEL=str(KERNEL.resolve()), MODELS=",".join(MODELS), SHARDS="2", RESULTS=str(results), index=index)
        succeeded(ended, f"pod {index}")
    merged = run_container(runner, "vpmu-report", SHARDS="2", RESULTS=str(results))
    succeeded(merged, "report")
    assert all(f"\n{model} " in merged.stdout for model in MODELS) and ", 0 failed," in merged.stdout, merged.stdout
    (results / "shard-1.json").unlink()
    lost = run_container(runner, "vpmu-report", SHARDS="2", RESULTS=str(results), LIMIT="0")
    assert lost.returncode == 1 and "no report of shard 2/2" in lost.stdout, f"code {lost.returncode}: {lost.stdout} {lost.stderr}"


def test_a_pod_that_cannot_test_fails(runner):
    ended = run_container(runner, "vpmu-test", KERNEL="/none", RESULTS=str(runner.workspace), index="0")
    assert ended.returncode != 0, f"code {ended.returncode}: {ended.stderr}"


# All of them.


def scripts():
    """(name, shell, text) of each command of the examples."""
    action, = load(ROOT / "action.yml")
    steps = [("action.yml", step) for step in action["runs"]["steps"]]
    steps += [("github-actions.yml", step) for job in workflow().values() for step in job["steps"]]
    yield from ((name, "bash", step["run"]) for name, step in steps if "run" in step)
    for job in JOBS:
        command = container_of(job)[1]["command"]
        assert command[:2] == ["sh", "-c"]
        yield "kubernetes-job.yaml", "sh", command[2]


def test_shellcheck_finds_nothing(tmp_path):
    for name, shell, text in scripts():
        path = tmp_path / "script"
        path.write_text("set -e\n" + text, encoding="ascii")  # as the CI runs it
        ended = subprocess.run(["shellcheck", "--shell", shell, path], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, f"{name}: {ended.stdout}"
