"""test kernels on Skylake, without KVM"""

import pytest

import guest_kernels
from rig import directory_of

pytestmark = [pytest.mark.quick, pytest.mark.seconds(15)]


def test_all(checks):
    guest_kernels.judge(guest_kernels.without_kvm(directory_of("guest-skylake") / "skylake", "--model=skylake"), checks)
