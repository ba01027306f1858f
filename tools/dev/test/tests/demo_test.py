"""demo of a Sandy Bridge, without KVM

The first command of the README. On a model for which Linux turns the LBR on, so that each instruction is looked at.
"""

import os
import re
import subprocess

import pytest

from paths import ROOT
from rig import one_at_a_time


@pytest.mark.seconds(30)
def test_finds_the_hot_function():
    with one_at_a_time("build"), one_at_a_time("images"):  # it makes one, too; on Debian 13, which has no bed, it must not need the others
        done = subprocess.run(["tools/demo", "sandybridge"], cwd=ROOT, env={**os.environ, "VPMU_KVM": "none"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
    assert done.returncode == 0, done.stdout
    samples = re.search(r"\((\d+) samples\)", done.stdout)
    heavy = re.search(r"^ *(\d+\.\d+)% .* heavy$", done.stdout, re.M)
    assert samples and int(samples[1]) >= 400, done.stdout
    assert heavy and 75 <= float(heavy[1]) < 85, done.stdout
