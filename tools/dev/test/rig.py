"""What tests find ready: the program, what tools/dev/bed/fetch has fetched, the guests' images, the bed, and a directory for what a test wants to keep."""

import contextlib
import fcntl
import os
import subprocess
import time

import pytest

import bed as beds
from paths import IMAGES, KERNEL, LOGS, PROGRAM, ROOT, step_of


def pytest_configure():
    # Booted guests are kept there, apart from the user's own.
    os.environ.setdefault("XDG_CACHE_HOME", str(ROOT / "build/guest-cache"))
    # The same in workers, and where a test runs pytest in the bed.
    os.environ.setdefault("VPMU_TEST_RUN", f"{os.getpid()} {time.time()}")


@contextlib.contextmanager
def one_at_a_time(name):
    """Among the workers."""
    LOGS.mkdir(parents=True, exist_ok=True)
    with (LOGS / f"{name}.lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def do(*command):
    done = subprocess.run(list(map(str, command)), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}: {done.stdout[-2000:]}"


@pytest.fixture(scope="session")
def program():
    """The path of vpmu."""
    assert PROGRAM.exists(), f"{PROGRAM} is not built: run tools/build, or `cmake --build --preset dev`"
    return PROGRAM


@pytest.fixture(scope="session")
def fetched():
    """The bed's hosts, QEMU, the daemons and the Linux guest's kernel are there. Returns that kernel's path."""
    do("tools/dev/bed/fetch")
    return KERNEL


@pytest.fixture(scope="session")
def intel(fetched):
    """The emulated Intel host is there."""
    do("tools/dev/bed/fetch", "intel")


@pytest.fixture(scope="session")
def debian13(fetched):
    """The daemons of Debian 13 are there."""
    do("tools/dev/bed/fetch", "debian13")


@pytest.fixture(scope="session")
def images(fetched, program):
    """The Linux guests' images, of the sources as they are. Returns their directory. Made once in each run."""
    this_run = os.environ["VPMU_TEST_RUN"]
    made = LOGS / "images.made"
    with one_at_a_time("images"):
        if not made.exists() or made.read_text(encoding="ascii") != this_run:
            do("guest-tests/linux/build-initramfs", "--with-profilers", "--with-vpmu", program, IMAGES)
            made.write_text(this_run, encoding="ascii")
    return IMAGES


@pytest.fixture
def accel(request):
    return request.config.option.accel


def directory_of(name):
    path = LOGS / name
    path.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture(scope="module")
def kept(request):
    """A directory of the step, build/logs/test/STEP, for consoles and other outputs that whoever looks into a failure wants to see."""
    return directory_of(step_of(request.node.path))


@pytest.fixture
def checks(record_property):
    """For a test that consists of checks: checks(PASSED, FAILED), where FAILED are their names or lines, reports them, and fails the test unless all of at least one have passed."""

    def judge(passed, failed=(), note=""):
        record_property("checks", passed)
        if note:
            record_property("note", note)
        assert not failed, f"{len(failed)} failed: " + "\n".join(map(str, failed))
        assert passed > 0, f"no check has passed. {note}"

    return judge


@pytest.fixture(scope="session")
def bed(fetched):
    """bed.py, whose on_kvm() and on_intel() find what they need."""
    return beds
