"""vpmu exec, without KVM

With `--accel kvm`, on this machine's KVM; exec_kvm_test.py does that, or in the bed. Where VPMU_VIRTIOFSD, VPMU_STORAGE_DAEMON or VPMU_PASST name a daemon, that one is tried.
A test takes some 4 seconds.
"""

import contextlib
import fcntl
import hashlib
import http.server
import json
import os
import pathlib
import pty
import pwd
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import termios
import threading
import time

import pytest

from checks import LIMIT_SECONDS, WENT_ON, Runner, contains, ended, same
from paths import CACHE, PROGRAM

MIB = 1 << 20
pytestmark = [pytest.mark.sample(7), pytest.mark.seconds(10)]


@pytest.fixture(params=["debian12", pytest.param("debian13", marks=pytest.mark.full)])
def runner(request, accel, fetched):
    """With the daemons of one release; of Debian 13, virtiofsd is another program, written in Rust."""
    if request.param == "debian13":
        request.getfixturevalue("debian13")
    return Runner(accel, fetched, request.param == "debian13")


# passt has vhost-user since Debian 13.
WITH_A_NETWORK = pytest.mark.parametrize("runner", ["debian13"], indirect=True)


@pytest.mark.kvm
def test_code_and_streams(runner):
    ended(runner.run("sh", "-c", "echo one; echo two >&2; exit 42"), 42, b"one\n", b"two\n")


def test_killed(runner):
    ended(runner.run("sh", "-c", "kill -KILL $$"), 128 + signal.SIGKILL)


def test_no_such_command(runner):
    ended(runner.run("no-such-command"), 127, b"", b"vpmu exec: no-such-command: command not found\n")


def test_not_executable(runner):
    ended(runner.run("/etc/passwd"), 126, b"", b"vpmu exec: executing /etc/passwd: Permission denied\n")


@pytest.mark.kvm
def test_input_and_output(runner):
    """More than pipes and rings hold, in both directions."""
    data = os.urandom(3 << 20)
    done = runner.run("sh", "-c", "sha256sum; seq 1 400000", data=data)
    numbers = "".join(f"{i}\n" for i in range(1, 400001))
    ended(done, 0, f"{hashlib.sha256(data).hexdigest()}  -\n{numbers}".encode())


@pytest.mark.kvm
def test_reader_that_goes(runner):
    """As `vpmu exec -- yes | head -n 1`."""
    process = runner.start("sh", "-c", "yes; echo $? >&2")
    same(process.stdout.readline(), b"y\n", "the first line")
    process.stdout.close()
    same(process.stderr.read(), b"141\n", "how yes has ended")
    same(process.wait(LIMIT_SECONDS), 0, "the code")


def test_closed_streams(runner):
    done = subprocess.run(["sh", "-c", 'exec "$@" 0<&- 1>&-', "sh", *runner.words([], ["sh", "-c", "cat; echo x; echo end >&2"])],
                          env=runner.environment, stderr=subprocess.PIPE, timeout=LIMIT_SECONDS, check=False)
    same((done.returncode, done.stderr), (125, b"end\n" + lost(2, "output", "Bad file descriptor")), "code and errors")


def lost(count, stream, why):
    return f"vpmu exec: {count} bytes that the command has written to standard {stream} are lost: {why}; open it, or give it a file with room\n".encode()


def test_output_that_cannot_be_written(runner):
    with open("/dev/full", "wb") as full:
        for command, code in (("echo hi", 125), ("echo hi; exit 42", 42)):
            done = subprocess.run(runner.words([], ["sh", "-c", command]), env=runner.environment, stdin=subprocess.DEVNULL, stdout=full,
                                  stderr=subprocess.PIPE, timeout=LIMIT_SECONDS, check=False)
            same((done.returncode, done.stderr), (code, lost(3, "output", "No space left on device")), f"code and errors of {command}")
        done = subprocess.run(runner.words([], ["sh", "-c", "echo hi >&2"]), env=runner.environment, stdin=subprocess.DEVNULL, stderr=full,
                              timeout=LIMIT_SECONDS, check=False)
        same(done.returncode, 125, "the code without standard error")
    done = runner.run("true", options=["--console", "/dev/full", "--append", "loglevel=7"])
    same((done.returncode, done.stdout), (125, b""), "code and output without a log")
    contains(done.stderr, b"bytes of the guest kernel's log are lost: No space left on device; give a file with room with --console\n", "the line")


def test_files_of_power(runner):
    """What would let a user of the host become root."""
    script = "cd {}; cp /bin/true t; for mode in 4755 2755 755; do chmod $mode t 2>/dev/null; echo $?; done; mknod d c 1 3 2>/dev/null; echo $?; mkfifo p; echo $?"
    for options, out in (([], b"1\n1\n0\n1\n0\n"), (["--rw-special"], b"0\n0\n0\n0\n0\n")):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as kept:
            os.chmod(kept, 0o755)
            done = runner.run("sh", "-c", script.format(kept), options=["--rw", kept, *options])
            ended(done, 0, out)
            same(sorted(os.listdir(kept)), ["d", "p", "t"] if options else ["p", "t"], "the files")


