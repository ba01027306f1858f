"""Linux guest by the PMU of an Intel host"""

import pytest

import bed
import console_log
import suites
from paths import LINUX

pytestmark = [pytest.mark.some_of(1, among="Linux guests on an Intel host"), pytest.mark.seconds(80)]
SCRIPT = f"echo 1 >/proc/sys/kernel/perf_event_paranoid; {LINUX}/boot-guest --source perf --run dmesg,host-pmu --timeout 600"


@pytest.fixture(scope="module")
def run(intel, images, kept):
    return console_log.parse(bed.on_intel(kept / "console", ["sh", "-c", SCRIPT]).text)


@pytest.mark.parametrize("check", suites.names("host"))
def test_guest(run, check):
    suites.judge("host", check, run)
