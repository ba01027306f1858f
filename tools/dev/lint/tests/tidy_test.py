"""clang-tidy; C++ files compile by themselves

As they do not in this build. Of the files that changed last, or of all.
"""

import re
import subprocess
import sys

import pytest

from paths import ROOT

LATEST = {"tidy": 3, "alone": 30}


@pytest.mark.seconds(60)
@pytest.mark.parametrize("lint", LATEST)
def test_files(lint, checks, request):
    latest = [] if request.config.option.size == "full" else ["--latest", str(LATEST[lint])]
    done = subprocess.run([sys.executable, f"tools/dev/lint/{lint}.py", "--jobs", "1", *latest], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    print(done.stdout)
    checks(len(re.findall(r"^ok ", done.stdout, re.M)), re.findall(r"^FAIL .*", done.stdout, re.M))
    assert done.returncode == 0, done.stdout + done.stderr