def test_as_here(runner):
    """User, directory, environment, mask; and what is of this desktop is not there."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        os.chmod(directory, 0o755)
        runner.environment |= {"FOO": "a b", "DISPLAY": ":0"}
        done = runner.run("sh", "-c", 'id -u; id -g; pwd; echo "$FOO$DISPLAY"; umask', cwd=directory)
        ended(done, 0, f"{os.getuid()}\n{os.getgid()}\n{os.path.realpath(directory)}\na b\n{subprocess.check_output(['sh', '-c', 'umask'], text=True)}".encode())


def test_as_another_user(runner):
    """One that is not root, who is the guest's root; what belongs to others is nobody's."""
    nobody = pwd.getpwnam("nobody")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as kept:
        os.chown(kept, nobody.pw_uid, nobody.pw_gid)
        done = runner.run("sh", "-c", f"id -u; echo x >{kept}/file; cat {kept}/file; cp /etc/passwd {kept}/copy; chmod 600 /tmp/. && cp /bin/true /tmp/t && chmod 755 /tmp/t && /tmp/t; cat /etc/shadow", options=["--rw", kept], cwd="/", user=nobody.pw_uid,
                          group=nobody.pw_gid, extra_groups=[])
        same((done.returncode, done.stdout), (1, b"0\nx\n"), f"code and output, with {done.stderr!r:.300}")
        contains(done.stderr, b"/etc/shadow: Permission denied", "what only root reads")
        made = pathlib.Path(kept) / "file"
        same((made.read_text(), made.stat().st_uid), ("x\n", nobody.pw_uid), "the file and its owner")


def test_writes_are_lost_or_kept(runner):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as lost, tempfile.TemporaryDirectory(dir="/var/tmp") as kept:
        done = runner.run("sh", "-c", f"echo a >{lost}/file && cat {lost}/file && echo b >{kept}/file && mv /etc/passwd /etc/moved && echo moved",
                          options=["--rw", kept])
        ended(done, 0, b"a\nmoved\n")
        same(os.listdir(lost), [], "what the host has of /")
        same((pathlib.Path(kept) / "file").read_text(), "b\n", "the host's file")
    if not pathlib.Path("/etc/passwd").exists():
        raise AssertionError("the host has lost a file")


@pytest.mark.kvm
def test_signals(runner):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        process = runner.start("sh", "-c", "echo ready; exec sleep 100000")
        same(process.stdout.readline(), b"ready\n", "the first line")
        process.send_signal(number)
        same(process.wait(LIMIT_SECONDS), 128 + number, f"the code after signal {number}")


def test_time_limit(runner):
    with tempfile.TemporaryDirectory() as directory:
        statistics = pathlib.Path(directory) / "statistics"
        done = runner.run("sh", "-c", "echo begin; while :; do :; done", options=["--timeout", "25", "--stats", str(statistics)])
        same((done.returncode, done.stdout), (124, b"begin\n"), "code and output")
        contains(done.stderr, b"vpmu exec: stopped after 25 s (--timeout)", "the line")
        counters = json.loads(statistics.read_text())["vcpus"][0]
        if not counters:
            raise AssertionError("no counters in the statistics")


@pytest.mark.kvm
def test_terminal(runner):
    """On a terminal the command has one, of its size."""
    process, master = pty.fork()
    if process == 0:
        try:
            termios.tcsetwinsize(0, (33, 99))
            os.execve(PROGRAM, runner.words([], ["sh", "-c", "tty; stty size; read -r line; echo got $line; exit 3"]), runner.environment)
        finally:
            os._exit(126)  # else it would go on as a second pytest
    os.set_blocking(master, False)
    seen, typed, begin = b"", False, time.monotonic()
    while time.monotonic() - begin < LIMIT_SECONDS:
        time.sleep(0.05)
        try:
            seen += os.read(master, 65536)
        except BlockingIOError:
            pass
        except OSError:
            break
        if not typed and b"99\r\n" in seen:
            os.write(master, b"word\r")
            typed = True
    else:
        os.kill(process, signal.SIGKILL)
    same(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), 3, "the code")
    same(seen, b"/dev/pts/0\r\n33 99\r\nword\r\ngot word\r\n", "the terminal")


def sleeping(runner, options=(), program="virtiofsd"):
    """A command that sleeps, and the daemons of its guest: whoever looks after one has the command's words."""
    word = f"100000.{os.getpid()}{time.monotonic_ns()}"
    process = runner.start("sh", "-c", f"echo ready; exec sleep {word}", options=options)
    same(process.stdout.readline(), b"ready\n", "the first line")
    daemons = [entry for entry in os.listdir("/proc") if entry.isdigit() and is_daemon_of(entry, word, program)]
    if not daemons:
        raise AssertionError("no daemon of the machine's")
    return process, daemons


