"""Commands that need KVM, or an Intel host with a PMU: on this machine, or in the bed (tools/dev/bed)."""

import os
import re
import subprocess
import sys
import warnings
import xml.etree.ElementTree

from paths import ROOT

BROKE_DOWN = 125  # exit code of tools/dev/bed/run
# Linux's report of an interrupt that QEMU delivered twice (tools/dev/bed/README.md): at a handler's first instruction, RF set in the frame.
GIVEN_TWICE = re.compile(r"RIP: 0010:asm_sysvec_[a-z_]*\+0x0/.*\n(?:.*\n){0,2}?.*EFLAGS: 0001[0-9a-f]{4}")


class RunAgain(UserWarning):
    """`tools/test` shows it in the step's line."""


class Ended:
    """How a command ended: its code, what it said, and where that is kept."""

    def __init__(self, code, path):
        self.code, self.path = code, path

    @property
    def text(self):
        return self.path.read_text(encoding="utf-8", errors="replace")

    def __str__(self):
        return f"exit code {self.code}; the end of {self.path}:\n" + "\n".join(self.text.splitlines()[-20:])


def words(options, command):
    given = [word for name, value in options.items() for word in ([f"--{name.replace('_', '-')}"] if value is True else [f"--{name.replace('_', '-')}", str(value)])]
    return [*given, "--", *map(str, command)]


def run(program, out, command, options, environment=None):
    with out.open("wb") as file:
        done = subprocess.run([ROOT / "tools/dev/bed" / program, *words(options, command)], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                              env={**os.environ, **(environment or {})}, check=False)
    return Ended(done.returncode, out)


def on_kvm(out, command, environment=None, **options):
    """Runs it where there is a fit KVM, with its output in the file OUT. A run in which the bed itself broke down, or delivered an interrupt twice, says nothing about what is tested: it is
    repeated once, or up to three times. The outputs of such runs stay in OUT.1, OUT.2 and so on; a warning says why."""
    for attempt in range(1, 5):
        ended = run("on-kvm", out, command, options, environment)
        if ended.code == BROKE_DOWN:
            most, why = 2, next(iter(re.findall(r"bed: .*", ended.text)), "the bed broke down")
        elif GIVEN_TWICE.search(ended.text):
            most, why = 4, "an interrupt that QEMU gave twice"
        else:
            break
        if attempt >= most:
            break
        kept = out.with_name(f"{out.name}.{attempt}")
        kept.write_bytes(out.read_bytes())
        warnings.warn(f"again, after {why}, see {kept}", RunAgain, stacklevel=2)
    return ended


def on_intel(out, command, **options):
    """Runs it on the emulated Intel host with a PMU."""
    return run("run", out, command, {"host": "intel", "timeout": 1800, **options})


def outcomes_of(junit):
    """Of a pytest or CTest run: how many passed, were skipped, and what failed, with its reason."""
    passed, skipped, failed = 0, 0, {}
    for case in xml.etree.ElementTree.fromstring(junit).iter("testcase"):
        bad = next((part for kind in ("failure", "error") if (part := case.find(kind)) is not None), None)
        if bad is not None:
            failed[f"{case.get('classname')}::{case.get('name')}"] = f"{bad.get('message') or ''}\n{bad.text or case.findtext('system-out') or ''}"
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return passed, skipped, failed


# The report is the last that it says: pytest cannot write it to a standard output that is a file, and what is written elsewhere in the bed is lost.
WITH_A_REPORT = 'report=$(mktemp); "$@" --junitxml "$report"; code=$?; cat "$report"; rm "$report"; exit "$code"'


def pytest_on_kvm(out, arguments, **options):
    """Runs tests of the tree where there is a fit KVM, one after the other. Returns as outcomes_of()."""
    pytest = [sys.executable, "-m", "pytest", "-n", "0", "-q", "--accel", "kvm"]
    ended = on_kvm(out, ["sh", "-c", WITH_A_REPORT, "sh", *pytest, *arguments], **options)
    report = re.match(r"<\?xml.*?</testsuites>", ended.text[max(0, ended.text.rfind("<?xml")):], re.S)
    assert report and ended.code in (0, 1), f"no report of pytest: {ended}"
    return outcomes_of(report[0])
