"""what a command's functions count, and how two measurements differ, without KVM"""

import json
import pathlib
import subprocess

import pytest

import fetched as files
from checks import contains, same
from paths import PROGRAM

pytestmark = [pytest.mark.sample(4), pytest.mark.seconds(12)]
ROSE = 3
SOURCE = """
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline)) void spin(unsigned long n) { __asm__ volatile("1: dec %0; jnz 1b" : "+r"(n)); }
__attribute__((noinline)) void calls(void) { for (int i = 0; i < CALLS; i++) getppid(); }
int work(int n);
int main(void) {
  spin(100000);
  calls();
  if (fork() == 0) { spin(50000); _exit(0); }
  wait(0);
  return work(1000);
}
"""
LIBRARY = """
__attribute__((noinline)) static void inner(unsigned long n) { __asm__ volatile("1: dec %0; jnz 1b" : "+r"(n)); }
int work(int n) { inner(n * ROUNDS); return 0; }
"""


class Bench:
    def __init__(self, kernel, directory):
        self.kernel, self.directory = kernel, directory
        self.build_library(10)
        self.build(20)

    def build_library(self, rounds):
        (self.directory / "work.c").write_text(LIBRARY)
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", f"-DROUNDS={rounds}", "work.c", "-o", "libwork.so"], cwd=self.directory, check=True)

    def build(self, calls):
        (self.directory / "prog.c").write_text(SOURCE)
        subprocess.run(["gcc", "-O1", f"-DCALLS={calls}", "prog.c", "-o", "prog", "-L.", "-lwork", "-Wl,-rpath,$ORIGIN"], cwd=self.directory, check=True)

    def run(self, *arguments, code=0):
        done = subprocess.run([PROGRAM, *arguments], env=files.environment(), cwd=self.directory, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900, check=False)
        same(done.returncode, code, f"the exit code of {arguments[0]} ({done.stderr:.400})")
        return done

    def record(self, name, *options, command=("./prog",)):
        self.run("stat", "--accel", "soft", "--kernel", self.kernel, "--quiet", "--record", name, *options, "--", *command)
        return json.loads((self.directory / name).read_text())


@pytest.fixture
def bench(fetched, tmp_path):
    return Bench(fetched, tmp_path)


def counts(document, event):
    return {(pathlib.Path(f["file"]).name, f["function"]): f["counts"][event] for f in document["functions"] if event in f["counts"]}


def events(document):
    return {event["name"]: event["value"] for event in document["events"]}


@pytest.mark.always
def test_functions_count_all_that_there_is(bench):
    """Each instruction is some function's: the sums are the events' counts, of a program, its child, and the kernel."""
    document = bench.record("a.json")
    for event in ("instructions:u", "instructions:k", "branch-misses:u", "cache-misses:u"):
        same(sum(counts(document, event).values()), events(document)[event], f"the sum of {event}")
    user, kernel = counts(document, "instructions:u"), counts(document, "instructions:k")
    same(user["prog", "spin"], 2 * 100000 + 2 * 50000 + 2 * 1, "instructions of spin, in both processes")
    same(user["libwork.so", "inner"], 2 * 10000 + 1, "instructions of a library's function")
    if kernel["[kernel]", "__do_sys_getppid" if ("[kernel]", "__do_sys_getppid") in kernel else "__x64_sys_getppid"] < 20:
        raise AssertionError("the kernel's part of getppid is missing")
    named = sum(n for (_, function), n in kernel.items() if function != "[unknown]")
    if named < 0.99 * events(document)["instructions:k"]:
        raise AssertionError(f"{named} of the kernel's instructions have a function's name")
    read = {pathlib.Path(file["path"]).name: file for file in document["files"]}
    same({"prog", "libwork.so", "libc.so.6", "ld.so.cache"} <= set(read), True, f"files that the command has read: {sorted(read)}")
    same(read["prog"]["bytes"], (bench.directory / "prog").stat().st_size, "the program's size")
    if len(read["prog"]["checksum"]) != 16 or document.get("lost_files", 0) != 0:
        raise AssertionError(f"{read['prog']}, {document.get('lost_files')} lost")