def words_of(entry):
    return pathlib.Path(f"/proc/{entry}/cmdline").read_text()


def is_daemon_of(entry, word, program):
    """Some run by another's loader, and one of a supervisor's child has a child of its own."""
    try:
        parent = pathlib.Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1]
        return word not in words_of(entry) and f"{program}\0" in words_of(entry) and word in words_of(parent)
    except OSError:
        return False


def ends_with_its_daemon(runner, options, program, line):
    process, daemons = sleeping(runner, options, program)
    for daemon in daemons:
        os.kill(int(daemon), signal.SIGKILL)
    errors = process.stderr.read().decode()
    same(process.wait(LIMIT_SECONDS), 125, "the code")
    contains(errors, line, "the line")
    same(errors.count("\n"), 1, f"lines of {errors!r:.500}")


@pytest.mark.kvm
def test_daemon_that_ends(runner):
    ends_with_its_daemon(runner, [], "virtiofsd", "vpmu exec: virtiofsd for /")


def test_nothing_is_left(runner):
    """Of a vpmu that is killed, no daemon stays."""
    process, daemons = sleeping(runner)
    process.kill()
    process.wait()
    begin = time.monotonic()
    while time.monotonic() - begin < 30 and any(os.path.exists(f"/proc/{entry}") for entry in daemons):
        time.sleep(0.1)
    same([entry for entry in daemons if os.path.exists(f"/proc/{entry}")], [], "daemons that are left")


def test_kernel_that_panics(runner):
    done = runner.run("true", options=["--append", "rdinit=/no-init root=/dev/none"])
    same((done.returncode, done.stdout), (125, b""), "code and output")
    contains(done.stderr, b"vpmu exec: the guest's kernel panicked", "the line")
    contains(done.stderr, b"  | ", "what the kernel said last")
    contains(done.stderr, b"Kernel panic", "what the kernel said last")


def test_kernel_without_modules(runner):
    # Debian's has virtio in modules only, and a copy of its file alone has none.
    with tempfile.TemporaryDirectory() as directory:
        runner.kernel = shutil.copy(runner.kernel, directory)
        done = runner.run("true")
    same((done.returncode, done.stdout), (125, b""), "code and output")
    contains(done.stderr, b"vpmu exec: the guest's kernel has no CONFIG_VIRTIO", "the line")
    contains(done.stderr, b"--modules", "what to do")


def test_wrong_use(runner):
    for options, words in ((["--rw", "/no/such"], b"/no/such is no directory"), (["--root", "/dev/null"], b"the root /dev/null is neither a directory nor an image"),
                           (["--model", "none"], b"none"), (["--memory", "x"], b"x")):
        done = runner.run("true", options=options)
        same(done.returncode, 125, f"the code with {options}")
        contains(done.stderr, words, f"the line with {options}")
        same(done.stderr.count(b"\n"), 1, "lines")


def test_counts(runner, images):
    """A program with a known count, twice: what the engine runs is the same to the last instruction."""
    counted = images / "programs/counted"
    events = "instructions:u,branches:u,instructions:k"
    seen = [runner.run("perf", "stat", "-x,", "-e", events, str(counted), options=["--source", "exact"]) for _ in range(2)]
    for done in seen:
        same(done.returncode, 0, f"the code, with {done.stderr!r:.300}")
    numbers = [[line.split(",")[0] for line in done.stderr.decode().splitlines() if line.count(",") > 3] for done in seen]
    same(len(numbers[0]), 3, "events")
    if runner.accel == "soft":
        same(numbers[0], numbers[1], "the second run's counts")
    if not all(number.isdigit() and int(number) > 100 for number in numbers[0]):
        raise AssertionError(f"counts {numbers[0]}")


def test_processors(runner):
    ended(runner.run("nproc", options=["--cpus", "2"]), 0, b"2\n")


# Four busy processes are profiled on as many CPUs; then what each CPU was interrupted by, and when the guest thinks it is.
TURNS = """
perf record -B -N -q -a -e instructions:pp -c 50021 -o /tmp/turns -- sh -c 'for n in 1 2 3 4; do head -c 40000 /dev/zero | sha256sum > /dev/null & done; wait'
sha256sum < /tmp/turns
cat /proc/interrupts /proc/uptime
dmesg | grep -iE 'unstable|warp|stall|call trace' || true
"""


