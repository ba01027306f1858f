"""build, unit tests and demo on Debian 13

With its compiler and libraries, in a chroot; without KVM.
"""

import re
import subprocess

import pytest

from paths import ROOT
from rig import directory_of

pytestmark = [pytest.mark.full, pytest.mark.seconds(1500)]
PACKAGES = ("mmdebstrap",)


def test_commit(checks):
    # The limit is less than a test's, after which there would be no time to clean up.
    command = ["timeout", "--foreground", "7000", "tools/dev/in-debian", "trixie", directory_of("debian13"), "sh", "-c", "VPMU_KVM=host nice tools/test --only unit demo"]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    print(done.stdout)
    totals = re.findall(r"^(\d+) passed, (\d+) failed$", done.stdout, re.M)
    assert len(totals) == 1 and re.search(r"^demo of a Sandy Bridge.* ok ", done.stdout, re.M), done.stdout[-3000:]
    checks(int(totals[0][0]), re.findall(r"^FAILED .*", done.stdout, re.M))
    assert done.returncode == 0, done.stdout[-3000:]
