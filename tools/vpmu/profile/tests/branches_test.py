"""vpmu profile --branches: programs laid out by BOLT and clang, and the kernel's branches, without KVM"""

import json
import pathlib
import subprocess

import pytest

import fetched as files
from checks import contains, same
from paths import PROGRAM

PACKAGES = ("autofdo", "bolt-19", "clang-19", "llvm-19")
pytestmark = [pytest.mark.seconds(40)]
HERE = pathlib.Path(__file__).resolve().parent
TAKEN, CYCLES = "br_inst_retired.near_taken:u", "cycles:u"


class Bench:
    def __init__(self, kernel, directory):
        self.kernel, self.directory = kernel, directory
        self.expected = None

    def build(self, name, *options, compiler="gcc"):
        self.tool(compiler, "-O2", *options, HERE / "laid_out.c", "-o", name)

    def tool(self, *command):
        done = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, check=False)
        same(done.returncode, 0, f"the exit code of {command[0]} ({done.stderr:.500})")
        return done

    def vpmu(self, command, *arguments, code=0, model="haswell"):
        done = subprocess.run([PROGRAM, command, "--accel", "soft", "--kernel", self.kernel, "--model", model, *arguments], env=files.environment(), cwd=self.directory, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=900, check=False)
        same(done.returncode, code, f"the exit code ({done.stderr:.500})")
        return done

    def counts(self, program):
        """Taken branches and cycles; the program must say what it has always said."""
        self.vpmu("stat", "--quiet", "--time", "pipeline", "-e", f"{TAKEN},{CYCLES}", "--json", "counts.json", "-o", "table", "--", "sh", "-c", f"./{program} 50000 >said")
        self.vpmu("stat", "--quiet", "--time", "pipeline", "-e", f"{TAKEN},{CYCLES}", "--json", "counts.json", "-o", "table", "--", f"./{program}", "50000")
        return {event["name"]: event["value"] for event in json.loads((self.directory / "counts.json").read_text())["events"]}

    def profile(self, output, *options, command):
        return self.vpmu("profile", "--quiet", "--time", "instructions", "--output", output, *options, "--", *command)


@pytest.fixture
def bench(fetched, tmp_path):
    return Bench(fetched, tmp_path)


def same_files(bench, names):
    for name in names:
        one, other = (bench.directory / each / name for each in ("1", "2"))
        if one.stat().st_size == 0:
            raise AssertionError(f"{name} is empty")
        same(one.read_bytes() == other.read_bytes(), True, f"whether two runs give the same {name}")


@pytest.mark.always
def test_bolt(bench):
    """The program has a tenth fewer taken branches at least, and takes fewer cycles; and two runs give the same profile."""
    bench.build("prog", "-fno-reorder-blocks", "-fno-guess-branch-probability", "-Wl,--emit-relocs")
    for output in ("1", "2"):
        bench.profile(output, "--branches", "user", "--period", "997", command=("./prog",))
    same_files(bench, ("perf.data", "prog.fdata", "prog.prof"))
    bench.tool("llvm-bolt-19", "prog", "-o", "bolted", "-data", "1/prog.fdata", "-reorder-blocks=ext-tsp", "-split-functions", "-split-all-cold")
    before, after = bench.counts("prog"), bench.counts("bolted")
    print(f"BOLT: taken branches {before[TAKEN]} -> {after[TAKEN]}, cycles {before[CYCLES]} -> {after[CYCLES]}")
    if after[TAKEN] > 0.9 * before[TAKEN] or after[CYCLES] > before[CYCLES]:
        raise AssertionError(f"{after} behind BOLT, {before} before")


def test_clang(bench):
    """By llvm-profgen, which reads DWARF 5, and create_llvm_prof 0.19, which reads DWARF 4 and knows no PERF_RECORD_FINISHED_INIT."""
    debug = ("-gdwarf-4", "-fdebug-info-for-profiling", "-fno-omit-frame-pointer")
    bench.build("prog", *debug, compiler="clang-19")
    said = bench.vpmu("profile", "--time", "instructions", "--output", "1", "--branches", "user", "--period", "997", "--", "./prog").stderr
    contains(said, "1/prog.prof is made by", "what vpmu says")
    contains(bench.tool("llvm-profdata-19", "show", "--sample", "1/prog.prof").stdout, "work", "the profile")
    other = bench.tool("create_llvm_prof", "--binary=prog", "--profile=1/perf.data", "--format=text", "--out=other.prof")
    same(other.stderr, "", "what create_llvm_prof says")
    contains((bench.directory / "other.prof").read_bytes(), b"work:", "its profile")
    bench.build("tuned", *debug, "-fprofile-sample-use=1/prog.prof", compiler="clang-19")
    before, after = bench.counts("prog"), bench.counts("tuned")
    print(f"clang: taken branches {before[TAKEN]} -> {after[TAKEN]}, cycles {before[CYCLES]} -> {after[CYCLES]}")
    if after[TAKEN] > before[TAKEN] or after[CYCLES] > before[CYCLES]:
        raise AssertionError(f"{after} with the profile, {before} without")


def test_the_kernels_branches(bench):
    """All lead to the kernel's code, which is at the addresses that its image is linked for, and are the same in each run. LBR_SELECT.CPL_NEQ_0 leaves out what ends in a program, SDM 3B 17.4.2: an exception's
    branch comes from one."""
    load = ("sh", "-c", "for i in 1 2 3 4 5; do cat /proc/self/maps >/dev/null; done; find /usr/include -name '*.h' >/dev/null")
    for output in ("1", "2"):
        bench.profile(output, "--branches", "kernel", command=load)
    same_files(bench, ("perf.data", "kallsyms"))
    script = bench.tool("perf", "script", "-i", "1/perf.data", "--kallsyms", "1/kallsyms", "-F", "brstack").stdout.split()
    branches = [branch.split("/")[:2] for branch in script]
    if len(branches) < 1000:
        raise AssertionError(f"{len(branches)} branches, too few to tell")
    text = [line.split() for line in (bench.directory / "1/kallsyms").read_text().splitlines()]
    same(next(at for at, _, name, *_ in text if name == "_text"), "ffffffff81000000", "where the kernel is")
    from_kernel, to_kernel = (sum(int(branch[end], 16) >= 0xFFFF800000000000 for branch in branches) for end in (0, 1))
    same(to_kernel, len(branches), "branches that lead to the kernel's code")
    if from_kernel < 0.9 * len(branches):
        raise AssertionError(f"{from_kernel} of {len(branches)} branches are the kernel's own")


def test_what_has_no_branches_is_refused(bench):
    contains(bench.vpmu("profile", "--output", "1", "--branches", "user", "--", "true", code=125, model="nehalem").stderr, "nehalem has no precise event of taken branches", "the error")