def test_turns(runner):
    """Without KVM CPUs take turns: a profile of all of them is the same each time, to the last byte."""
    if runner.accel == "kvm":
        pytest.skip("CPUs run at the same time on KVM")
    with tempfile.TemporaryDirectory() as directory:
        counters = pathlib.Path(directory) / "counters"
        options = ["--cpus", "4", "--memory", "512M", "--schedule", "40000:1", "--stats", str(counters)]
        first, again = (runner.run("sh", "-c", TURNS, options=options) for _ in range(2))
        vcpus = json.loads(counters.read_text())["vcpus"]
    for done in first, again:
        same(done.returncode, 0, f"the code, with {done.stderr!r:.300}")
        same(done.stderr, b"", "messages")
    same(again.stdout, first.stdout, "the second run")
    records = [vcpu["pmu.pebs.records"] for vcpu in vcpus]
    if len(records) != 4 or min(records) < 20:
        raise AssertionError(f"records of each CPU: {records}")
    for word in (b"unstable", b"warp", b"stall", b"Call Trace"):
        if word in first.stdout:
            raise AssertionError(f"the kernel's log: {first.stdout.decode()}")


# Loads of lines that another CPU has changed, at the thread's own level.
HITM = "cpu/event=0xd2,umask=0x04/u"


def test_shared_lines(runner, images):
    """Without KVM the models of several CPUs' caches are coherent: two threads that store to one line take it from each other."""
    if runner.accel == "kvm":
        pytest.skip("no model of caches on KVM")
    program = images / "programs/neighbours"
    script = "; ".join(f"perf stat -x, -e {HITM} {program} {where} 100000 2>&1 | cut -d, -f1" for where in ("near", "far"))
    done = runner.run("sh", "-c", script, options=["--cpus", "2", "--model", "skylake", "--schedule", "5000", "--source", "exact"])
    same(done.returncode, 0, f"the code, with {done.stderr!r:.300}")
    near, far = map(int, done.stdout.split())
    # 100,000 rounds of four instructions in turns of 5000: each turn begins with a line that the other has changed.
    if near < 100 or far * 5 > near:
        raise AssertionError(f"loads of changed lines: {near} near, {far} far")


def test_false_sharing(runner, images):
    """With the pipeline's time turns are short where CPUs share lines: perf c2c finds the line, and the threads' counts say so, by default."""
    if runner.accel == "kvm":
        pytest.skip("no model of caches on KVM")
    program = images / "programs/neighbours"
    script = "; ".join(f"perf stat -x, -e {HITM} {program} {where} 100000 2>&1 | cut -d, -f1" for where in ("near", "far"))
    script += f"; perf c2c record -q -o /tmp/data -- -c 499 {program} near 1000000 2>/dev/null"
    script += "; perf c2c report -i /tmp/data --stats 2>/dev/null | sed -n 's/ *Load Local HITM *: *//p'"
    done = runner.run("sh", "-c", script, options=["--cpus", "2", "--model", "skylake", "--time", "pipeline"])
    same(done.returncode, 0, f"the code, with {done.stderr!r:.300}")
    near, far, found = map(int, done.stdout.split())
    if near < 1000 or far * 20 > near or found < 3:
        raise AssertionError(f"loads of changed lines: {near} near, {far} far; perf c2c found {found}")


def flags_in(runner, model):
    done = runner.run("grep", "-m1", "^flags", "/proc/cpuinfo", options=["--model", model])
    same(done.returncode, 0, f"the code, with {done.stderr!r:.300}")
    return set(done.stdout.decode().split(":")[1].split())


def features_of(model):
    """What `vpmu models -v` says of a model: its features, and those that no guest without KVM has on this host."""
    lines = subprocess.run([str(PROGRAM), "models", "-v"], capture_output=True, text=True, check=True).stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(model + " "))
    named = {}
    for line in lines[at + 1:]:
        name, _, names = line.strip().partition(": ")
        if not line.startswith(" "):
            break
        named[name] = set(names.split())
    return named["features"], named["not with --accel soft"] | named.get("nor on this host", set())


def test_features(runner):
    """A program for x86-64-v3 runs on a Haswell as it does here, and on an Ivy Bridge it is stopped at its first such instruction."""
    if runner.accel == "kvm":
        pytest.skip("KVM hides no instruction that the host has")
    # Linux names some only if it uses them, and "ht" is not a feature of a package with one processor.
    unnamed = {"zero_fcs_fds", "invpcid", "smap", "ht"}
    for model in ("ivybridge", "haswell"):
        has, lost = features_of(model)
        seen = flags_in(runner, model)
        if len(has) < 40 or (has - lost - unnamed) - seen or lost & seen:
            raise AssertionError(f"flags of {model}: lacks {sorted(has - lost - unnamed - seen)}, has {sorted(lost & seen)}")
    if {"avx2", "fma", "bmi2"} & features_of("haswell")[1]:
        return
    with tempfile.TemporaryDirectory() as directory:
        program = pathlib.Path(directory) / "vectors"
        subprocess.run(["gcc", "-O2", "-march=x86-64-v3", str(pathlib.Path(__file__).with_name("vectors.c")), "-o", str(program)], check=True)
        here = subprocess.run([str(program)], capture_output=True, check=True).stdout
        same(here.count(b"4 signals"), 2, "processes")
        ended(runner.run(str(program), options=["--model", "haswell"]), 0, here)
        for model in ("ivybridge", "skylake"):
            done = runner.run(str(program), options=["--model", model])
            same((done.returncode, done.stdout), (0, here) if model == "skylake" else (128 + signal.SIGILL, b""), f"code and output on {model}")


