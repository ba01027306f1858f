"""Linux guests' images

A build from another directory, with another umask, gives the same bytes: a guest counts the same wherever the clone is.
"""

import os
import shutil
import subprocess

import pytest

from paths import CACHE, LINUX


@pytest.mark.seconds(30)
def test_the_same_from_another_directory(images, program, tmp_path):
    shutil.copytree(LINUX, tmp_path / "sources", symlinks=True)
    subprocess.run([tmp_path / "sources/build-initramfs", "--with-profilers", "--with-vpmu", program, tmp_path / "again"], env={**os.environ, "VPMU_CACHE": str(CACHE)}, umask=0o077, check=True)
    again = sorted(path.relative_to(tmp_path / "again") for path in (tmp_path / "again").rglob("*") if path.is_file())
    assert len(again) > 5, again
    differing = [name for name in again if (images / name).read_bytes() != (tmp_path / "again" / name).read_bytes()]
    assert not differing
