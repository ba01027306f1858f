"""Linux guest, 1 CPU, or of another model, or of QEMU 10"""

import pytest

import generations
import console_log
import linux_guests
import suites
from paths import LIBRARY
from rig import directory_of

pytestmark = [pytest.mark.some_of(2, among="Linux guests on KVM"), pytest.mark.sample(1), pytest.mark.seconds(330)]
SECONDS = 1500


@pytest.fixture(scope="module")
def run(bed, images, kept):
    console = linux_guests.on_kvm(kept / "console", "--cpus", 1, "--source", "clock", "--run", "dmesg,stat,record,debug,perf-test,dmesg")
    return console_log.parse(console)


@pytest.mark.parametrize("check", suites.names("single"))
def test_guest(run, check):
    """All modes of perf."""
    suites.judge("single", check, run)


def test_nehalem(bed, images):
    """It is the model least like Skylake."""
    generations.is_as_in_the_table(directory_of("linux-table"), "nehalem", "6.1", accel="kvm", timeout=SECONDS)


def test_qemu(bed, images):
    """QEMU 10 with our PMU."""
    generations.is_as_in_the_table(directory_of("linux-table"), "skylake", "6.1", accel="kvm", attach=LIBRARY, timeout=SECONDS)
