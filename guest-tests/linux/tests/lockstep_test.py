"""engine and KVM in lock-step

The instruction engine does what KVM does, over a boot and perf.
"""

import re

import pytest

from paths import LINUX
from rig import directory_of

pytestmark = pytest.mark.seconds(150)


def test_over_a_boot(bed, images, checks, request):
    instructions, seconds = (100_000_000, 4200) if request.config.option.size == "full" else (20_000_000, 840)
    ended = bed.on_kvm(directory_of("lockstep") / "said", [LINUX / "lockstep", "--instructions", instructions, "--perf", 1000000, "--seconds", seconds], timeout=seconds + 60)
    checks(len(re.findall(r"^PASS ", ended.text, re.M)), re.findall(r"^FAIL .*", ended.text, re.M))
    assert ended.code == 0, ended
