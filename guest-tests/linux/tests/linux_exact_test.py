"""Linux guest, exact source"""

import pytest

import console_log
import linux_guests
import suites

pytestmark = [pytest.mark.some_of(2, among="Linux guests on KVM"), pytest.mark.seconds(100)]


@pytest.fixture(scope="module")
def run(bed, images, kept):
    console = linux_guests.on_kvm(kept / "console", "--cpus", 1, "--source", "exact", "--run", "dmesg,exact,selfcount,levels,debug,dmesg", "--model-log")
    return console_log.parse(console + linux_guests.counted_by_qemu())


@pytest.mark.parametrize("check", suites.names("exact"))
def test_guest(run, check):
    suites.judge("exact", check, run)
