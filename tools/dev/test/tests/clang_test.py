"""all of the tree built by clang

Tests, too, with warnings as errors.
"""

import os
import subprocess

import pytest

from paths import ROOT
from rig import directory_of

pytestmark = [pytest.mark.full, pytest.mark.seconds(600)]


def test_builds(checks):
    log = directory_of("clang") / "build.log"
    with log.open("wb") as out:
        subprocess.run(["cmake", "--preset", "clang"], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=True)
        done = subprocess.run(["cmake", "--build", "--preset", "clang", "--parallel", str(os.cpu_count()), "--", "-k", "0"], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                              check=False)
    failed = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.startswith("FAILED: ")]
    checks(len(list((ROOT / "build/clang").rglob("*.o"))), failed)
    assert done.returncode == 0, f"the build ended with {done.returncode}: {log}"
