"""Linux guest with KVM's own PMU of an Intel host"""

import pytest

import bed
import console_log
import suites
from paths import LINUX

pytestmark = [pytest.mark.some_of(1, among="Linux guests on an Intel host"), pytest.mark.seconds(80)]
SCRIPT = f"""{LINUX}/boot-guest --source kvm --run dmesg,host-pmu,events
{LINUX}/boot-guest --source kvm --model host --events architectural --run events"""


@pytest.fixture(scope="module")
def run(intel, images, kept):
    return console_log.parse(bed.on_intel(kept / "console", ["sh", "-c", SCRIPT]).text)


@pytest.mark.parametrize("check", suites.names("passed"))
def test_guest(run, check):
    suites.judge("passed", check, run)
