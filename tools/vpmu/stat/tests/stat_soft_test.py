"""vpmu stat, without KVM

With KVM only what is known of a user's instructions is the same each time: those tests run there, too (exec_kvm_test.py).
"""

import json
import os
import pathlib
import signal
import subprocess
import time

import pytest

import fetched as files
from checks import contains, same
from paths import CACHE, LINUX, PROGRAM, ROOT, models

pytestmark = [pytest.mark.sample(6), pytest.mark.seconds(12)]
PROGRAMS = LINUX / "programs"
INCLUDE = ROOT / "tools/vpmu/stat/include"
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

    def stat(self, *options, command=("./prog",), temporary=None, text=""):
        always = ["--accel", self.accel, "--kernel", self.kernel]
        return subprocess.run(
            [PROGRAM, "stat", *always, *options, "--", *command],
            env=files.environment() | ({"TMPDIR": str(temporary)} if temporary else {}),
            cwd=self.directory,
            **({"input": text} if text else {"stdin": subprocess.DEVNULL}),
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


def values_of(done):
    """The counts of a run with `--json -`."""
    same(done.returncode, 0, f"the exit code ({done.stderr:.300})")
    return {event["name"]: event["value"] for event in json.loads(done.stdout)["events"]}


@pytest.mark.sample(4)
@pytest.mark.seconds(4)
@pytest.mark.parametrize("model", models())
def test_known_counts_on_each_model(bench, model):
    """All default events in one run."""
    counts = values_of(bench.stat("--model", model, "--json", "-"))
    same(({name: counts[name] for name in KNOWN}, len(counts)), (KNOWN, 7), "the counts")


class Perf:
    """What a guest's own perf counts of a command, with the same options."""

    EVENTS = {"instructions:u": "instructions:u", "branches:u": "branches:u", "loads:u": "mem_inst_retired.all_loads:u", "stores:u": "mem_inst_retired.all_stores:u"}

    @classmethod
    def values(cls, bench, options, command):
        done = subprocess.run(
            [PROGRAM, "exec", "--accel", "soft", "--kernel", bench.kernel, "--time", "instructions", *options, "--", "perf", "stat", "-x", "\t", "-e", ",".join(cls.EVENTS.values()), *command],
            env=files.environment(), cwd=bench.directory, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=True)
        counts = [line.split("\t") for line in done.stderr.splitlines() if line.count("\t") > 3]
        return {name: int(fields[0]) for name, fields in zip(cls.EVENTS, counts, strict=True)}


@pytest.mark.sample(2)
@pytest.mark.seconds(15)
@pytest.mark.parametrize("cpus", ["1", "2", "4"])
@pytest.mark.parametrize("kernel", ["l2", "l1"])
def test_counts_of_a_family(bench, kernel, cpus):
    """Of forks, threads and programs that a command makes, on whichever CPU: those of perf in the guest, which counts by another way."""
    subprocess.run(["gcc", "-O1", "-nostdlib", "-static", "-fno-stack-protector", "-fcf-protection=none", "-fno-builtin", PROGRAMS / "family.c", "-o", "family"],
                   cwd=bench.directory, check=True)
    bench.kernel = CACHE / kernel / "boot/vmlinuz"
    options = ("--cpus", cpus)
    counts = values_of(bench.stat(*options, "-e", "instructions:u,branches:u,loads:u,stores:u,context-switches,cpu-migrations", "--json", "-", command=("./family",)))
    switches, migrations = counts.pop("context-switches"), counts.pop("cpu-migrations")
    assert counts["instructions:u"] > 1000000, f"the family has done too little: {counts}"
    same(counts, Perf.values(bench, options, ("./family",)), "the counts")
    assert switches > 10 and (migrations > 0) == (cpus != "1"), f"{switches} context switches, {migrations} migrations"


def test_more_events_than_counters(bench):
    """In one run, which reads its input once, and as each alone."""
    names = ("instructions:u", "instructions:k", "cycles:u", "branches:u", "branch-misses:u", "cache-misses:u", "L1-dcache-loads:u", "loads:u", "stores:u",
             "r00c0:u", "r01c2:u", "cpu/event=0xc0,umask=0/u", "uops_issued.any:u", "ref-cycles:u", "offcore_response.demand_data_rd.any_response:u", "context-switches")
    command = ("sh", "-c", "read line; test $line = once")
    done = bench.stat("-e", ",".join(names), "--json", "-", command=command, text="once\n")
    together = values_of(done)
    same(tuple(together), names, "the events")
    assert all(together[name] > 0 for name in names), f"nothing was counted of some: {together}"
    same(together["r00c0:u"], together["instructions:u"], "instructions by their code")
    for name in ("branch-misses:u", "offcore_response.demand_data_rd.any_response:u"):
        alone = values_of(bench.stat("--time", "pipeline", "-e", name, "--json", "-", command=command, text="once\n"))
        same(alone[name], together[name], f"{name} alone")


def test_crash(bench):
    """A command that a signal ends fails, and no comparison with one that ended otherwise is green."""
    command = ("sh", "-c", "test -e input || kill -ABRT $$")
    crashed, went_well = (bench.directory / name for name in ("crashed.json", "well.json"))
    aborted = 128 + signal.SIGABRT
    done = bench.stat("--json", crashed, command=command)
    same((done.returncode, json.loads(crashed.read_text())["exit_code"]), (aborted, aborted), "the exit code, and the document's")
    (bench.directory / "input").touch()
    same(bench.stat("--json", went_well, command=command).returncode, 0, "the exit code of one that goes well")
    same(bench.stat("--compare", crashed, "--limit", "1000", command=command).returncode, ROSE, "the exit code of a comparison with one that crashed")
    (bench.directory / "input").unlink()
    same(bench.stat("--compare", went_well, "--limit", "1000", command=command).returncode, aborted, "the exit code of a comparison of one that crashed")


def test_no_such_program(bench):
    (bench.directory / "text").write_text("no program")
    for command, code, why in (("no-such", 127, "command not found"), ("./no-such", 127, "No such file or directory"), ("./text", 126, "Permission denied")):
        done = bench.stat("-e", "instructions:u", "--json", "-", command=(command,))
        same((done.returncode, done.stdout), (code, ""), f"exit code and counts of {command}")
        contains(done.stderr, why, "the error output")


def test_document_is_not_mixed_with_the_output(bench):
    done = bench.stat("-e", "instructions:u", "--json", "-", command=("sh", "-c", "echo out; echo err >&2"))
    same(sorted(set(done.stderr.splitlines()) & {"out", "err"}), ["err", "out"], "what the command has written")
    assert values_of(done)["instructions:u"] > 0


def test_what_perf_prints(bench):
    """The forms of its output, several -e, groups, patterns, runs and metrics."""
    fields = bench.directory / "fields"
    events = ("-e", "{instructions,branches}:u", "-e", "br_inst_retired.near_r*:u,task-clock", "-M", "IPC")
    done = bench.stat("--time", "pipeline", *events, "-r", "2", "-x", ";", "-o", fields)
    same((done.returncode, done.stderr), (0, ""), "exit code and error output")
    lines = [line.split(";") for line in fields.read_text().splitlines()]
    same([(line[2], line[3]) for line in lines[:-1]],
         [(name, "0.00%") for name in ("instructions:u", "branches:u", "br_inst_retired.near_return:u", "task-clock", "cycles", "instructions")], "the events, and their deviation")
    same([lines[0][0], lines[1][0]], [str(KNOWN["instructions:u"]), str(KNOWN["branches:u"])], "known counts")
    assert int(lines[3][0]) > 100000 and lines[3][1] == "ns", f"the time: {lines[3]}"
    assert 0.1 < float(lines[-1][5]) < 4 and lines[-1][6] == "IPC", f"the metric: {lines[-1]}"
    done = bench.stat("-j", "-e", "instructions:u")
    same((done.returncode, json.loads(done.stderr)["counter-value"]), (0, str(KNOWN["instructions:u"])), "a line of JSON")
    done = bench.stat("-d", "--topdown", "--json", "-")
    same(len(values_of(done)), 7 + 4 + 5, "the events")
    parts = {metric["name"]: metric["value"] for metric in json.loads(done.stdout)["metrics"]}
    assert len(parts) == 4 and abs(sum(parts.values()) - 100) < 0.01 and min(parts.values()) > 0, f"the parts of the slots: {parts}"


def test_what_is_refused(bench):
    """Before a guest boots, by name."""
    for options, code, why in ((("-e", "instruction"), 125, "do you mean instructions?"), (("-e", "cycles,nothing_*"), 125, "is like no name of an event"),
                               (("-M", "GHz"), 125, "has no metric GHz"), (("-I", "100"), 2, "--interval-print: the counts are those of the whole command"),
                               (("-a",), 2, "counts the whole guest"), (("-p", "1"), 2, "a guest has nothing that runs already"),
                               (("--report", "r.md"), 2, "--report requires --compare"), (("-r", "0"), 2, "0 is not a number from 1 to 1000")):
        done = bench.stat("--console", "booted", *options)
        same((done.returncode, (bench.directory / "booted").exists()), (code, False), f"exit code, and whether it booted, with {options} ({done.stderr:.300})")
        contains(done.stderr, why, f"the error output with {options}")


def test_comparison_is_written(bench):
    bench.base()
    bench.use_rounds(120000)
    for name in ("report.md", "report.json"):
        done = bench.stat("--compare", bench.base(), "-e", "instructions:u", "--report", name)
        same(done.returncode, ROSE, f"the exit code ({done.stderr:.300})")
    same((bench.directory / "report.md").read_text().splitlines()[2], "| instructions:u | 500005 | 600005 | **+100000 (+20 %), over the limit of 0 %** |", "the Markdown")
    document = json.loads((bench.directory / "report.json").read_text())
    same((document["rose"], document["events"][0]["now"]), (True, 600005), "the JSON")


# Regions of 1,000 and 2,000 rounds of two instructions; the second has a system call, and is in another one.
REGIONS = """
#include <pthread.h>
#include <unistd.h>
#include MARKS
static void work(long rounds) { __asm__ volatile("1: dec %0; jnz 1b" : "+r"(rounds)); }
static void *other(void *unused) { BEGIN("thread"); work(5000); END("thread"); return unused; }
int main(void) {
  pthread_t thread;
  START;
  for (int i = 0; i < 3; ++i) { BEGIN("short"); work(1000); END("short"); }
  BEGIN("outer");
  work(10000);
  BEGIN("long"); work(2000); getppid(); END("long");
  END("outer");
  pthread_create(&thread, 0, other, 0);
  pthread_join(thread, 0);
  return 0;
}
"""
OURS = ("-DMARKS=<vpmu_regions.h>", "-DBEGIN(x)=vpmu_region_begin(x)", "-DEND(x)=vpmu_region_end()", "-DSTART=")
# The text has to be in memory: nothing else reads it.
CALLGRINDS = ("-DMARKS=<valgrind/callgrind.h>", "-DBEGIN(x)=CALLGRIND_ZERO_STATS; (void)*(const volatile char *)x", "-DEND(x)=CALLGRIND_DUMP_STATS_AT(x)", "-DSTART=CALLGRIND_START_INSTRUMENTATION")


@pytest.mark.parametrize("compiler", ["gcc", "g++"])
def test_regions_by_our_header(bench, compiler):
    regions = regions_of(bench, compiler, OURS)
    same({label: region["times"] for label, region in regions.items()}, {"short": 3, "outer": 1, "long": 1, "thread": 1}, "the regions")
    counts = {label: region["events"]["instructions:u"] for label, region in regions.items()}
    for label, rounds, times in (("thread", 5000, 1), ("short", 1000, 3)):
        around = counts[label] - times * 2 * rounds
        assert 0 < around < 30 * times, f"{around} instructions around {label}"
    same(counts["short"] % 3, 0, "what three equal ones leave")
    assert 2 * 2000 < counts["long"] < 2 * 2000 + 100 and 2 * 12000 < counts["outer"] < 2 * 12000 + 200, f"instructions of those in each other: {counts}"
    assert regions["long"]["events"]["instructions:k"] > 50 > regions["short"]["events"]["instructions:k"], f"of the kernel: {regions}"


def test_regions_by_callgrinds_requests(bench):
    """A harness for Callgrind needs no change."""
    regions = regions_of(bench, "gcc", CALLGRINDS)
    same({label: region["times"] for label, region in regions.items()}, {"short": 3, "outer": 1, "long": 1, "thread": 1}, "the dumps")
    counts = {label: region["events"]["instructions:u"] for label, region in regions.items()}
    assert counts["outer"] < 100, f"instructions since the last dump: {counts}"
    for label, rounds in (("short", 3 * 1000), ("long", 2000), ("thread", 5000)):
        assert 2 * rounds < counts[label] < 2 * rounds + 100, f"instructions of {label}: {counts}"


def regions_of(bench, compiler, marks):
    (bench.directory / "regions.c").write_text(REGIONS)
    subprocess.run([compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", f"-I{INCLUDE}", *marks, "regions.c", "-o", "regions", "-pthread", "-Wl,-z,now"], cwd=bench.directory, check=True)
    subprocess.run(["./regions"], cwd=bench.directory, check=True)
    done = bench.stat("-e", "instructions:u,instructions:k,branches:u", "--json", "-", command=("./regions",))
    values_of(done)
    contains(done.stderr, "  thread\n", "the table")
    return {region["label"]: region for region in json.loads(done.stdout)["regions"]}


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
    documents = [json.loads(done.stdout) for done in seen]
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
        said = [line for line in done.stderr.splitlines() if line.startswith("vpmu stat: the command runs in a guest, ")]
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
