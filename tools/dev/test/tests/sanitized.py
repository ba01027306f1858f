"""Unit tests that are built with the sanitizers of a preset."""

import os
import subprocess

import bed
from paths import ROOT
from rig import directory_of


def unit_tests(preset, checks, *options):
    directory = directory_of(preset)
    for step in (["cmake", "--preset", preset], ["cmake", "--build", "--preset", preset]):
        with (directory / "build.log").open("ab") as log:
            subprocess.run(step, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=True)
    junit = directory / "junit.xml"
    with (directory / "tests.log").open("wb") as log:
        done = subprocess.run(["ctest", "--preset", preset, "-E", "(^Kvm|OnKvm)", "--timeout", "1200", "--no-tests=error", "-j", str(os.cpu_count()), "--output-junit", junit, *options], cwd=ROOT,
                              stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False)
    passed, skipped, failed = bed.outcomes_of(junit.read_text(encoding="utf-8"))
    checks(passed, [f"{name.partition('::')[0]}: {text}" for name, text in failed.items()], f"{skipped} skipped" if skipped else "")
    assert done.returncode == 0, f"CTest ended with {done.returncode}: {directory}/tests.log"
