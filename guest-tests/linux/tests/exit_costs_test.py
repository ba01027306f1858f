"""what exits cost with the library

What a VM exit costs under QEMU with the library, compared with our own VMM and with QEMU alone. In instructions, and therefore always in the bed.
"""

import re

import pytest

from paths import LINUX
from rig import directory_of

pytestmark = pytest.mark.seconds(100)


def test_within_limits(bed, images, checks):
    ended = bed.on_kvm(directory_of("exit-costs") / "said", [LINUX / "bench-exits"], environment={"VPMU_KVM": "bed"}, by_instructions=True, timeout=600)
    checks(len(re.findall(r"^PASS ", ended.text, re.M)), re.findall(r"^FAIL .*", ended.text, re.M))
    assert ended.code == 0, ended
