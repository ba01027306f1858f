#!/usr/bin/env python3
"""Writes a C++ table of instructions' micro-ops of the lists beside this script. The build runs it.

    tools/dev/timing/make_table.py NAME TABLE.hpp

NAME is a list, or `nehalem` or `ivy_bridge`, which are Sandy Bridge's with corrections. README.md says what the columns mean.
"""
import csv
import fnmatch
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
# What a list differs from.
BASES = {"nehalem": "sandy_bridge", "ivy_bridge": "sandy_bridge", "broadwell": "haswell", "skylake_sp": "skylake"}
MAX_KINDS = 6  # InstructionRow::micro_ops

HEADER = """\
#pragma once
// Written by tools/dev/timing/make_table.py from the lists beside it. Their figures are of LLVM's scheduling models, which are part of the LLVM Project,
// under the Apache License v2.0 with LLVM Exceptions, but for the corrections, each of which names its source.
#include <array>

#include "timing/instruction_rows.hpp"

namespace vpmu::timing {{

// clang-format off
inline constexpr std::array<InstructionRow, {count}> {name}_rows{{{{
{rows}
}}}};
// clang-format on

}}  // namespace vpmu::timing
"""


def read(name):
    rows = read(BASES[name]) if name in BASES else {}
    path = HERE / f"{name}.csv"
    if path.exists():
        with open(path, encoding="utf-8", newline="") as file:
            rows |= {row["form"]: row for row in csv.DictReader(file)}
    with open(HERE / "corrections.csv", encoding="utf-8", newline="") as file:
        for correction in csv.DictReader(file):
            if correction["lists"] == "all" or name in correction["lists"].split(";"):
                correct(rows, correction)
    return rows


def correct(rows, correction):
    pattern = correction["form"]
    found = fnmatch.filter(rows, pattern)
    if not found and "*" in pattern:
        sys.exit(f"corrections.csv: no form is like {pattern}")
    for form in found or [pattern]:
        new = {column: correction[column] for column in ("uops", "latency", "divider") if correction[column] != ""}
        rows[form] = {"form": form, "uops": "-", "latency": "0", "divider": "0"} | rows.get(form, {}) | new


def hash_of(form):
    """FNV-1a of 64 bits, as form_hash()."""
    value = 0xCBF29CE484222325
    for byte in form.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


def micro_ops(text):
    kinds = []
    for part in [] if text == "-" else text.split("+"):
        count, _, ports = part.rpartition("*")
        kinds.append((sum(1 << int(port) for port in ports[1:]), int(count or 1)))
    if len(kinds) > MAX_KINDS:
        sys.exit(f"{text}: at most {MAX_KINDS} kinds of micro-ops")
    return ", ".join(f"{{{ports:#04x}, {count}}}" for ports, count in kinds)


def main():
    name, table = sys.argv[1:]
    loaded = read(name)
    rows = {hash_of(form): row for form, row in loaded.items()}
    if len(rows) != len(loaded):
        sys.exit("two forms have one hash")
    lines = [f"{{{key:#018x}, {{{{{micro_ops(row['uops'])}}}}}, {row['latency']}, {row['divider']}}},  // {row['form']}" for key, row in sorted(rows.items())]
    pathlib.Path(table).write_text(HEADER.format(count=len(rows), name=name, rows="\n".join(lines)), encoding="utf-8")


if __name__ == "__main__":
    main()
