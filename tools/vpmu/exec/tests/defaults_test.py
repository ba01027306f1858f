"""the commands of vpmu with their defaults on models, without KVM

As somebody gives them who chooses only a model.
"""

import json
import subprocess

import pytest

import fetched as files
from checks import same
from paths import LINUX, PROGRAM, models

pytestmark = [pytest.mark.sample(2), pytest.mark.seconds(25)]
PROGRAMS = LINUX / "programs"
# Of counted.S: counted_loop.inc.
KNOWN = {"instructions:u": 500005, "branches:u": 100001, "loads:u": 100000, "stores:u": 100000}
# Linux has no table of events for a CPU with the signature 106F0H: its perf knows only the architectural events there, and CPUID says that mispredicted
# branches are none of these (Nehalem's leaf 0AH). What these commands say of it.
UNKNOWN_TO_LINUX = {
    ("profile", "nehalem-havendale"): "unknown term 'ldlat'",
}


class Bench:
    """A directory with the program `prog`, a model and a kernel."""

    def __init__(self, directory, model, kernel):
        self.directory, self.model, self.kernel = directory, model, kernel
        subprocess.run(["gcc", "-nostdlib", "-static", f"-I{PROGRAMS}", PROGRAMS / "counted.S", "-o", directory / "prog"], check=True)

    def vpmu(self, command, *words):
        done = subprocess.run([PROGRAM, command, "--model", self.model, *words], env=files.environment(), cwd=self.directory, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=600, check=False)
        same(done.returncode, 0, f"the exit code of vpmu {command} {' '.join(map(str, words))} ({done.stderr:.400})")
        return done


def execute(bench):
    done = bench.vpmu("exec", "--accel", "soft", "--kernel", bench.kernel, "--", "echo", "there")
    same(done.stdout, "there\n", "the output")


def stat(bench):
    done = bench.vpmu("stat", "--kernel", bench.kernel, "--json", "-", "--", "./prog")
    counts = {event["name"]: event["value"] for event in json.loads(done.stdout)["events"]}
    same({name: counts.get(name) for name in KNOWN}, KNOWN, "the counts")
    for name in ("instructions:k", "branch-misses:u", "cache-misses:u"):
        assert isinstance(counts.get(name), int), f"no number for {name}: {counts}"


def profile(bench):
    directory = bench.directory / "profile"
    bench.vpmu("profile", "--kernel", bench.kernel, "-o", directory, "--", "./prog")
    for name in ("perf.data", "report.html"):
        assert (directory / name).stat().st_size > 0, f"{name} is empty"


def events(bench):
    lines = bench.vpmu("events").stdout.splitlines()
    assert any(line.endswith(" INST_RETIRED.ANY") for line in lines), f"no event of that name in {len(lines)} lines"


COMMANDS = {"exec": execute, "stat": stat, "profile": profile, "events": events}


@pytest.fixture(scope="module", params=models())
def bench(request, fetched, tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("defaults"), request.param, fetched)


@pytest.mark.parametrize("command", COMMANDS)
def test_works(bench, command):
    if expected := UNKNOWN_TO_LINUX.get((command, bench.model)):
        with pytest.raises(AssertionError) as seen:
            COMMANDS[command](bench)
        assert expected in str(seen.value)
    else:
        COMMANDS[command](bench)
