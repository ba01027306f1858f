"""a bed that serves one command after the other

Each command finds a bed kept by tools/dev/bed/keep as if freshly booted.
"""

import contextlib
import functools
import os
import pathlib
import subprocess
import tempfile

import pytest

from paths import ROOT

BOOT_ID = ["cat", "/proc/sys/kernel/random/boot_id"]
LEAVE_SOMETHING = "touch /left /dev/shm/left; mount -t tmpfs left /mnt; setsid sleep 1000 & exit 3"
LOOK_FOR_IT = "ls /left /dev/shm/left 2>/dev/null; grep left /proc/mounts; pgrep -x sleep -a | grep 1000; echo nothing"


def run_in(environment, *command, options=()):
    """The code of a command in the bed, and what it said."""
    done = subprocess.run([ROOT / "tools/dev/bed/run", *options, "--", *command], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.strip()


@contextlib.contextmanager
def kept_beds(directory):
    """Until the end, beds are kept, with their files in the directory. Yields what runs a command in one."""
    environment = os.environ | {"TMPDIR": directory}
    with subprocess.Popen([ROOT / "tools/dev/bed/keep", "--", "sh", "-c", 'echo "$VPMU_BEDS"; read -r line'], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as keep:
        yield functools.partial(run_in, environment | {"VPMU_BEDS": keep.stdout.readline().strip()})


def processes_of(directory):
    return subprocess.run(["pgrep", "-af", directory], capture_output=True, text=True, check=False).stdout


@pytest.fixture(scope="module")
def run(fetched):
    with tempfile.TemporaryDirectory() as directory, kept_beds(directory) as run_there:
        yield run_there


@pytest.mark.seconds(15)
def test_the_exit_code_is_the_commands_and_nothing_of_it_is_left(run):
    assert run("sh", "-c", LEAVE_SOMETHING)[0] == 3
    assert run("sh", "-c", LOOK_FOR_IT) == (0, "nothing")


def test_a_file_of_this_machine_that_has_changed(run):
    with tempfile.NamedTemporaryFile(dir=ROOT / "build") as file:
        assert run("cat", file.name) == (0, "")
        pathlib.Path(file.name).write_text("changed", encoding="ascii")
        assert run("cat", file.name) == (0, "changed")


def test_kvm_is_there_and_unused(run):
    assert run("sh", "-c", "test -c /dev/kvm && cat /sys/module/kvm_amd/refcnt") == (0, "0")


def test_it_stays(run):
    (code, first), second = run(*BOOT_ID), run(*BOOT_ID)
    assert (code, len(first)) == (0, 36), first
    assert second == (0, first)


@pytest.mark.seconds(20)
def test_after_a_time_limit_another_comes_and_at_the_end_nothing_is_left(fetched):
    with tempfile.TemporaryDirectory() as directory:
        with kept_beds(directory) as run_there:
            first = run_there(*BOOT_ID)
            assert run_there("sleep", "1000", options=["--timeout", "2"])[0] == 124
            second = run_there(*BOOT_ID)
            assert first[0] == second[0] == 0 and first != second, f"{first} and {second}"
            assert processes_of(directory) and os.listdir(directory)
        assert (processes_of(directory), os.listdir(directory)) == ("", [])
