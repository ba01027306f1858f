"""shell scripts"""

import re
import subprocess

import pytest

from paths import ROOT

pytestmark = pytest.mark.quick
FIRST_LINE = re.compile(rb"#!.*[/ ](ba)?sh\n")


def scripts():
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]
    for name in names:
        if (ROOT / name).is_file():
            with (ROOT / name).open("rb") as file:
                if FIRST_LINE.match(file.readline()):
                    yield name


@pytest.mark.parametrize("script", scripts())
def test_shellcheck(script):
    done = subprocess.run(["shellcheck", "-x", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
