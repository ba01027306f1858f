"""What the guests of vpmu exec tell programs of date, name and addresses, and what of events that are not counted, without KVM"""

import calendar
import os
import re
import subprocess
import tempfile
import time

import pytest

from checks import Runner, contains, ended, same

pytestmark = [pytest.mark.sample(4), pytest.mark.seconds(6)]
DAY = 86400
FIRST = calendar.timegm((2027, 1, 1, 0, 0, 0))
FEW_SECONDS = 60


@pytest.fixture
def runner(fetched):
    return Runner("soft", fetched, False)


@pytest.fixture
def directory():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as path:
        os.chmod(path, 0o755)
        yield path


def test_date(runner, directory):
    """The same in each run, and after all files that are in use."""
    for changed in (None, time.time()):
        if changed:
            open(os.path.join(directory, "new"), "w", encoding="ascii").close()
        done = [runner.run("date", "+%s", cwd=directory) for _ in range(2)]
        ended(done[0], 0, done[1].stdout)
        seen = int(done[0].stdout)
        least = max(FIRST, (int(changed) // DAY + 1) * DAY if changed else 0)
        assert least <= seen < least + FEW_SECONDS, f"{seen} is not soon after {least}"


def test_date_of_choice(runner):
    done = runner.run("date", "+%s", options=["--epoch", "1000000000"])
    assert 1000000000 <= int(done.stdout) < 1000000000 + FEW_SECONDS, done.stdout


def test_make_sees_no_clock_skew(runner, directory):
    with open(os.path.join(directory, "Makefile"), "w", encoding="ascii") as rules:
        rules.write("all: out\nout: in\n\tcp in out\n")
    open(os.path.join(directory, "in"), "w", encoding="ascii").close()
    done = runner.run("make", options=["--rw", directory], cwd=directory)
    ended(done, 0, b"cp in out\n", b"")
    ended(runner.run("make", options=["--rw", directory], cwd=directory), 0, b"make: Nothing to be done for 'all'.\n", b"")


def test_certificates_are_valid(runner, directory):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "365", "-subj", "/CN=test", "-keyout", "key", "-out", "certificate"],
                   cwd=directory, check=True, capture_output=True)
    ended(runner.run("openssl", "verify", "-CAfile", "certificate", "certificate", cwd=directory), 0, b"certificate: OK\n", b"")


def test_top_runs(runner):
    done = runner.run("top", "-bn1")
    same(done.returncode, 0, f"the code ({done.stderr[:300]!r})")
    assert re.search(rb"\d+ total, +\d+ running", done.stdout), f"no tasks: {done.stdout[:300]!r}"


def test_host_name(runner):
    ended(runner.run("hostname"), 0, b"vpmu\n")


def test_addresses_are_the_same_in_each_directory(runner, directory):
    maps = []
    for name in ("short", "a-name-that-is-much-longer-than-the-other"):
        path = os.path.join(directory, name)
        os.mkdir(path)
        done = runner.run("sh", "-c", "grep -E 'stack|libc|heap' /proc/self/maps | cut -d' ' -f1", cwd=path)
        same(done.returncode, 0, "the code")
        maps.append(done.stdout)
    assert maps[0].count(b"\n") > 3, f"too few: {maps[0]}"
    same(maps[0], maps[1], "where a program's parts lie")


# Of Skylake, without a model of the pipeline: the first is not delivered.
PERF = ("perf", "stat", "-x", ",", "-o", "/dev/stdout", "-e", "cpu/event=0x9c,umask=0x1/,instructions:u", "true")
LINE = b"vpmu exec: the guest has counted events that the source exact does not deliver, and read 0: idq_uops_not_delivered.core; see `vpmu events --model skylake`; --time pipeline delivers more\n"


@pytest.mark.parametrize("how", ["warn", "error", "silent"])
def test_events_that_are_not_counted(runner, how):
    options = ["--time", "instructions", *(() if how == "warn" else ("--uncounted", how))]
    done = runner.run(*PERF, options=options)
    same((done.returncode, LINE in done.stderr), (125 if how == "error" else 0, how != "silent"), f"code, and whether it is said ({done.stderr[:400]!r})")
    done = runner.run(*PERF, options=["--time", "pipeline", "--uncounted", "error"])
    same(done.returncode, 0, f"the code where the pipeline delivers it ({done.stderr[:400]!r})")
    contains(done.stdout, b"instructions:u", "the counts")
