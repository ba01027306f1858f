"""QEMU 7.2: reset, gdb, snapshot, migration"""

import pytest

import console_log
import linux_guests
import suites
from paths import LIBRARY, LINUX

pytestmark = [pytest.mark.some_of(1, among="disturbed Linux guests"), pytest.mark.seconds(150)]


@pytest.fixture(scope="module")
def run(bed, images, kept):
    return console_log.parse(linux_guests.disturbed(kept / "console", LINUX / "qemu-session", "--attach", LIBRARY, "--qemu", "7.2", "--model", "haswell"))


@pytest.mark.parametrize("check", suites.names("attached"))
def test_guest(run, check):
    suites.judge("attached", check, run)
