"""fuzz targets under sanitizers"""

import shutil
import subprocess

import pytest

from paths import ROOT
from rig import directory_of, do, one_at_a_time

TARGETS = sorted(path.name for folder in ("tools", "vmm", "vpmu") for path in (ROOT / folder).glob("**/fuzz/corpus/*"))


@pytest.fixture(scope="session")
def built():
    """The targets are built. Returns their names."""
    with one_at_a_time("fuzz"):
        do("cmake", "--preset", "fuzz")
        do("cmake", "--build", "--preset", "fuzz")
    return sorted(path.name.removesuffix("_fuzz") for path in (ROOT / "build/fuzz/fuzzers").glob("*_fuzz"))


def test_each_target_has_a_corpus(built):
    assert built and built == TARGETS


@pytest.mark.seconds(25)  # some targets take long to read their corpus
@pytest.mark.parametrize("target", TARGETS)
def test_finds_nothing_in(built, target, request):
    """Begins with the corpus alone: the inputs that long runs have found take long to read."""
    seconds = 300 if request.config.option.size == "full" else 6
    found = directory_of("fuzz") / target
    shutil.rmtree(found, ignore_errors=True)
    done = subprocess.run(["tools/dev/fuzz", "--built", "--jobs", "1", "--seconds", str(seconds), "--found", found, target], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0 and f"ok   {target}: " in done.stdout and "1 passed, 0 failed" in done.stdout, done.stdout
