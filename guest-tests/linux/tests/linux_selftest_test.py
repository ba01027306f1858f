"""the kernel's own test of KVM's PMU, on ours

Some 2000 VMs for each model.
"""

import re
import subprocess

import pytest

from paths import LIBRARY, LINUX, ROOT
from rig import directory_of, one_at_a_time

pytestmark = [pytest.mark.full, pytest.mark.seconds(300)]


@pytest.mark.parametrize("model", ["nehalem", "sandybridge", "haswell", "skylake"])
def test_of_linux(model, bed, images, checks):
    with one_at_a_time("kernel-selftest"):
        subprocess.run([LINUX / "kernel-selftest", "build"], cwd=ROOT, check=True)
    out = directory_of("linux-selftest") / model
    ended = bed.on_kvm(out, [LINUX / "kernel-selftest", "run", "--attach", LIBRARY, "--model", model], timeout=1500)
    checks(len(re.findall(r"^PASS ", ended.text, re.M)), re.findall(r"^FAIL .*", ended.text, re.M))
