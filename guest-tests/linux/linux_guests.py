"""Boots Linux guests for tests, and keeps what they say: boot-guest without KVM, or where there is one."""

import subprocess

import bed
from paths import IMAGES, LINUX, PROGRAM, ROOT

BED_SECONDS = 60  # that the bed may take in addition to its guest


def command(*arguments, timeout):
    return [LINUX / "boot-guest", "--program", PROGRAM, *arguments, "--timeout", timeout]


def on_kvm(out, *arguments, timeout=1200):
    """The console. The limit is long: recordings with too few samples are made again, and how many these are depends on what a VM exit costs there."""
    return bed.on_kvm(out, command(*arguments, timeout=timeout), timeout=timeout + BED_SECONDS).text


def start_without_kvm(out, *arguments, timeout=600):
    with out.open("wb") as file:
        return subprocess.Popen([str(word) for word in command("--accel", "soft", "--source", "exact", *arguments, timeout=timeout)], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file,
                                stderr=subprocess.STDOUT)


def without_kvm(out, *arguments, timeout=600):
    """The console."""
    start_without_kvm(out, *arguments, timeout=timeout).wait()
    return out.read_text(encoding="utf-8", errors="replace")


def disturbed(out, *program, timeout=600):
    """The console of a guest that a program, which takes --timeout, runs on KVM and disturbs while it counts."""
    return bed.on_kvm(out, [*program, "--timeout", timeout], timeout=timeout + BED_SECONDS).text


def counted_by_qemu():
    """What QEMU counts of programs/mixed.S, as a line of the console."""
    return subprocess.run([LINUX / "count-with-qemu", IMAGES / "programs/mixed"], capture_output=True, text=True, check=True).stdout
