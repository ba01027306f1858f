"""guests of models as hosts: the perf source's calibration

A guest of each model acts as a host: the calibration of our perf source passes on its PMU.
"""

import re
import subprocess

import pytest

from paths import LINUX, models
from rig import directory_of

pytestmark = [pytest.mark.sample(2), pytest.mark.seconds(5)]


@pytest.mark.parametrize("model", models())
def test_calibration(program, images, model):
    out = directory_of("soft-hosts") / model
    with out.open("wb") as console:
        subprocess.run([LINUX / "boot-guest", "--program", program, "--accel", "soft", "--source", "exact", "--model", model, "--initrd", images / "vpmu.img", "--run", "calibrate", "--timeout", "300"],
                       stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT, check=False)
    said = re.findall(r"^vpmu-guest: calibrated (.*)$", out.read_text(encoding="utf-8", errors="replace"), re.M)
    assert said, f"no line of the doctor: see {out}"
    assert re.match(r"ok .*: counts loops right, leaves out the host, kicks up to [1-9][0-9]* instructions", said[0]), said
