"""tools/test and tools/demo answer before they do anything

They show their help and refuse unknown arguments before they install or build.
"""

import re
import subprocess

import pytest

from paths import ROOT

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(("command", "code", "expected"), [
    ("tools/test --help", 0, "usage: tools/test"),
    ("tools/test --nothing", 2, "unrecognized arguments: --nothing"),
    ("tools/test --only nothing", 2, "--only nothing: no such step"),
    ("tools/test --list", 0, "linux-libvirt .*libvirt domain"),
    ("tools/demo --help", 0, "usage: tools/demo"),
    ("tools/demo --nothing", 2, "not '--nothing'"),
])
def test_answers(command, code, expected):
    done = subprocess.run(command.split(), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=20, check=False)
    assert done.returncode == code and re.search(expected, done.stdout), f"exit code {done.returncode}: {done.stdout}"
    assert "packages from Debian" not in done.stdout
