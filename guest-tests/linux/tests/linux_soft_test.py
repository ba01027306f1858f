"""Linux guest without KVM, twice

What the first boot counts and samples is right, and the second repeats the first exactly.
"""

import pytest

import console_log
import linux_guests
import suites

pytestmark = pytest.mark.seconds(60)


@pytest.fixture(scope="module")
def consoles(images, kept):
    """Every message of the kernel, with its time stamp."""
    files = [kept / "first", kept / "second"]
    both = [linux_guests.start_without_kvm(file, "--run", "dmesg,exact,selfcount,levels,debug", "--model-log", "--append", "loglevel=7") for file in files]
    for boot in both:
        boot.wait()
    return [file.read_text(encoding="utf-8", errors="replace") for file in files]


@pytest.mark.parametrize("check", suites.names("exact"))
def test_first(consoles, check):
    suites.judge("exact", check, console_log.parse(consoles[0] + linux_guests.counted_by_qemu()))


@pytest.mark.parametrize("check", suites.names("soft"))
def test_both(consoles, check):
    suites.judge("soft", check, console_log.parse("".join(consoles)))