def test_floating_point_signals(runner):
    """Exceptions that a program has unmasked, by SSE and x87, are signals as they are here."""
    with tempfile.TemporaryDirectory() as directory:
        program = pathlib.Path(directory) / "traps"
        subprocess.run(["gcc", "-O1", str(pathlib.Path(__file__).with_name("traps.c")), "-o", str(program), "-lm"], check=True)
        here = subprocess.run([str(program)], capture_output=True, check=True).stdout
        least = 20  # that of each exception, in each unit, when it alone is unmasked, with each way to go on
        if here.count(b"1 signals, 80") < least:
            raise AssertionError(f"here it has {here.count(b'1 signals, 80')} signals: {here!r:.300}")
        ended(runner.run(str(program)), 0, here)


def test_hot_code_in_two_pages(runner):
    """A page of it goes and comes back: by itself, and while perf counts each instruction."""
    with tempfile.TemporaryDirectory() as directory:
        program = pathlib.Path(directory) / "hot_code"
        subprocess.run(["gcc", "-O1", "-static", str(pathlib.Path(__file__).with_name("hot_code.c")), "-o", str(program)], check=True)
        for what, says in (("fork", b"child 2010\nparent 2010\n"), ("unmap", b"unmapped 2050\n")):
            ended(runner.run(program, what), 0, says)
            counting = ("perf", "stat", "-x,", "-e", "instructions:u", program, what)
            done = runner.run(*counting, options=["--model", "haswell", "--source", "exact"])
            same((done.returncode, done.stdout), (0, says), f"code and output of {what} while perf counts, with {done.stderr!r:.300}")
            if int(done.stderr.split(b",")[0]) < 2 * 2000:
                raise AssertionError(f"counted {done.stderr!r:.300}")


def test_programs_of_32_bits(runner):
    """One whose every kind of system call, segment and far call is there; counted exactly, and sampled at its own instructions."""
    source = pathlib.Path(__file__).with_name("narrow.S")
    with tempfile.TemporaryDirectory() as directory:
        code, program = pathlib.Path(directory) / "narrow.o", pathlib.Path(directory) / "narrow"
        subprocess.run(["as", "--32", "-o", code, source], check=True)
        subprocess.run(["ld", "-m", "elf_i386", "-o", program, code], check=True)
        says = "".join(f"{what:16}" for what in ("system calls", "segments", "floating point", "far calls"))[:-1].encode() + b"\n"
        for model in ("nehalem", "skylake"):
            ended(runner.run(program, options=["--model", model]), 7, says)
        counts = []
        for arguments in ([], ["x"]):
            done = runner.run("perf", "stat", "-x,", "-e", "instructions:u", program, *arguments, options=["--model", "haswell"])
            counts.append(int(next(line for line in done.stderr.decode().splitlines() if ",instructions:u" in line).split(",")[0]))
        same(counts[1] - counts[0], 1 + 4 * 100000 + 3, "instructions of the loop, and of an argument more")
        symbols = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout.split()
        loop = int(symbols[symbols.index("loop") - 2], 16)
        record = "perf record -q -e instructions:upp -c 1009 -o /tmp/data -- $0 x > /dev/null; perf script -F ip -i /tmp/data"
        seen = [int(word, 16) for word in runner.run("sh", "-c", record, program, options=["--model", "haswell"]).stdout.decode().split()]
        # push, pop, dec, jnz
        at_home = [at for at in seen if at - loop in (0, 1, 2, 3)]
        if len(seen) < 380 or len(at_home) < 0.95 * len(seen):
            raise AssertionError(f"{len(seen)} samples, of which {len(at_home)} are of the loop")


