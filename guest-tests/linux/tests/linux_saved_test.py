"""Linux guest saved and restored"""

import pytest

import console_log
import linux_guests
import suites
from paths import LINUX, PROGRAM

pytestmark = [pytest.mark.some_of(1, among="disturbed Linux guests"), pytest.mark.seconds(100)]


@pytest.fixture(scope="module")
def run(bed, images, kept):
    return console_log.parse(linux_guests.disturbed(kept / "console", LINUX / "saved-guest", "--program", PROGRAM))


@pytest.mark.parametrize("check", suites.names("saved"))
def test_guest(run, check):
    suites.judge("saved", check, run)
