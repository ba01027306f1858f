"""Where the tree keeps what tests need."""

import functools
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = ROOT / "build/dev"
PROGRAM = pathlib.Path(os.environ.get("VPMU_PROGRAM", BUILD / "tools/vpmu/vpmu"))
LIBRARY = BUILD / "vmm/libvpmu-kvm.so"
GUEST_TESTS = BUILD / "guest-tests/runner/guest-tests"
TEST_KERNEL = BUILD / "guest-tests/pmu_tests.elf"
LINUX = ROOT / "guest-tests/linux"
IMAGES = ROOT / "build/linux"
CACHE = pathlib.Path(os.environ.get("VPMU_CACHE", ROOT / "build/cache"))
KERNEL = CACHE / "l2/boot/vmlinuz"
LOGS = ROOT / "build/logs/test"
TIMES = ROOT / "build/test-times.json"
PIPE = "VPMU_TEST_PROGRESS"  # the environment variable that tells progress.py where to write


def step_of(path):
    """The step that a file of tests is: linux_exact_test.py is `tools/test --only linux-exact`."""
    return pathlib.Path(path).name.removesuffix("_test.py").replace("_", "-")


@functools.cache
def models():
    """The names of all CPU models, for parameters."""
    if not PROGRAM.exists():
        raise FileNotFoundError(f"{PROGRAM} is not built: run tools/build, or `cmake --build --preset dev`")
    said = subprocess.run([PROGRAM, "models"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in said.splitlines()[1:]]
