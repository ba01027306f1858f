#!/usr/bin/env python3
"""Checks that no source file is long: 400 lines, or 600 with a comment `// Long because ...` in its first ten lines.

    tools/lint/file_size.py [ROOT]

Files that a script of ours writes say so in their first lines and are exempt.
"""
from source_tree import files, finish, root_from_arguments

LIMIT = 400
LIMIT_WITH_REASON = 600
WRITTEN_BY_SCRIPT = "Written by tools/"
REASON = "Long because"


def main():
    root = root_from_arguments()
    sources = files(root, ".hpp", ".cpp", ".S", ".py")
    findings = []
    for path in sources:
        lines = path.read_text(encoding="utf-8").splitlines()
        head = "\n".join(lines[:10])
        limit = LIMIT_WITH_REASON if REASON in head else LIMIT
        if len(lines) > limit and WRITTEN_BY_SCRIPT not in head:
            findings.append(f"{path.relative_to(root).as_posix()}: {len(lines)} lines, at most {limit}")
    finish("file_size", findings, len(sources), f"Split the file by what it does, or say '{REASON} ...' at its top.")


if __name__ == "__main__":
    main()
