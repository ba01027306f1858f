"""QEMU, snapshots and the doctor's tests on an Intel host

QEMU with our library, by the host's PMU; our VMM, saved and restored; and the doctor's tests. QEMU alone, with KVM's PMU, counts what our source kvm counts.
"""

import re

import pytest

import console_log
import suites
from paths import LIBRARY, LINUX, PROGRAM
from rig import directory_of

pytestmark = pytest.mark.full

WITH_PERF = "echo 1 >/proc/sys/kernel/perf_event_paranoid; "
QEMU = f"{LINUX}/boot-guest --vmm qemu"
# How each guest is run.
GUESTS = {
    "attached": f"{WITH_PERF}{QEMU} --attach {LIBRARY} --source perf --run dmesg,host-pmu",
    "alone": f"{QEMU} --run host-pmu",
    "saved": f"{LINUX}/saved-guest --program {PROGRAM} --timeout 900",
}


@pytest.fixture(scope="module", params=GUESTS)
def run(request, intel, bed, images, kept):
    return console_log.parse(bed.on_intel(kept / request.param, ["sh", "-c", GUESTS[request.param]]).text)


@pytest.mark.seconds(130)
@pytest.mark.parametrize("run", ["attached"], indirect=True)
@pytest.mark.parametrize("check", suites.names("host"))
def test_qemu_with_our_library(run, check):
    suites.judge("host", check, run)


@pytest.mark.seconds(45)
@pytest.mark.parametrize("run", ["alone"], indirect=True)
@pytest.mark.parametrize("check", [check for check in suites.names("passed") if re.match("passed-(instructions|branches|split|boundaries)", check)])
def test_qemu_alone(run, check):
    suites.judge("passed", check, run)


@pytest.mark.seconds(500)
@pytest.mark.parametrize("run", ["saved"], indirect=True)
@pytest.mark.parametrize("check", suites.names("saved"))
def test_our_vmm(run, check):
    suites.judge("saved", check, run)


@pytest.mark.seconds(900)
def test_doctor(intel, bed, checks):
    ended = bed.on_intel(directory_of("intel-host-vmms") / "doctor", ["sh", "-c", f"{WITH_PERF}{PROGRAM} doctor --selftest"])
    lines = re.findall(r"^model .*: [0-9]+ passed, .*", ended.text, re.M)  # of each source that runs there
    good = [line for line in lines if re.search(r": [1-9][0-9]* passed, 0 failed", line)]
    checks(len(good), [line for line in lines if line not in good])
    assert re.search(r"^model .* source perf, by KVM: [1-9]", ended.text, re.M), ended
    assert "selftest: passed" in ended.text.splitlines() and ended.code == 0, ended
