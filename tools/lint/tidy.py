#!/usr/bin/env python3
"""Runs clang-tidy 19 with .clang-tidy; build/dev has to be configured and built (generated headers).

    tools/lint/tidy.py [--latest N | FILE...] [--jobs N]

All C++ files, the N that changed last (not committed ones first; commits of .git-blame-ignore-revs do not count), or those named. A line "ok" or "FAIL" for each.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from source_tree import required

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/dev"
# The build uses g++, whose precompiled headers and some flags clang does not accept.
NOT_OF_CLANG = [f"--extra-arg=-Wno-{what}" for what in ("ignored-gch", "unknown-warning-option", "ignored-optimization-argument", "unused-command-line-argument")]
FINDING = re.compile(r"^\S+:\d+:\d+: (?:warning|error): .*\[[^\]]+\]$", re.M)
# A finding in a library's header with a note in our code is reported, too. The analyzer's findings may be our fault.
OF_LIBRARIES = re.compile(rf"^(?!{re.escape(str(ROOT))}/)/\S+: warning: .*\[(?!clang-analyzer)[^\]]+\]$")


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def in_order_of_change():
    """The tracked C++ files, those that changed last first."""
    formatted = {line for line in (ROOT / ".git-blame-ignore-revs").read_text(encoding="ascii").splitlines() if not line.startswith("#")}
    names = dict.fromkeys(git("diff", "--name-only", "HEAD").splitlines())
    commit = None
    for line in git("log", "--format=commit %H", "--name-only").splitlines():
        if line.startswith("commit "):
            commit = line.split()[1]
        elif line and commit not in formatted:
            names.setdefault(line)
    tracked = git("ls-files").splitlines()
    names.update(dict.fromkeys(name for name in tracked if name not in names))
    return [name for name in names if name.endswith(".cpp") and name in set(tracked)]


def compiled():
    """The files that the build compiles for this machine, and with flags that clang has: not those for guests."""
    entries = json.loads((BUILD / "compile_commands.json").read_text(encoding="utf-8"))
    names = {pathlib.Path(entry["file"]).relative_to(ROOT).as_posix() for entry in entries if pathlib.Path(entry["file"]).is_relative_to(ROOT)}
    names -= {"vpmu/exec/bench/kernels.cpp", "vpmu/exec/bench/vector_kernels.cpp"}
    return {name for name in names if not name.startswith(("build/", "guest-tests/")) or name.startswith("guest-tests/runner/")}


def check(tidy, name):
    said = subprocess.run([tidy, "-p", BUILD, "--quiet", *NOT_OF_CLANG, name], cwd=ROOT, capture_output=True, text=True, check=False)
    findings = sorted(line for line in set(FINDING.findall(said.stdout)) if not OF_LIBRARIES.match(line))
    if said.returncode != 0 and not findings:
        findings = [f"clang-tidy ended with code {said.returncode}: {said.stderr.strip()[-400:]}"]
    return name, findings


def main():
    parser = argparse.ArgumentParser(prog="tools/lint/tidy.py", description=__doc__.splitlines()[0])
    parser.add_argument("--latest", type=int, metavar="N", help="the N files that changed last")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="files at a time (the number of cores)")
    parser.add_argument("files", nargs="*", metavar="FILE", help="these")
    options = parser.parse_args()
    if not (BUILD / "compile_commands.json").exists():
        sys.exit("tidy: no build/dev/compile_commands.json; run: cmake --preset dev && cmake --build --preset dev")
    there = compiled()
    names = options.files or [name for name in in_order_of_change() if name in there][:options.latest]
    tidy, failed, seen = required("clang-tidy-19"), 0, set()
    with ThreadPoolExecutor(options.jobs) as pool:
        for name, findings in pool.map(lambda name: check(tidy, name), names):
            print("FAIL" if findings else "ok  ", name, flush=True)
            for finding in findings:
                if finding not in seen:
                    print(f"    {finding.removeprefix(f'{ROOT}/')}", flush=True)
            seen.update(findings)
            failed += bool(findings)
    print(f"{len(names) - failed} passed, {failed} failed")
    return failed != 0 or not names


if __name__ == "__main__":
    sys.exit(main())
