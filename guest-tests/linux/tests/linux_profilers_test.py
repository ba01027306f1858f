"""likwid, pcm and PAPI in a Linux guest, without KVM"""

import pytest

import console_log
import linux_guests
import suites

pytestmark = pytest.mark.seconds(30)


@pytest.fixture(scope="module", params=["westmere", "haswell"])
def run(request, images, kept):
    return console_log.parse(linux_guests.without_kvm(kept / request.param, "--model", request.param, "--initrd", images / "profilers.img", "--run", "profilers,gdb,dmesg"))


@pytest.mark.parametrize("check", suites.names("profilers"))
def test_guest(run, check):
    suites.judge("profilers", check, run)
