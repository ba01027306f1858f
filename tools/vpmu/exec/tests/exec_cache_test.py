"""guests that have booted already, without KVM

What needs a file system of its own, or another user, runs as root only.
"""

import contextlib
import os
import pathlib
import pwd
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

from checks import LIMIT_SECONDS, WENT_ON, Runner, contains, same
from paths import PROGRAM

pytestmark = [pytest.mark.sample(3), pytest.mark.seconds(20)]
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="needs root")
MADE_ANEW = b" is not used, and made anew: "
NOT_KEPT = b"vpmu: the booted guest is not kept: "


class CachingRunner(Runner):
    """Has a cache of its own, and says whether a guest had booted already."""

    def __init__(self, kernel, home):
        super().__init__("soft", kernel)
        self.use(home)

    def use(self, home):
        self.environment["XDG_CACHE_HOME"] = str(home)
        self.guests = pathlib.Path(home) / "vpmu/guests"

    def words(self, options, command):
        words = super().words(options, command)
        return [*words[:2], "--verbose", *words[2:]]

    def went_on(self, *command, options=(), **more):
        """Whether it went on with a guest of the cache; the command must do well."""
        done = self.run(*command, options=options, **more)
        same(done.returncode, 0, f"the code, with {done.stderr!r:.900}")
        return WENT_ON in done.stderr

    def kept(self):
        return sorted(self.guests.iterdir()) if self.guests.exists() else []

    def guest(self):
        """The only file."""
        files = self.kept()
        same(len(files), 1, f"guests in {files}")
        return files[0]


@pytest.fixture
def runner(fetched):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as home:
        yield CachingRunner(fetched, home)


# All that counts, and what a program can see of when and where it runs. Of several CPUs all are used.
LOOK = """
head -c 32 /dev/urandom | sha256sum; cat /proc/sys/kernel/random/boot_id; date +%s.%N; cat /proc/uptime /proc/interrupts /proc/meminfo; grep -v ^ctxt /proc/stat
perf stat -a -x, -e instructions,cycles,branches,branch-misses,cache-misses,page-faults,instructions:u -o /dev/stdout sh -c '
  for n in 1 2 3 4; do /bin/true & done; wait'
dmesg | tail -n 3
"""
BRIEFLY = "perf stat -a -x, -e instructions,cycles -o /dev/stdout true; cat /proc/uptime /proc/sys/kernel/random/boot_id"
SAMPLE = "perf record -B -N -q -e cycles:pp -c 100003 -o /tmp/data -- md5sum /bin/true && sha256sum </tmp/data\n"


@pytest.mark.sample(1)
@pytest.mark.seconds(60)
@pytest.mark.parametrize("options", [
    pytest.param(["--model", "nehalem"], id="nehalem"),
    pytest.param(["--model", "ivybridge", "--cpus", "4", "--memory", "512M"], id="ivybridge"),
    pytest.param(["--model", "haswell", "--cpus", "4", "--threads", "2", "--memory", "512M", "--schedule", "20000:7"], id="haswell"),
    pytest.param(["--model", "skylake", "--memory", "512M"], id="skylake"),
])
def test_same_on(runner, options):
    look = LOOK + SAMPLE if "nehalem" in options else LOOK  # where time is not modelled, which takes a minute
    seen = []
    for more, booted in ((["--no-cache"], True), ([], True), ([], False), ([], False)):
        done = runner.run("sh", "-c", look, options=[*options, *more])
        same(done.returncode, 0, f"the code, with {done.stderr!r:.900}")
        same(WENT_ON in done.stderr, not booted, "whether the guest went on")
        # The directories below / are the host's, and may change; the time of day does not come from there.
        seen.append(re.sub(rb"(?m)^(Mapped|Cached|Shmem).*$", b"", done.stdout))
    counted = re.findall(rb"(?m)^(\d+),,instructions,", seen[0])
    if len(counted) != 1 or int(counted[0]) < 1_000_000:
        raise AssertionError(f"instructions: {counted} in {seen[0]!r:.400}")
    for number, other in enumerate(seen[1:], 1):
        same(other.splitlines(), seen[0].splitlines(), f"run {number}")


def vpmu(runner, *words, directory):
    done = subprocess.run([PROGRAM, *words], env=runner.environment, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_SECONDS, check=False)
    same(done.returncode, 0, f"the code of vpmu {words[0]}, with {done.stderr!r:.600}")
    return done.stdout


def test_other_commands(runner):
    """Counts of `vpmu stat`, samples of `vpmu profile` and the results of `vpmu test-kernel` are the same with a guest that booted already."""
    common = ["--accel", "soft", "--kernel", str(runner.kernel), "--model", "sandybridge"]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        seen = []
        for more in (["--no-cache"], [], []):
            stat = vpmu(runner, "stat", *common, *more, "--time", "pipeline", "--json", "-", "--", "sha256sum", "/bin/true", directory=directory)
            vpmu(runner, "profile", *common, *more, "-o", "profile", "--", "sha256sum", "/bin/true", directory=directory)
            profile = (pathlib.Path(directory) / "profile/perf.data").read_bytes()
            shutil.rmtree(pathlib.Path(directory) / "profile")
            seen.append((stat, profile))
        same(len(runner.kept()), 2, "guests: of `vpmu stat`, and of `vpmu profile`, which has another directory")
        for stat, profile in seen[1:]:
            same(stat, seen[0][0], "the document of vpmu stat")
            same(profile, seen[0][1], "perf.data")


