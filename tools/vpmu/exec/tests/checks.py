"""What the checks of `vpmu exec` share: how they run it, and how they say what they saw."""

import subprocess

import fetched
from paths import PROGRAM

LIMIT_SECONDS = 300
# What --verbose says of a guest of the cache.
WENT_ON = b"vpmu: the guest has booted already: "


def same(seen, expected, what):
    if seen != expected:
        raise AssertionError(f"{what}: {seen!r:.300} instead of {expected!r:.300}")


def contains(text, part, what):
    if part not in text:
        raise AssertionError(f"{what}: no {part!r} in {text!r:.600}")


class Runner:
    """Runs commands by one accelerator, on one kernel."""

    def __init__(self, accel, kernel, debian13=False):
        self.accel, self.kernel = accel, kernel
        self.environment = fetched.environment(debian13)

    def words(self, options, command):
        return [str(PROGRAM), "exec", "--accel", self.accel, "--kernel", str(self.kernel), *options, "--", *command]

    def run(self, *command, options=(), stdin=subprocess.DEVNULL, data=None, **more):
        given = {"input": data} if data is not None else {"stdin": stdin}
        return subprocess.run(self.words(options, command), env=self.environment, capture_output=True, timeout=LIMIT_SECONDS,
                              check=False, **given, **more)

    def start(self, *command, options=(), **more):
        return subprocess.Popen(self.words(options, command), env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, **more)


def ended(done, code, out=b"", err=b""):
    same((done.returncode, done.stdout, done.stderr), (code, out, err), "code, output, errors")
