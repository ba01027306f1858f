#!/usr/bin/env python3
"""Shows that C++ files compile by themselves, which a unity build does not: by the compiler's own checks, without code.

    tools/dev/lint/alone.py [--latest N | FILE...] [--jobs N]

All C++ files, the N that changed last, or those named. A line "ok" or "FAIL" for each.
"""
import argparse
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from single_files import ROOT, build_directory, commands, in_order_of_change

# Not the precompiled headers: a file has to include what it uses. Without code there is no output.
PRECOMPILED = re.compile(r" -include \S*cmake_pch\.hxx| -Winvalid-pch| -o \S+| -c(?= )")


def check(name, entry):
    command = shlex.split(PRECOMPILED.sub("", entry["command"])) + ["-fsyntax-only"]
    said = subprocess.run(command, cwd=entry["directory"], capture_output=True, text=True, check=False)
    return name, said.returncode == 0, said.stderr


def main():
    parser = argparse.ArgumentParser(prog="tools/dev/lint/alone.py", description=__doc__.splitlines()[0])
    parser.add_argument("--latest", type=int, metavar="N", help="the N files that changed last")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="files at a time (the number of cores)")
    parser.add_argument("files", nargs="*", metavar="FILE", help="these")
    options = parser.parse_args()
    entries = commands(build_directory())
    names = options.files or [name for name in in_order_of_change() if name in entries][:options.latest]
    if missing := [name for name in names if name not in entries]:
        sys.exit(f"alone: {missing[0]} is not among the files that the build compiles")
    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for name, good, errors in pool.map(lambda name: check(name, entries[name]), names):
            print("ok  " if good else "FAIL", name, flush=True)
            if not good:
                print("\n".join(f"    {line.removeprefix(f'{ROOT}/')}" for line in errors.splitlines()[:20]), flush=True)
            failed += not good
    print(f"{len(names) - failed} passed, {failed} failed")
    return failed != 0 or not names


if __name__ == "__main__":
    sys.exit(main())