@pytest.mark.always
def test_every_nmi_is_claimed(runner):
    """By two events with short periods. Sandy Bridge and Nehalem unmask LVTPC before they stop the counters, so that a second overflow can bring a
    second NMI for what the first has served; Linux expects one behind each NMI that served two. With this setting any other one ends the guest."""
    command = ("echo 1 >/proc/sys/kernel/panic_on_unrecovered_nmi; perf record -q -e instructions -e branches -c $0 -o /tmp/data true; awk '$1 == \"PMI:\" { print $2 }' "
               "/proc/interrupts")
    period, least = ("1009", 1000) if runner.accel == "soft" else ("20011", 20)  # on KVM in the bed an NMI takes milliseconds
    for model in ("nehalem", "sandybridge", "haswell"):
        done = runner.run("sh", "-c", command, period, options=["--model", model])
        same((done.returncode, done.stderr), (0, b""), f"code and errors on {model}")
        if int(done.stdout) < least:
            raise AssertionError(f"{int(done.stdout)} PMIs on {model}, too few to tell")


@pytest.mark.kvm
def test_throttled_precise_event(runner):
    """Linux stops it in the handler, after PEBS has reloaded its counter, and reads the counter when it takes the event out."""
    record = "perf record -q -e r81d0:pp -c 1009 -o /tmp/data true; perf script -D -i /tmp/data | grep -c RECORD_THROTTLE"
    done = runner.run("sh", "-c", f"sysctl -qw kernel.perf_event_max_sample_rate=10000; {record}", options=["--model", "sandybridge"])
    same((done.returncode, done.stderr), (0, b""), "code and errors")
    if int(done.stdout) < 1:
        raise AssertionError("the event was never throttled")


def test_more_modules(runner):
    ended(runner.run("sh", "-c", "ls -d /sys/module/dummy; ls /sys/class/net", options=["--add-module", "dummy"]), 0, b"/sys/module/dummy\ndummy0\nlo\n")
    done = runner.run("true", options=["--add-module", "no-such"])
    same((done.returncode, done.stdout), (125, b""), "code and output")
    contains(done.stderr, b"vpmu exec: no module no_such in ", "the line")