@pytest.mark.parametrize("options", [(), ("--cpus", "2"), ("--time", "pipeline", "-e", "cycles:u,instructions:u,branch-misses:u,L1-dcache-load-misses:u")])
def test_nothing_is_disturbed(bench, options):
    """The counts are those of a run that records nothing."""
    document = bench.record("a.json", *options)
    bench.run("stat", "--accel", "soft", "--kernel", bench.kernel, "--quiet", "--json", "b.json", *options, "--", "./prog")
    same(events(document), events(json.loads((bench.directory / "b.json").read_text())), "the counts")
    for event, count in events(document).items():
        sums = counts(document, event)
        if not sums:
            continue
        # The cycles of what runs where a task goes and another comes are the pipeline's, which has some of both.
        if abs(sum(sums.values()) - count) > (0.01 * count if event.startswith("cycles") else 0):
            raise AssertionError(f"{event}: {sum(sums.values())} by function, {count} in all")
    if options and options[-1].startswith("cycles") and not 100000 < counts(document, "cycles:u")["prog", "spin"] < 400000:
        raise AssertionError(f"cycles of spin: {counts(document, 'cycles:u')['prog', 'spin']}")


def test_which_function_has_changed(bench):
    """A library that somebody else has changed, and a program that calls the kernel more often."""
    bench.record("base.json")
    bench.record("same.json")
    same((bench.directory / "base.json").read_bytes(), (bench.directory / "same.json").read_bytes(), "two records of the same")
    same("by function" in bench.run("compare", "--limit", "0", "base.json", "same.json").stdout, False, "functions where nothing has changed")
    bench.build_library(11)
    bench.build(30)
    bench.record("head.json")
    text = bench.run("compare", "base.json", "head.json").stdout
    contains(text, "/libwork.so is another file than in the base", "the text")
    if text.index("another file") > text.index("instructions:u"):
        raise AssertionError("what was given must be said before what was counted")
    found = json.loads(bench.run("compare", "--limit", "instructions:u=0.1", "--format", "json", "base.json", "head.json", code=ROSE).stdout)
    changed = {(f["event"], f["function"]): f["now"] - f["base"] for f in found["functions"]}
    same(found["functions"][0]["function"], "inner", "the function that changed most")
    same(changed["instructions:u", "inner"], 2 * 1000, "its change")
    same(("instructions:u", "spin") in changed, False, "whether the function that is the same is there")
    same(changed["instructions:k", "entry_SYSCALL_64"] % 10, 0, "the change of a system call's entry, ten times more")
    contains(bench.run("compare", "--format", "markdown", "base.json", "head.json").stdout, "| inner (", "the table")
    contains(bench.run("stat", "--accel", "soft", "--kernel", bench.kernel, "--quiet", "--compare", "base.json", "--record", "again.json", "--", "./prog", code=ROSE).stderr,
             "by function", "what --compare says")


def test_a_program_without_symbols(bench):
    """Where its functions begin, its frames' table says."""
    symbols = subprocess.run(["nm", "prog"], cwd=bench.directory, capture_output=True, text=True, check=True).stdout.split()
    spin = int(symbols[symbols.index("spin") - 2], 16)
    subprocess.run(["strip", "prog"], cwd=bench.directory, check=True)
    user = counts(bench.record("a.json"), "instructions:u")
    same(user["prog", hex(spin)], 2 * 100000 + 2 * 50000 + 2 * 1, "instructions of spin")


def test_a_script(bench):
    """Its interpreter and its own file are read, too."""
    (bench.directory / "script").write_text("#!/bin/sh\n. ./more\n./prog\n./prog\n")
    (bench.directory / "more").write_text("echo more\n")
    (bench.directory / "script").chmod(0o755)
    document = bench.record("a.json", command=("./script",))
    read = {pathlib.Path(file["path"]).name for file in document["files"]}
    same({"script", "more", "dash", "prog"} <= read, True, f"files that the command has read: {sorted(read)}")
    same(counts(document, "instructions:u")["prog", "spin"], 2 * (2 * 100000 + 2 * 50000 + 2 * 1), "instructions of spin")


def test_what_cannot_be_recorded_is_refused(bench):
    done = bench.run("stat", "--accel", "soft", "--record", "a.json", "-e", "page-faults", "--", "./prog", code=125)
    contains(done.stderr, "--record needs counts of the VMM", "the error")
    (bench.directory / "no.json").write_text("{}")
    contains(bench.run("compare", "no.json", "no.json", code=125).stderr, "is not a result of `vpmu stat", "the error")
