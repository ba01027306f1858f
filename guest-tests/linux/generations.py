#!/usr/bin/env python3
"""Boots every CPU model, without KVM or with it, judges what Linux and perf do with its PMU, and prints a table `model x facility`. A second
boot, of a guest that takes itself for a real machine, is for the uncore.

    generations.py --write                           writes facilities.md
    generations.py --write --models haswell,skylake  the rows of these models
    generations.py --write --kernel 6.12             what the table has of that kernel; with --models, those

tests/linux_generations_test.py compares the table with what it measures.
"""

import argparse
import concurrent.futures
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/dev/test"))
import bed
import console_log
import disassembly
import facility_checks
from models import KERNELS, MODELS, REASONS, kernel_of
from paths import IMAGES, LINUX, PROGRAM
from suites import check_ended, check_no_complaint, check_pmu_lines

TABLE = LINUX / "facilities.md"
TITLE = """# What Linux and perf do with each model

Written by `guest-tests/linux/generations.py --write`, and compared with what it measures. A guest with Debian's kernel of this version runs perf,
that of Debian 12, on programs whose every step is known, on the exact source; "yes": each sample was right, as facility_checks.py says.
"""
# The models that the table has for each kernel.
MODELS_OF = {"6.1": tuple(MODELS), "6.12": ("nehalem", "ivybridge", "haswell", "skylake")}
BOOT_CHECKS = {"boot": check_ended, "dmesg": check_pmu_lines, "dmesg-clean": check_no_complaint}
GUESTS = [(model, kernel) for kernel in KERNELS for model in MODELS]  # as the table has them
COLUMNS = ("dmesg", *facility_checks.CHECKS)
NOT_MEASURED = "-"
PROGRAMS = ("chase", "calls", "lines")
BED_SECONDS = 60  # that the bed may take in addition to its guest


def guests_of(models=None, kernel=None):
    """Pairs of model and kernel: those that the table has of these models and this kernel, or, where both are given, these."""
    named = list(MODELS) if models in (None, "all") else models.split(",")
    kernels = [kernel] if kernel else list(KERNELS)
    beside_the_table = models and kernel
    return [(model, kernel) for model in named for kernel in kernels if beside_the_table or model in MODELS_OF[kernel]]


def boot(command, output, accel, timeout):
    """Runs the command; returns its output, which is left in this file."""
    if accel == "kvm":
        return bed.on_kvm(output, command, timeout=timeout + BED_SECONDS).text  # the checks find what is missing
    with output.open("wb") as file:
        subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False)
    return output.read_text(encoding="utf-8", errors="replace")


def console_of(logs, model, kernel, accel, attach, timeout):
    """Boots the guest: twice, or once with QEMU and our PMU attached, which has no uncore."""
    path = logs / f"{model}-{kernel}.console"
    command = [LINUX / "boot-guest", "--accel", accel, "--source", "exact", "--program", PROGRAM, "--initrd", IMAGES / "initramfs.img", "--model", model, "--kernel", kernel,
               "--timeout", str(timeout)]
    boots = [["--run", "dmesg,facilities"], ["--run", "uncore,dmesg", "--bare-metal"]]
    if attach:
        boots = [["--vmm", "qemu", "--qemu", "10", "--attach", attach, *boots[0]]]
    text = "".join(boot([*command, *scripts], path.with_suffix(f".{number}"), accel, timeout) for number, scripts in enumerate(boots, 1))
    path.write_text(text, encoding="utf-8")
    return text


def check_booted(run, model, kernel, accel):
    """Checks that the guest is the one that was asked for, and that what was asked for ran its code."""
    booted = run.first("model"), kernel_of(run)
    assert booted == (model, kernel), f"{' on Linux '.join(booted)} has booted"
    on_kvm = {any(name.startswith("kvm.ioctls.") for name in counters) for _console, counters in run.boots}
    assert on_kvm == {accel == "kvm"}, f"boots with calls to KVM: {on_kvm}, with --accel {accel}"
    return run.first("kernel")


