"""test kernels on KVM"""

import pytest

import guest_kernels
from rig import directory_of

pytestmark = pytest.mark.seconds(110)


def test_all(bed, checks):
    ended = bed.on_kvm(directory_of("guest-clock") / "said", guest_kernels.command("clock"), timeout=900)
    guest_kernels.judge(ended, checks)
