"""Linux guest saved and restored, without KVM"""

import pytest

import resumed


@pytest.mark.seconds(35)
def test_does_the_same_in_parts(fetched, images, tmp_path):
    resumed.does_the_same_in_parts(resumed.Guest(tmp_path, fetched, images / "initramfs.img"))
