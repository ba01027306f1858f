#!/usr/bin/env python3
"""Checks that C++ code is formatted as .clang-format says, by clang-format 19: other versions format differently.

    tools/dev/lint/format.py [ROOT]
"""
import re
import subprocess

from source_tree import files, finish, required, root_from_arguments

AT_ONCE = 50  # files: the length of a command line is limited


def main():
    root = root_from_arguments()
    formatter = required("clang-format-19")
    sources = [path.relative_to(root).as_posix() for path in files(root, ".hpp", ".cpp", ".c")]
    findings = set()
    for first in range(0, len(sources), AT_ONCE):
        said = subprocess.run([formatter, "--dry-run", *sources[first:first + AT_ONCE]], cwd=root, capture_output=True, text=True, check=True)
        findings |= set(re.findall(r"^(\S+):\d+:\d+: warning: code should be clang-formatted", said.stderr, re.M))
    finish("format", [f"{name}: not as clang-format-19 would write it" for name in sorted(findings)], len(sources), "Run: clang-format-19 -i FILE")


if __name__ == "__main__":
    main()
