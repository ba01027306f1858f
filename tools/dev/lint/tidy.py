#!/usr/bin/env python3
"""Runs clang-tidy 19 with .clang-tidy; build/dev has to be configured.

    tools/dev/lint/tidy.py [--latest N | FILE...] [--jobs N]

All C++ files, the N that changed last (not committed ones first; commits of .git-blame-ignore-revs do not count), or those named. A line "ok" or "FAIL" for each.
"""
import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from single_files import ROOT, build_directory, commands, in_order_of_change
from source_tree import required

# The build uses g++, whose precompiled headers and some flags clang does not accept.
NOT_OF_CLANG = [f"--extra-arg=-Wno-{what}" for what in ("ignored-gch", "unknown-warning-option", "ignored-optimization-argument", "unused-command-line-argument")]
FINDING = re.compile(r"^\S+:\d+:\d+: (?:warning|error): .*\[[^\]]+\]$", re.M)
# A finding in a library's header with a note in our code is reported, too. The analyzer's findings may be our fault.
OF_LIBRARIES = re.compile(rf"^(?!{re.escape(str(ROOT))}/)/\S+: warning: .*\[(?!clang-analyzer)[^\]]+\]$")


def compiled(entries):
    """The files that the build compiles for this machine, and with flags that clang has: not those for guests."""
    names = set(entries) - {"vpmu/exec/bench/kernels.cpp", "vpmu/exec/bench/vector_kernels.cpp"}
    return {name for name in names if not name.startswith("guest-tests/") or name.startswith("guest-tests/runner/")}


def check(tidy, directory, name):
    said = subprocess.run([tidy, "-p", directory, "--quiet", *NOT_OF_CLANG, name], cwd=ROOT, capture_output=True, text=True, check=False)
    findings = sorted(line for line in set(FINDING.findall(said.stdout)) if not OF_LIBRARIES.match(line))
    if said.returncode != 0 and not findings:
        findings = [f"clang-tidy ended with code {said.returncode}: {said.stderr.strip()[-400:]}"]
    return name, findings


def main():
    parser = argparse.ArgumentParser(prog="tools/dev/lint/tidy.py", description=__doc__.splitlines()[0])
    parser.add_argument("--latest", type=int, metavar="N", help="the N files that changed last")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="files at a time (the number of cores)")
    parser.add_argument("files", nargs="*", metavar="FILE", help="these")
    options = parser.parse_args()
    directory = build_directory()
    there = compiled(commands(directory))
    names = options.files or [name for name in in_order_of_change() if name in there][:options.latest]
    tidy, failed, seen = required("clang-tidy-19"), 0, set()
    with ThreadPoolExecutor(options.jobs) as pool:
        for name, findings in pool.map(lambda name: check(tidy, directory, name), names):
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
