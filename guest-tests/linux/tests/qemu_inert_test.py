"""QEMU with the library and no model

It behaves like QEMU without the library.
"""

import re

import pytest

from paths import LIBRARY, LINUX
from rig import directory_of

pytestmark = pytest.mark.seconds(40)


def test_like_qemu_alone(bed, images, checks):
    ended = bed.on_kvm(directory_of("qemu-inert") / "said", [LINUX / "qemu-inert", "--attach", LIBRARY], timeout=240)
    checks(len(re.findall(r"^PASS ", ended.text, re.M)), re.findall(r"^FAIL .*", ended.text, re.M))
    assert ended.code == 0, ended
