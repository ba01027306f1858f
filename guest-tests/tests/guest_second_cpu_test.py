"""a million interrupts and clock readings of a second CPU

In guest-clock and guest-exact the same tests take some hundreds.
"""

import pytest

import guest_kernels
from rig import directory_of

pytestmark = [pytest.mark.full, pytest.mark.seconds(350)]


def long_test(name, source):
    return guest_kernels.command(source, "--long", "--time-limit", 3000, "--filter", f"SecondCpu.{name}")


# The AMD host itself loses some (tools/dev/bed/README.md).
@pytest.mark.parametrize("source", ["clock", "perf"])
def test_no_interrupt_is_lost(intel, bed, checks, source):
    ended = bed.on_intel(directory_of("guest-second-cpu") / f"interrupts.{source}", long_test("LosesNoIpiBesidePmis", source), timeout=3600)
    guest_kernels.judge(ended, checks)


# Where two CPUs really run at the same time.
def test_no_clock_goes_back(bed, checks):
    ended = bed.on_kvm(directory_of("guest-second-cpu") / "clocks", long_test("SeesNoClockGoBack", "clock"), cpus=2, timeout=1800)
    guest_kernels.judge(ended, checks)
