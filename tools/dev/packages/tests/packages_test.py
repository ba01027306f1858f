"""Debian packages, used and purged in a clean chroot"""

import re
import subprocess

import pytest

from paths import ROOT
from rig import directory_of, one_at_a_time

pytestmark = [pytest.mark.full, pytest.mark.seconds(900)]
PACKAGES = ("dpkg-dev", "lintian", "mmdebstrap")


def test_of_this_tree(fetched, checks):
    with one_at_a_time("build"):  # it configures build/dev, as the demo does
        subprocess.run(["tools/package"], cwd=ROOT, stdin=subprocess.DEVNULL, check=True)
    done = subprocess.run(["tools/dev/packages/check", directory_of("packages"), "--made"], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", check=False)
    print(done.stdout)
    checks(len(re.findall(r"^PASS ", done.stdout, re.M)), re.findall(r"^FAIL .*", done.stdout, re.M))
    assert done.returncode == 0, done.stdout[-3000:]
