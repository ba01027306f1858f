"""vpmu stat, without KVM

With KVM only what is known of a user's instructions is the same each time: those tests run there, too (exec_kvm_test.py).
"""

import json
import os
import pathlib
import subprocess
import time

import pytest

import fetched as files
from checks import contains, same
from paths import LINUX, PROGRAM

pytestmark = [pytest.mark.sample(6), pytest.mark.seconds(12)]
PROGRAMS = LINUX / "programs"
# Of 100,000 rounds: counted_loop.inc.
KNOWN = {"instructions:u": 500005, "branches:u": 100001, "loads:u": 100000, "stores:u": 100000}
ROSE = 3


class Bench:
    """A directory in which `prog` is the program that is measured."""

    def __init__(self, accel, kernel, directory):
        self.accel, self.kernel, self.directory = accel, kernel, directory
        self.use_rounds(100000)
        self.made = None

    def use_rounds(self, rounds):
        self.build("prog", (PROGRAMS / "counted.S").read_text().replace("100000", str(rounds)))

    def build(self, name, text):
        source = self.directory / f"{name}.S"
        source.write_text(text)
        subprocess.run(["gcc", "-nostdlib", "-static", f"-I{PROGRAMS}", source, "-o", self.directory / name], check=True)

    def stat(self, *options, command=("./prog",), temporary=None):
        always = ["--accel", self.accel, "--kernel", self.kernel]
        return subprocess.run(
            [PROGRAM, "stat", *always, *options, "--", *command],
            env=files.environment() | ({"TMPDIR": str(temporary)} if temporary else {}),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def base(self):
        """A document of the program, made once."""
        if not self.made:
            self.made = self.directory / "base.json"
            done = self.stat("--json", self.made)
            same(done.returncode, 0, f"the exit code ({done.stderr})")
        return self.made


@pytest.fixture
def bench(accel, fetched, tmp_path):
    return Bench(accel, fetched, tmp_path)


@pytest.mark.always
@pytest.mark.kvm
def test_known_counts(bench):
    counts = {event["name"]: event["value"] for event in json.loads(bench.base().read_text())["events"]}
    same({name: counts.get(name) for name in KNOWN}, KNOWN, "the counts")


# 1,000 rounds; nothing else runs in the process.
OPERATIONS = """
  .globl _start
_start:
  mov $1000, %ecx
1:
  addsd %xmm0, %xmm1
  addsd %xmm0, %xmm2
  mulps %xmm0, %xmm3
  divss %xmm4, %xmm4
  cvtsi2sd %ecx, %xmm5
  ucomisd %xmm5, %xmm5
  dec %ecx
  jnz 1b
  mov $60, %eax
  xor %edi, %edi
  syscall
"""
# Raw codes of scalar double, scalar single, packed single, and of sums: of both scalars, of loads (F1H), of stores (F2H).
OPERATIONS_OF = {
    "skylake": {"r01c7:u": 2000, "r02c7:u": 1000, "r08c7:u": 1000, "r03c7:u": 3000, "r0bc7:u": 4000, "rf1d0:u": 0},
    "broadwell": {"r01c7:u": 2000, "r02c7:u": 1000, "r08c7:u": 1000, "r03c7:u": 3000},
    "sandybridge": {"r8010:u": 2000, "r2010:u": 1000, "r4010:u": 1000, "ra010:u": 3000, "rf1d0:u": 0, "rf2d0:u": 0},
    "nehalem": {"r2010:u": 3000, "r1010:u": 1000, "r8010:u": 2000, "r0410:u": 4000, "r08c7:u": 4000},
}


@pytest.mark.seconds(40)
def test_known_operations(bench):
    """Floating-point operations, interpreted and compiled: conversions and comparisons are none."""
    bench.build("operations", OPERATIONS)
    for model, expected in OPERATIONS_OF.items():
        for more in ((), ("--no-jit",)):
            done = bench.stat("--model", model, *more, "-e", ",".join(expected), "--json", "-", command=("./operations",))
            same(done.returncode, 0, f"the exit code ({done.stderr:.300})")
            same({event["name"]: event["value"] for event in json.loads(done.stdout)["events"]}, expected, f"the counts on {model} with {more}")


# 100,000 multiplications of the one before, three cycles each (248966), and what counts them.
DEPENDENT = """
  .globl _start
_start:
  mov $100000, %ecx
1:
  imul %rax, %rax
  dec %ecx
  jnz 1b
  mov $60, %eax
  xor %edi, %edi
  syscall
"""


@pytest.mark.always
def test_cycles_by_default(bench):
    """Those of a core whose error is known, else an instruction each; the document says whose."""
    bench.build("dependent", DEPENDENT)
    done = bench.stat("-e", "instructions:u,branches:u", "--json", "-", command=("./dependent",))
    same(json.loads(done.stdout)["time"], "instructions", "time where no event needs another")
    for model, options, time_of in (("skylake", (), "pipeline"), ("ivybridge-ep", (), "pipeline"), ("sandybridge", (), "instructions"),
                                    ("skylake", ("--time", "instructions"), "instructions")):
        done = bench.stat("--model", model, *options, "-e", "cycles:u,instructions:u", "--json", "-", command=("./dependent",))
        same(done.returncode, 0, f"the exit code ({done.stderr:.300})")
        document = json.loads(done.stdout)
        counts = {event["name"]: event["value"] for event in document["events"]}
        same((document["time"], counts["instructions:u"]), (time_of, 300004), f"time and instructions on {model} with {options}")
        least, most = (300000, 306000) if time_of == "pipeline" else (300004, 300004)
        assert least <= counts["cycles:u"] <= most, f"cycles are not from {least} to {most} on {model} with {options}: {counts}"


@pytest.mark.always
def test_equal_again(bench):
    done = bench.stat("--json", "-")
    same(done.stdout, bench.base().read_text(), "the document of another run")


def test_reads_of_a_disk(bench):
    """What the daemon behind a disk takes in time does not show, nor in which order it ends what two readers ask for."""
    disk = bench.directory / "disk"
    disk.write_bytes(os.urandom(8 << 20))
    command = ["sh", "-c", "cksum /dev/vda & dd if=/dev/vda bs=1M skip=4 status=none | cksum & wait"]
    seen = [bench.stat("--disk", f"{disk},ro", "-e", "instructions:u,instructions:k,branches:k,loads:k", "--json", "-", command=command) for _ in range(2)]
    for done in seen:
        same(done.returncode, 0, f"the exit code ({done.stderr:.300})")
    documents = [json.loads(done.stdout[done.stdout.index("{") :]) for done in seen]
    same(documents[0]["events"], documents[1]["events"], "the counts of another run")


def test_equal_is_no_rise(bench):
    done = bench.stat("--compare", bench.base(), "-e", "instructions:u,branches:u")
    same(done.returncode, 0, "the exit code")
    contains(done.stderr, "missing", "what is said of the events that were not counted")


def test_rise_is_caught(bench):
    bench.base()
    bench.use_rounds(120000)
    done = bench.stat("--compare", bench.base(), "-e", "instructions:u,stores:u", "--limit", "50", "--limit", "stores:u=1")
    same(done.returncode, ROSE, "the exit code")
    named = [line.split()[0] for line in done.stderr.splitlines() if "over the limit" in line]
    same(named, ["stores:u"], "the events that are said to have risen")


# Each is a third-party program that reads the file `input`: xz in two threads, each with blocks of its own.
STORIES = {
    "xz": ("sh", "-c", "xz -0 -T2 --block-size=32768 -c input >/dev/null"),
    "sqlite3": ("sqlite3", "-separator", " ", ":memory:", "create table t(a int, b text)", ".import input t", "select count(distinct b), sum(a) from t"),
    "python3": ("/usr/bin/python3", "-I", "-c", "import concurrent.futures as f; d = open('input', 'rb').read(); "
                "print(*f.ThreadPoolExecutor(2).map(lambda i: sum(x * x for x in d[i::2]), range(2)))"),
}


@pytest.mark.sample(1)
@pytest.mark.seconds(40)
@pytest.mark.parametrize("program", STORIES)
def test_story(bench, program):
    """The same counts twice, and a rise is caught when there is more to read."""
    command = STORIES[program]
    events = ("-e", "instructions:u,instructions:k,branches:u,loads:u,stores:u")
    content = b"".join(b"%d %x\n" % (number, number * number * number) for number in range(8000))
    (bench.directory / "input").write_bytes(content)
    base = bench.directory / "story.json"
    first = bench.stat(*events, "--json", base, command=command)
    same(first.returncode, 0, f"the exit code ({first.stderr:.300})")
    counts = {event["name"]: event["value"] for event in json.loads(base.read_text())["events"]}
    assert min(counts.get(name, 0) for name in events[1].split(",")) >= 10000, f"too little was counted: {counts}"
    second = bench.directory / "again.json"
    again = bench.stat(*events, "--json", second, "--compare", base, command=command)
    same((again.returncode, again.stdout), (0, first.stdout), f"another run ({again.stderr:.300})")
    same(second.read_text(), base.read_text(), "the counts of another run")
    (bench.directory / "input").write_bytes(content + content[:len(content) // 10])
    more = bench.stat(*events, "--compare", base, "--limit", "0.5", command=command)
    same(more.returncode, ROSE, f"the exit code with more input ({more.stderr:.300})")


def test_exit_code(bench):
    done = bench.stat("-e", "instructions:u", command=("sh", "-c", "echo out; echo err >&2; exit 42"))
    same((done.returncode, done.stdout), (42, "out\n"), "exit code and output")
    contains(done.stderr.splitlines(), "err", "the error output")


def test_other_model(bench):
    done = bench.stat("--model", "haswell", "--compare", bench.base())
    same((done.returncode, len(done.stderr.splitlines())), (125, 1), "exit code and lines")
    contains(done.stderr, "another model: skylake, not haswell", "the error output")


def test_no_document(bench):
    bad = bench.directory / "bad.json"
    bad.write_text('{"format": 1.5}')
    done = bench.stat("--compare", bad)
    same((done.returncode, len(done.stderr.splitlines())), (125, 1), "exit code and lines")


def test_nothing_stays(bench):
    temporary = bench.directory / "temporary"
    temporary.mkdir()
    done = bench.stat("-e", "instructions:u", "--timeout", "1", temporary=temporary, command=("sleep", "100000"))
    same((done.returncode, list(temporary.iterdir())), (124, []), "exit code, and what stays of the results")


def test_tells_how_far_it_is(bench):
    for rounds, options, told in (100000, (), True), (20000, ("--quiet",), False):
        command = ("sh", "-c", f"i=0; while [ $i -lt {rounds} ]; do i=$((i+1)); done")
        done = bench.stat("-e", "instructions:u", *options, command=command)
        said = [line for line in done.stderr.splitlines() if line.startswith("vpmu stat: the command runs in a guest, 1 of 1, ")]
        same((done.returncode, len(said) > 0), (0, told), f"exit code, and whether progress is told with {options} ({done.stderr:.300})")


def test_nothing_runs_on(bench):
    """Of a vpmu that is killed, no guest stays."""
    word = f"100000.{os.getpid()}"
    process = subprocess.Popen(
        [PROGRAM, "stat", "--kernel", bench.kernel, "-e", "instructions:u", "--", "sh", "-c", f"echo ready; exec sleep {word}"],
        env=files.environment(), cwd=bench.directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    same(process.stdout.readline(), b"ready\n", "the first line")
    assert len(processes_with(word)) >= 2, "no guest"
    process.kill()
    process.wait()
    begin = time.monotonic()
    while time.monotonic() - begin < 30 and processes_with(word):
        time.sleep(0.1)
    same(processes_with(word), [], "processes that are left")


def processes_with(word):
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if word in (entry / "cmdline").read_text():
                found.append(entry.name)
        except OSError:
            pass
    return found