class Files:
    """Images in a directory of the check's own."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)

    def raw(self, name, content, size=MIB):
        path = self.directory / name
        path.write_bytes(content.ljust(size, b"\0"))
        return path

    def qcow2(self, name, clusters=16):
        """Empty. A cluster for each of: header, table of reference counts' blocks, one such block, table of the data's clusters."""
        cluster = 1 << 16
        header = struct.pack(">4sIQIIQIIQQIIQ", b"QFI\xfb", 2, 0, 0, 16, clusters * cluster, 0, 1, 3 * cluster, cluster, 1, 0, 0)
        counts = struct.pack(">Q", 2 * cluster).ljust(cluster, b"\0") + struct.pack(">4H", 1, 1, 1, 1).ljust(cluster, b"\0")
        path = self.directory / name
        path.write_bytes(header.ljust(cluster, b"\0") + counts + bytes(cluster))
        return path

    def ext4(self, name):
        """A small root, of busybox."""
        tree = self.directory / "tree"
        for directory in ("bin", "etc", "tmp"):
            (tree / directory).mkdir(parents=True, exist_ok=True)
        shutil.copy(CACHE / "busybox/bin/busybox", tree / "bin/busybox")
        for link in ("sh", "cat", "ls", "touch"):
            (tree / "bin" / link).unlink(missing_ok=True)
            (tree / "bin" / link).symlink_to("busybox")
        (tree / "etc/name").write_text("of the image\n")
        path = self.directory / name
        subprocess.run(["mkfs.ext4", "-q", "-F", "-d", tree, path, "16M"], stdout=subprocess.DEVNULL, env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}, check=True)
        return path

    def with_partitions(self, name, *contents):
        """Of a disk with a master boot record."""
        image, table, sector = bytearray(MIB), b"", 512
        for content in contents:
            table += struct.pack("<B3sB3sII", 0, b"", 0x83, b"", len(image) // sector, len(content) // sector)
            image += content
        image[446:510] = table.ljust(64, b"\0")
        image[510:512] = b"\x55\xaa"
        path = self.directory / name
        path.write_bytes(image)
        return path


@contextlib.contextmanager
def files():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        yield Files(directory)


def test_disks(runner):
    """What is written to them is in their images, and to one that is for reading alone nothing can be."""
    with files() as made:
        raw, fixed, sparse = made.raw("a,b.img", b"host"), made.raw("fixed.img", b"fixed"), made.qcow2("c.qcow2")
        options = ["--disk", str(raw), "--disk", f"{fixed},ro", "--disk", str(sparse)]
        command = "head -c 4 /dev/vda; head -c 5 /dev/vdb; printf guest | dd of=/dev/vda conv=notrunc status=none; " \
            "(printf x >/dev/vdb) 2>/dev/null; echo $?; printf deep | dd of=/dev/vdc bs=1k seek=1000 status=none"
        ended(runner.run("sh", "-c", command, options=options), 0, b"hostfixed1\n")
        same((raw.read_bytes()[:6], raw.stat().st_size), (b"guest\0", MIB), "the raw image")
        same(fixed.read_bytes()[:6], b"fixed\0", "the image that is read only")
        ended(runner.run("dd", "if=/dev/vda", "bs=1k", "skip=1000", "count=1", "status=none", options=["--disk", f"{sparse},ro"]), 0,
              b"deep".ljust(1024, b"\0"))


def test_disk_that_ends(runner):
    with files() as made:
        ends_with_its_daemon(runner, ["--disk", str(made.raw("a.img", b""))], "qemu-storage-daemon", "vpmu exec: qemu-storage-daemon for ")


def test_wrong_disks(runner):
    """Each ends in one line, before a guest starts."""
    with files() as made, open(made.raw("used.img", b""), "rb") as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        like_qcow2, no_qcow2 = made.raw("like.img", b"QFI\xfb"), made.raw("not.qcow2", b"")
        fifo, silent = made.directory / "fifo", made.directory / "silent"
        os.mkfifo(fifo)
        with socket.socket(socket.AF_UNIX) as closed:
            closed.bind(str(silent))
        daemon = {"VPMU_STORAGE_DAEMON": "/bin/true"}
        for options, words, more in (
            (["--disk", "/no/such"], "cannot use /no/such: No such file or directory", {}),
            (["--disk", "/tmp"], "/tmp is not a regular file; name a disk's image", {}),
            (["--disk", str(fifo)], "fifo is not a regular file", {}),
            (["--disk", used.name], "is in use as another machine's disk", {}),
            (["--disk", f"{used.name},format=vmdk"], 'unknown disk format "vmdk"', {}),
            (["--disk", str(like_qcow2)], "add ,format=qcow2", {}),
            (["--disk", str(no_qcow2)], "Image is not in qcow2 format", {}),
            (["--disk", str(no_qcow2), "--root", f"{like_qcow2},partition=0"], '"0" is not a partition', {}),
            (["--disk", f"{no_qcow2},ro,format=raw"] * 27, "the guest would have 27 disks; give at most 26", {}),
            (["--disk", f"{like_qcow2},format=raw"], "the daemon has closed its connection", daemon),
            (["--disk", f"{like_qcow2},format=raw"], "/no/such is not a program that can be started; install it", {"VPMU_STORAGE_DAEMON": "/no/such"}),
            (["--disk-socket", str(silent)], "cannot connect: Connection refused; start the daemon first", {}),
            (["--root-socket", "/no/such"], "cannot connect: No such file or directory", {}),
            (["--root-socket", "/no/such", "--root", "/tmp"], "--root and --root-socket both name the guest's root", {}),
            (["--net-socket", "/no/such"], "cannot connect: No such file or directory", {}),
            (["--net"], "/bin/true has no vhost-user", {"VPMU_PASST": "/bin/true"}),
            (["--net"], "/no/such is not a program that can be started; install passt", {"VPMU_PASST": "/no/such"}),
        ):
            done = subprocess.run(runner.words(options, ["true"]), env=runner.environment | more, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=LIMIT_SECONDS, check=False)
            same((done.returncode, done.stdout, done.stderr.count("\n")), (125, "", 1), f"with {options[:3]}: code, output, lines of {done.stderr!r:.300}")
            contains(done.stderr, words, f"the line with {options[:3]}")


def test_root_from_an_image(runner):
    """All of a disk, or the first partition that will do; what is written is lost."""
    command = ("sh", "-c", "pwd; cat /etc/name; touch /file && ls -d /file /bin; ls /dev/vd*")
    with files() as made:
        whole = made.ext4("whole")
        before = hashlib.sha256(whole.read_bytes()).digest()
        ended(runner.run(*command, options=["--root", str(whole)]), 0, b"/\nof the image\n/bin\n/file\n/dev/vda\n")
        same(hashlib.sha256(whole.read_bytes()).digest(), before, "the image")
        parts = made.with_partitions("parts", b"none".ljust(MIB, b"\0"), whole.read_bytes())
        other = made.raw("other", b"")
        out = b"/\nof the image\n/bin\n/file\n/dev/vda\n/dev/vdb\n/dev/vdb1\n/dev/vdb2\n"
        ended(runner.run(*command, options=["--root", str(parts), "--disk", str(other)]), 0, out)
        done = runner.run(*command, options=["--root", f"{parts},partition=1"])
        ended(done, 125, b"", b"vpmu exec: mounting the root, /dev/vda1: Invalid argument; name an ext4 by ,partition=N\n")
        done = runner.run(*command, options=["--root", str(other)])
        ended(done, 125, b"", b"vpmu exec: there is no ext4 on the root's disk, nor on a partition of it; give the image of one with --root\n")


@contextlib.contextmanager
def serving(words, path, environment):
    """A daemon of the check's own, which listens at a path."""
    with subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            begin = time.monotonic()
            while not path.exists():
                if process.poll() is not None or time.monotonic() - begin > 30:
                    raise AssertionError(f"{words[0]} does not listen")
                time.sleep(0.05)
            yield
        finally:
            process.terminate()


