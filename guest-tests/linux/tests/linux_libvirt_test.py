"""libvirt domain with our PMU, and without again"""

import pytest

import console_log
import linux_guests
import suites
from paths import LINUX, PROGRAM

pytestmark = [pytest.mark.some_of(1, among="disturbed Linux guests"), pytest.mark.seconds(80)]


@pytest.fixture(scope="module")
def run(bed, images, kept):
    return console_log.parse(linux_guests.disturbed(kept / "console", LINUX / "with-libvirt", LINUX / "libvirt-domain", "--program", PROGRAM, "--model", "haswell"))


@pytest.mark.parametrize("check", suites.names("libvirt"))
def test_guest(run, check):
    suites.judge("libvirt", check, run)
