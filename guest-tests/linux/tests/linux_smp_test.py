"""Linux guest, 2 CPUs, ours or of QEMU 10's q35"""

import pytest

import console_log
import linux_guests
import suites
from paths import LIBRARY

pytestmark = [pytest.mark.some_of(2, among="Linux guests on KVM"), pytest.mark.sample(1), pytest.mark.seconds(60)]
VMMS = {"ours": (), "q35": ("--vmm", "qemu", "--machine", "q35", "--attach", LIBRARY)}


@pytest.fixture(scope="module", params=VMMS)
def run(request, bed, images, kept):
    console = linux_guests.on_kvm(kept / request.param, "--cpus", 2, "--source", "clock", "--run", "dmesg,all-cpus,clocks,dmesg", *VMMS[request.param])
    return console_log.parse(console)


@pytest.mark.parametrize("check", suites.names("smp"))
def test_guest(run, check):
    suites.judge("smp", check, run)
