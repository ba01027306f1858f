#!/usr/bin/env python3
"""Checks that mandoc reads each manual page without a warning.

    tools/dev/lint/manual.py DIRECTORY

Looks at every file below the directory that ends in .1. The build writes the program's to build/dev/tools/vpmu/share/man/man1.
"""
import re
import subprocess

from source_tree import files, finish, required, root_from_arguments


def main():
    root = root_from_arguments()
    reader = required("mandoc")
    pages = [path.relative_to(root).as_posix() for path in files(root, ".1")]
    findings = []
    for page in pages:
        said = subprocess.run([reader, "-T", "lint", "-W", "warning", page], cwd=root, capture_output=True, text=True, check=False)
        found = sorted(re.findall(r"^mandoc: (.*)$", said.stdout + said.stderr, re.M))
        findings += found or ([f"{page}: mandoc ended with code {said.returncode}"] if said.returncode else [])
    finish("manual", findings, len(pages), "The pages are made by tools/command_line/manual.cpp; see mandoc(1) for what a message means.")


if __name__ == "__main__":
    main()
