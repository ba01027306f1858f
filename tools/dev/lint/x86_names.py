#!/usr/bin/env python3
"""Looks for definitions of x86's own names: vpmu/x86.hpp and vpmu/msr.hpp have the bits of registers, the
vectors of exceptions and the addresses of MSRs, once.

    tools/dev/lint/x86_names.py [ROOT]
"""
import re

from source_tree import files, finish, root_from_arguments

PLACES = ("vpmu/include/vpmu/x86.hpp", "vpmu/include/vpmu/msr.hpp")
REGISTERS = "rflags|cr0|cr3|cr4|efer|dr6|dr7|xcr0|apic_base|vector|msr"
# `constexpr TYPE NAME = VALUE`, also behind a comma, with a value that names nothing.
DEFINITION = re.compile(rf"(?:\bconstexpr [\w: ]+ |, |^ +)((?:{REGISTERS})_\w+) = ([^,;a-wyzA-Z_]*(?:(?:vpmu::)?bit\(\d+\))?[^,;g-wyz_]*)[,;]", re.M)

NAMESPACE = re.compile(rf"^namespace (?:{REGISTERS}) {{", re.M)


def main():
    root = root_from_arguments()
    sources = files(root, ".hpp", ".cpp")
    findings = []
    for path in sources:
        name = path.relative_to(root).as_posix()
        if name in PLACES:
            continue
        text = path.read_text(encoding="utf-8")
        findings += [f"{name}:{text.count(chr(10), 0, found.start(1)) + 1}: {found[1]} = {found[2]}" for found in DEFINITION.finditer(text)]
        findings += [f"{name}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]}" for found in NAMESPACE.finditer(text)]
    finish("x86_names", findings, len(sources), f"Take the name from {' or '.join(PLACES)}, or put it there.")


if __name__ == "__main__":
    main()