def test_daemons_of_ones_own(runner):
    with files() as made:
        root, disk = made.directory / "root-socket", made.directory / "disk-socket"
        image = made.raw("image", b"mine")
        virtiofsd = runner.environment.get("VPMU_VIRTIOFSD", "/usr/libexec/virtiofsd")
        is_of_qemu = b"FUSE" in subprocess.run([virtiofsd, "--version"], env=runner.environment, stdout=subprocess.PIPE, check=True).stdout
        share = ["-o", "source=/,sandbox=chroot"] if is_of_qemu else ["--shared-dir=/", "--sandbox=chroot", "--no-announce-submounts"]
        storage = [runner.environment.get("VPMU_STORAGE_DAEMON", "qemu-storage-daemon"), "--blockdev", f"driver=file,node-name=disk,filename={image}", "--export",
                   f"type=vhost-user-blk,id=export,node-name=disk,writable=on,addr.type=unix,addr.path={disk}"]
        with serving([virtiofsd, f"--socket-path={root}", *share], root, runner.environment), serving(storage, disk, runner.environment):
            done = runner.run("sh", "-c", "pwd; head -c 4 /dev/vda; printf ours >/dev/vda", options=["--root-socket", str(root), "--disk-socket", str(disk)])
        ended(done, 0, b"/\nmine")
        same(image.read_bytes()[:4], b"ours", "the image")


@contextlib.contextmanager
def web_server():
    """Of one page, at the loopback of this host; gives its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()


PAGE = bytes(range(256)) * 4096  # more than the rings hold


@pytest.mark.full
@WITH_A_NETWORK
def test_network(runner):
    """A page of a server on this host's loopback."""
    with web_server() as port:
        done = runner.run("sh", "-c", f"cat /etc/resolv.conf; busybox wget -q -O - http://10.0.2.2:{port}/ | sha256sum", options=["--net"])
    ended(done, 0, f"nameserver 10.0.2.3\n{hashlib.sha256(PAGE).hexdigest()}  -\n".encode())


@pytest.mark.kvm
def test_booted_already(runner):
    """The second run goes on with the guest that the first one kept, and so does the third; a run counts as the first did. On KVM it has the time of this
    machine, and its own random numbers, though its CPU has none: without KVM, exec_cache_test.py sees that all is the same."""
    look = "date +%s.%N; head -c 32 /dev/urandom | sha256sum; perf stat -x, -e instructions:u -o /dev/stdout sha256sum /bin/true"
    numbers, counts = [], []
    with tempfile.TemporaryDirectory(dir="/var/tmp") as home:
        runner.environment["XDG_CACHE_HOME"] = home
        for booted in (True, False, False):
            begin = time.time()
            done = runner.run("sh", "-c", look, options=["--verbose", "--model", "nehalem"])
            same((done.returncode, WENT_ON in done.stderr), (0, not booted), f"code, and whether it went on, with {done.stderr!r:.900}")
            clock, number, *counted = done.stdout.decode().splitlines()
            if runner.accel == "kvm" and not booted and not begin <= float(clock) <= time.time():
                raise AssertionError(f"the time of day is {clock}; the run began at {begin} and ended at {time.time()}")
            numbers.append(number)
            counts.append(int(next(line for line in counted if ",instructions" in line).split(",")[0]))
            time.sleep(2)
    same(len(set(numbers)), 3 if runner.accel == "kvm" else 1, "random numbers that differ")
    if not 100_000 < min(counts) <= max(counts) < min(counts) * 1.001:  # a program's stack begins at random
        raise AssertionError(f"instructions: {counts}")


@pytest.mark.full
@WITH_A_NETWORK
def test_network_of_ones_own(runner):
    with files() as made, web_server() as port:
        path = made.directory / "net-socket"
        os.chmod(made.directory, 0o777)  # passt makes it as nobody
        words = [runner.environment.get("VPMU_PASST", "passt"), "--vhost-user", "--foreground", "--ipv4-only", "--socket", str(path), "--address", "10.0.2.15",
                 "--netmask", "24", "--gateway", "10.0.2.2", "--map-host-loopback", "10.0.2.2", "--dns-forward", "10.0.2.3"]
        with serving(words, path, runner.environment):
            done = runner.run("busybox", "wget", "-q", "-O", "-", f"http://10.0.2.2:{port}/", options=["--net-socket", str(path)])
    same((done.returncode, done.stdout == PAGE, done.stderr), (0, True, b""), "code, the page, errors")


@pytest.mark.full
@WITH_A_NETWORK
def test_network_that_ends(runner):
    ends_with_its_daemon(runner, ["--net"], "passt", "vpmu exec: passt: ")
