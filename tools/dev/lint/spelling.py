#!/usr/bin/env python3
"""Looks for misspelt words in code and prose, by codespell's list of them.

    tools/dev/lint/spelling.py [ROOT]
"""
import re
import subprocess

from source_tree import files, finish, required, root_from_arguments

KINDS = (".md", ".hpp", ".cpp", ".c", ".S", ".py", ".txt", ".cmake", ".sh", ".yaml")
# Mnemonics, field names, measures and programs that look like misspelt words.
TERMS = "nd,ist,extint,passt,daa,padd,mape,tage"
AT_ONCE = 200  # files: the length of a command line is limited


def main():
    root = root_from_arguments()
    speller = required("codespell")
    texts = [path.relative_to(root).as_posix() for path in files(root, *KINDS)]
    findings = []
    for first in range(0, len(texts), AT_ONCE):
        said = subprocess.run([speller, "--ignore-words-list", TERMS, *texts[first:first + AT_ONCE]], cwd=root, capture_output=True, text=True, check=False)
        findings += re.findall(r"^\S+:\d+: .*$", said.stdout, re.M)
        findings += said.stderr.splitlines()
    finish("spelling", findings, len(texts), "Mend the word, or add it to the terms of tools/dev/lint/spelling.py.")


if __name__ == "__main__":
    main()