def judge_guest(text, programs, model, kernel, accel, facilities=tuple(facility_checks.CHECKS)):
    """Cells of one row, and a line for each check."""
    run = console_log.parse(text)
    name = f"{model} {kernel}"
    row, lines = {}, []
    for check, judge in ({"kernel": lambda run, _programs: check_booted(run, model, kernel, accel)} | BOOT_CHECKS).items():
        try:
            lines.append(f"ok   {name} {check}: {judge(run, programs)}")
        except AssertionError as failure:
            lines.append(f"FAIL {name} {check}: {failure}")
            row["dmesg"] = "FAILED"
    row.setdefault("dmesg", "yes")
    for facility in facilities:
        try:
            row[facility], remark = facility_checks.judge(run, programs, facility)
            word = "miss" if row[facility].startswith("missing") else "ok  "
            lines.append(f"{word} {name} {facility}: {row[facility]}: {remark}")
        except AssertionError as failure:
            row[facility] = "FAILED"
            lines.append(f"FAIL {name} {facility}: {failure}")
    return row, lines


def row_of(model, kernel, row):
    """One line of the table; reasons are letters."""
    letter = {reason: chr(ord("a") + number) for number, reason in enumerate(REASONS)}
    return f"| {model} | {kernel} | {' | '.join(letter.get(row.get(column), row.get(column, NOT_MEASURED)) for column in COLUMNS)} |"


def agrees(measured, known):
    """Whether two lines of the table agree in all cells that were measured for the first."""
    cells = zip(measured.split("|"), known.split("|"), strict=True)
    return all(now.strip() in (NOT_MEASURED, then.strip()) for now, then in cells)


def known_rows():
    """Model and kernel -> their line in facilities.md."""
    text = TABLE.read_text(encoding="ascii") if TABLE.exists() else ""
    rows = {tuple(cell.strip() for cell in line.split("|")[1:3]): line for line in text.splitlines() if line.startswith("|")}
    return {guest: rows[guest] for guest in GUESTS if guest in rows}


def table_of(rows):
    head = [f"| model | Linux | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 2) + "|"]
    reasons = [f"- {chr(ord('a') + number)}: {reason}" for number, reason in enumerate(REASONS)]
    return "\n".join([TITLE, *head, *(rows[guest] for guest in GUESTS if guest in rows), "", *reasons]) + "\n"


def measure(logs, model, kernel, accel="soft", attach=None, timeout=600):
    """A guest's line of the table, and a line for each check."""
    programs = {name: disassembly.load(f"{IMAGES}/programs/{name}") for name in PROGRAMS}
    facilities = [name for name in facility_checks.CHECKS if not (attach and name == "uncore")]
    row, lines = judge_guest(console_of(logs, model, kernel, accel, attach, timeout), programs, model, kernel, accel, facilities)
    return row_of(model, kernel, row), lines


def is_as_in_the_table(logs, model, kernel, **options):
    """What Linux and perf do with the model is what facilities.md says."""
    measured, lines = measure(logs, model, kernel, **options)
    print(*lines, sep="\n")
    failed = [line for line in lines if line.startswith("FAIL")]
    assert not failed, "\n".join(failed)
    assert len(lines) > len(BOOT_CHECKS), f"only {len(lines)} checks"
    known = known_rows()[model, kernel]
    assert agrees(measured, known), f"facilities.md has {known}, and not {measured}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", required=True, help="write the rows to facilities.md")
    parser.add_argument("--models", help="these, or all; otherwise those that the table has")
    parser.add_argument("--kernel", choices=KERNELS, help="this one; otherwise those that the table has of a model")
    parser.add_argument("--jobs", type=int, default=2, help="guests at a time")
    options = parser.parse_args()
    guests = guests_of(options.models, options.kernel)
    with tempfile.TemporaryDirectory() as logs, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        rows = {}
        for guest, (row, lines) in zip(guests, pool.map(lambda guest: measure(pathlib.Path(logs), *guest), guests)):
            rows[guest] = row
            print(*lines, sep="\n", flush=True)
    TABLE.write_text(table_of(known_rows() | rows), encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