def test_tests_of_a_kernel(runner):
    reports = []
    for more in (["--no-cache"], [], []):
        same(runner.kept() == [], len(reports) < 2, "whether there is no guest yet")
        with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
            report = pathlib.Path(directory) / "report.json"
            vpmu(runner, "test-kernel", str(runner.kernel), "--models", "haswell", "--suite", "quick", "--format", "json", "--output", str(report), *more, directory=directory)
            reports.append(re.sub(rb'"(seconds|time)[^,]*,', b"", report.read_bytes()))
    if reports[0].count(b'"outcome": "pass"') < 20:
        raise AssertionError(f"the report: {reports[0]!r:.600}")
    same(reports[1:], [reports[0]] * 2, "the other reports")


def test_damaged(runner):
    """Wherever it is: the guest boots, and the file is right again."""
    same(runner.went_on("true"), False, "the first run's guest")
    file = runner.guest()
    whole = file.read_bytes()

    def flipped(at):
        return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:]

    size = len(whole)
    for what, content in (("empty", b""), ("cut", whole[:size // 2]), ("longer", whole + b"x"), ("version", flipped(8)), ("state", flipped(5000)), ("memory", flipped(size // 2))):
        file.write_bytes(content)
        done = runner.run("echo", "here")
        same((done.returncode, done.stdout), (0, b"here\n"), f"code and output, {what}; {done.stderr!r:.600}")
        contains(done.stderr, MADE_ANEW, what)
        same(file.read_bytes() == whole, True, f"the file is as before, {what}")
    same(runner.went_on("true"), True, "the last run's guest")


def test_of_somebody_else(runner):
    same(runner.went_on("true"), False, "the first run's guest")
    file = runner.guest()
    file.chmod(0o640)
    same(runner.went_on("true"), False, "with a file that others may read")
    same(file.stat().st_mode & 0o777, 0o600, "its mode afterwards")
    moved = file.with_name("moved")
    file.rename(moved)
    file.symlink_to(moved)
    done = runner.run("true")
    same((done.returncode, WENT_ON in done.stderr), (0, False), "with a symbolic link")
    contains(done.stderr, b"is a symbolic link", "what is said of it")
    file.unlink()
    moved.rename(file)
    if os.getuid() == 0:
        os.chown(file, 1, 1)
        same(runner.went_on("true"), False, "with a file of another user")
        same(file.stat().st_uid, 0, "its owner afterwards")
    runner.guests.chmod(0o777)
    done = runner.run("true")
    same((done.returncode, WENT_ON in done.stderr), (0, False), "where others may write")
    contains(done.stderr, b"another user could write to the directory", "what is said of it")


@AS_ROOT
def test_two_users(runner):
    """Each has one of his own, also below a directory where both may write."""
    nobody = pwd.getpwnam("nobody")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as home:
        os.chmod(home, 0o1777)
        os.chown(home, nobody.pw_uid, nobody.pw_gid)
        runner.use(home)
        same(runner.went_on("true"), False, "where another user's directory is")
        same(runner.kept(), [], "the guests kept there")
        os.chmod(home, 0o755)
        other = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "cwd": "/"}
        same([runner.went_on("true", **other) for _ in range(2)], [False, True], "nobody's guests")
        same(runner.guest().stat().st_uid, nobody.pw_uid, "the owner")
        same(runner.went_on("true"), False, "root's guest, with what is nobody's")


@contextlib.contextmanager
def file_system(options):
    """A small one, as a home; in no other process's view once it is gone."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", directory], check=True)
        try:
            yield pathlib.Path(directory)
        finally:
            subprocess.run(["umount", "-l", directory], check=True)


@AS_ROOT
def test_full_disk(runner):
    with file_system("size=20m,mode=700") as home:
        runner.use(home)
        done = runner.run("echo", "here")
        same((done.returncode, done.stdout), (0, b"here\n"), f"code and output, with {done.stderr!r:.600}")
        contains(done.stderr, NOT_KEPT, "what is said")
        contains(done.stderr, b"No space left on device", "what is said")
        same(runner.kept(), [], "what is left")


@AS_ROOT
def test_read_only_home(runner):
    with file_system("mode=700") as home:
        runner.use(home)
        subprocess.run(["mount", "-o", "remount,ro", home], check=True)
        same(runner.went_on("true"), False, "with an empty home")
        subprocess.run(["mount", "-o", "remount,rw", home], check=True)
        same(runner.went_on("true"), False, "the first run's guest")
        subprocess.run(["mount", "-o", "remount,ro", home], check=True)
        same(runner.went_on("true"), True, "with a home that has one")
    runner.environment.pop("XDG_CACHE_HOME")
    runner.environment.pop("HOME", None)
    same(runner.went_on("true"), False, "without any home")


def test_another_program(runner):
    """A guest that one program has booted is not another one's."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        os.chmod(directory, 0o755)
        older = pathlib.Path(directory) / "vpmu"
        shutil.copy(PROGRAM, older)
        with older.open("ab") as file:
            file.write(b"x")
        words = [str(older), *runner.words([], ["true"])[1:]]
        for booted in (True, False):
            done = subprocess.run(words, env=runner.environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_SECONDS, check=False)
            same((done.returncode, WENT_ON in done.stderr), (0, not booted), f"code, and whether it went on, with {done.stderr!r:.600}")
    same([runner.went_on("true") for _ in range(2)], [False, True], "this program's guests")
    same(len(runner.kept()), 2, "guests")


def test_two_at_once(runner):
    for booted in (True, False):
        both = [runner.start("sh", "-c", "echo here; exit 7") for _ in range(2)]
        for process in both:
            out, errors = process.communicate(timeout=LIMIT_SECONDS)
            same((process.returncode, out, WENT_ON in errors), (7, b"here\n", not booted), f"code, output, whether it went on; with {errors!r:.600}")
        runner.guest()


def test_disks(runner):
    """A guest that booted with one image goes on with another one."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        for number, booted in ((1, True), (2, False)):
            image = pathlib.Path(directory) / f"image{number}"
            image.write_bytes(f"disk {number}\n".encode().ljust(number << 20, b"\0"))
            done = runner.run("sh", "-c", "head -n 1 /dev/vda; blockdev --getsize64 /dev/vda; echo x | dd of=/dev/vda conv=fsync 2>/dev/null", options=["--disk", str(image)])
            same((done.returncode, done.stdout), (0, f"disk {number}\n{number << 20}\n".encode()), f"code and output, with {done.stderr!r:.600}")
            same(WENT_ON in done.stderr, not booted, "whether it went on")
            same(image.read_bytes()[:2], b"x\n", "the image")


def test_listed_and_cleared(runner):
    runner.environment["VPMU_GUEST_CACHE_SIZE"] = "1M"
    same(runner.went_on("true"), False, "the first guest")
    same(runner.went_on("true", options=["--model", "haswell"]), False, "the second guest")
    name = runner.guest().name  # the first has made room
    listed = vpmu(runner, "cache", "list", directory="/").decode().splitlines()
    same((listed[0].split()[0], listed[1].split()[0], len(listed)), ("GUEST", name, 3), "the list")
    contains(listed[2], str(runner.guests), "the last line")
    contains(vpmu(runner, "cache", "clear", directory="/"), b"1 guests, ", "what clear says")
    same(runner.kept(), [], "what is left")
    runner.environment["VPMU_GUEST_CACHE_SIZE"] = "much"
    done = runner.run("true")
    same(done.returncode, 125, "the code with a size that is none")
    contains(done.stderr, b'bad size "much"', "what is said")


def of_this_run(word):
    """Processes of a run, whose command has this word."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and word.encode() in pathlib.Path(f"/proc/{entry}/cmdline").read_bytes():
                found.append(int(entry))
    return found


@pytest.mark.always
@pytest.mark.seconds(40)
def test_killed(runner, request):
    """At random moments, alone or with all of its processes: nothing is left, and each guest that is there is right."""
    chance = random.Random(44)
    kills = 200 if request.config.option.size == "full" else 4
    options = ["--memory", "256M"]
    begin = time.monotonic()
    done = runner.run("sh", "-c", BRIEFLY, options=[*options, "--no-cache"])
    longest = time.monotonic() - begin
    kept = 0
    for number in range(kills):
        word = f"run-{os.getpid()}-{number}"
        shutil.rmtree(runner.guests, ignore_errors=True)
        process = runner.start("sh", "-c", "exec sleep 100000", word, options=options, start_new_session=True)
        # The first one when it has kept its guest, and the second one while it boots, whatever chance does.
        until = time.monotonic() + (LIMIT_SECONDS if number == 0 else chance.uniform(0, longest / 4 if number == 1 else longest))
        while time.monotonic() < until and not (number == 0 and runner.kept()):
            time.sleep(0.01)
        how = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if chance.random() < 0.5 else os.kill)(process.pid, how)
        process.communicate(timeout=LIMIT_SECONDS)
        until = time.monotonic() + 30
        while of_this_run(word) and time.monotonic() < until:
            time.sleep(0.05)
        same(of_this_run(word), [], f"processes that are left of run {number}")
        names = [file.name for file in runner.kept()]
        same([name for name in names if ".part-" in name], [], f"unfinished files of run {number}")
        kept += len(names)
        if names and (number < 20 or chance.random() < 0.1):
            again = runner.run("sh", "-c", BRIEFLY, options=options)
            same((again.returncode, WENT_ON in again.stderr, again.stdout == done.stdout), (0, True, True), f"code, whether it went on, and whether all is the same, after run {number}")
    if not 0 < kept < kills:
        raise AssertionError(f"{kept} of {kills} runs have left a guest: no moment before or behind it was met")
