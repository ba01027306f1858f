"""QEMU 7.2: reset, gdb, snapshot, migration"""

import pytest

import linux_guests
import suites
from paths import LIBRARY, LINUX

pytestmark = [pytest.mark.some_of(1, among="disturbed Linux guests"), pytest.mark.seconds(150)]


@pytest.fixture(scope="module")
def run(bed, images, kept):
    return linux_guests.run_of(linux_guests.disturbed(kept / "console", LINUX / "qemu-session", "--attach", LIBRARY, "--qemu", "7.2", "--model", "haswell"))


@pytest.mark.parametrize("check", suites.names("attached"))
def test_guest(run, check):
    suites.judge("attached", check, run)
