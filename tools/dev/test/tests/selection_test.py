"""marks that select system tests"""

import os
import subprocess
import sys

import pytest

from paths import ROOT

pytestmark = pytest.mark.quick

TESTS = """
import pytest

@pytest.fixture(scope="module", params=["first", "second", "third"])
def guest(request):
    pass

@pytest.mark.sample_tests(2)
@pytest.mark.parametrize("question", range(8))
def test_asks(guest, question):
    pass

@pytest.mark.sample(1)
@pytest.mark.parametrize("other", range(8))
def test_alone(other):
    pass

@pytest.mark.full
def test_long():
    pass

@pytest.mark.quick
def test_short():
    pass
"""
GUESTS = """
import pytest

pytestmark = pytest.mark.sample(1)

@pytest.fixture(scope="module", params=["first", "second", "third"])
def guest(request):
    pass

def test_one(guest):
    pass

def test_other(guest):
    pass

@pytest.mark.always
def test_always():
    pass
"""


@pytest.fixture
def selected(tmp_path):
    """The names of the tests that some options select of a file's."""

    def select(text, *options):
        (tmp_path / "some_test.py").write_text(text)
        command = [sys.executable, "-m", "pytest", "-p", "selection", "-p", "no:cacheprovider", "-W", "ignore", "-c", os.devnull, "--rootdir", tmp_path, "--collect-only", "-q", *options, tmp_path]
        done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "tools/dev/test")}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return [line.split("::")[1] for line in done.stdout.splitlines() if "::" in line]

    return select


def begin(names, start):
    return [name for name in names if name.startswith(start)]


def test_a_sample_has_tests_of_each_guest(selected):
    names = selected(TESTS, "--seed", "1")
    assert [len(begin(names, f"test_asks[{guest}-")) for guest in ("first", "second", "third")] == [2, 2, 2], names
    assert len(begin(names, "test_alone")) == 1 and len(begin(names, "test_long")) == 0 and len(names) == 8, names


def test_some_of_the_files(selected, tmp_path):
    text = "import pytest\npytestmark = pytest.mark.some_of(1, among='these')\ndef test_one():\n    pass\ndef test_other():\n    pass\n"
    for name in ("first", "second", "third"):
        (tmp_path / f"{name}_test.py").write_text(text)
    chosen = {seed: selected(text, "--seed", seed) for seed in "12345678"}
    assert {len(tests) for tests in chosen.values()} == {2}, chosen
    assert len(selected(text, "--seed", "1", "--named")) == 8


def test_a_sample_follows_from_the_seed(selected):
    samples = [selected(TESTS, "--seed", seed) for seed in ("1", "1", "2")]
    assert samples[0] == samples[1] != samples[2], samples


def test_a_sample_of_guests_has_all_tests_of_one(selected):
    names = selected(GUESTS, "--seed", "1")
    guests = {name.partition("[")[2] for name in begin(names, "test_o")}
    assert len(guests) == 1 and len(begin(names, "test_o")) == 2 and begin(names, "test_always") and len(names) == 3, names


@pytest.mark.parametrize(("options", "number"), [((), 33), (("--seed", "1", "--size", "full"), 34), (("--seed", "1", "--size", "quick"), 1)])
def test_sizes(selected, options, number):
    assert len(selected(TESTS, *options)) == number
