"""tools/test itself"""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

import run_all
from paths import ROOT

pytestmark = pytest.mark.quick

# A file of tests of each kind of end.
TESTS = '''"""What a step is called.

More."""
import os
import warnings

import bed
import pytest

PACKAGES = ("hello",)
pytestmark = [pytest.mark.sample(2), pytest.mark.seconds(3)]


@pytest.fixture(scope="module", params=["one", "other"])
def guest(request):
    return [request.param, os.getpid()]


@pytest.mark.always
@pytest.mark.parametrize("number", range(3))
def test_shares(guest, number):
    guest.append(number)
    assert guest[2:] == list(range(number + 1)), guest


@pytest.mark.parametrize("number", range(20))
def test_sampled(number):
    print("out", number)


@pytest.mark.always
def test_of_checks(checks):
    checks(7, note="a note")


@pytest.mark.always
def test_runs_again():
    warnings.warn("again, after a storm", bed.RunAgain)


@pytest.mark.always
def test_fails():
    assert 1 + 1 == 3, "arithmetic"


@pytest.mark.always
def test_fails_without_a_check(checks):
    checks(0)


@pytest.mark.always
@pytest.mark.skipif(True, reason="no such machine")
def test_skipped():
    pass


@pytest.mark.full
def test_full():
    pass
'''


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A tree with these tests, and a Run on it."""
    (tmp_path / "tools/tests").mkdir(parents=True)
    (tmp_path / "tools/tests/small_test.py").write_text(TESTS)
    for name in ("pytest.ini", "conftest.py"):
        (tmp_path / name).write_text((ROOT / name).read_text().replace("pythonpath = ", f"pythonpath = {ROOT}/tools/dev/test {ROOT}/tools/dev/bed "))
    monkeypatch.setattr(run_all, "ROOT", tmp_path)
    monkeypatch.setattr(run_all, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(run_all, "TIMES", tmp_path / "times.json")
    monkeypatch.setenv("VPMU_KVM", "host")
    for name in [name for name in os.environ if name.startswith("PYTEST_XDIST")]:
        monkeypatch.delenv(name)
    (tmp_path / "logs").mkdir()
    return tmp_path


def ran(tree, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["test", *arguments])
    monkeypatch.setattr(run_all.Run, "must", lambda *_: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return run_all.main()


def test_a_steps_line_has_all_that_it_consists_of(tree, monkeypatch, capfd):
    code = ran(tree, monkeypatch, "--only", "small", "--seed", "abc", "--junit", str(tree / "junit.xml"))
    said = capfd.readouterr().out
    assert code == 1
    assert re.search(r"^What a step is called +FAILED .* 16 passed, 2 failed, 1 skipped, .*a note", said, re.M), said
    assert "again, after a storm" in said, said
    assert "    1 skipped: no such machine\n" in said
    assert "    FAILED tools/tests/small_test.py::test_fails (call)\n    E   AssertionError: arithmetic\n" in said
    assert "no check has passed" in said
    assert said.endswith("16 passed, 2 failed\n"), said
    assert "test_shares[one-0]" in (tree / "junit.xml").read_text()
    times = json.loads((tree / "times.json").read_text())
    assert {"small", "tools/tests/small_test.py::test_fails"} <= set(times)


def sampled(tree, monkeypatch, capfd, *arguments):
    ran(tree, monkeypatch, "--only", "small", *arguments)
    print(capfd.readouterr().out, (tree / "logs/pytest.log").read_text())
    return set(json.loads((tree / "times.json").read_text()))


def test_the_seed_chooses_what_is_sampled(tree, monkeypatch, capfd):
    runs = []
    for seed in ("abc", "abc", "abd"):
        runs.append({name for name in sampled(tree, monkeypatch, capfd, "--seed", seed) if "test_sampled" in name})
        (tree / "times.json").unlink()
    assert len(runs[0]) == 2 and runs[0] == runs[1] != runs[2], runs


def test_a_full_run_has_all(tree, monkeypatch, capfd):
    names = sampled(tree, monkeypatch, capfd, "--full")
    assert sum("test_sampled" in name for name in names) == 20
    assert any("test_full" in name for name in names)


def test_a_step_says_what_it_is(tree):
    steps = run_all.find_steps()
    assert list(steps) == ["unit", "small"]
    assert (steps["small"].text, steps["small"].sizes, steps["small"].packages) == ("What a step is called", ("usual", "full"), ("hello",))


def test_files_that_cannot_be_read_fail(tree, monkeypatch, capfd):
    (tree / "tools/tests/small_test.py").write_text("import nothing_of_this_name\n")
    code = ran(tree, monkeypatch, "--only", "small")
    said = capfd.readouterr().out
    assert code == 1 and "nothing_of_this_name" in said, said


def test_each_step_says_what_it_is_in_a_line_of_its_own():
    texts = [step.text for step in run_all.find_steps().values()]
    assert len(texts) > 30
    assert len(set(texts)) == len(texts), "two steps say the same"


def test_the_intel_hosts_steps_are_those_that_need_it():
    files = {name: step.path.read_text(encoding="utf-8") for name, step in run_all.find_steps().items() if step.path}
    needing = [name for name, text in files.items() if re.search(r"^def \w+\([^)]*\bintel\b", text, re.M)]
    assert sorted(needing) == sorted(run_all.INTEL_HOST)


def test_children_that_are_interrupted_clean_up(tmp_path):
    """CTest dies of a signal and leaves its tests behind: the signal reaches these, too, and they have the time to clean up."""
    trace = tmp_path / "trace"
    step = f"trap 'sleep 1; echo cleaned up >>{trace}; exit 143' TERM; echo began >{trace}; echo; sleep 60 & wait"
    parent = run_all.start(["bash", "-c", f"bash -c \"{step}\"; true"], stdout=subprocess.PIPE)
    parent.stdout.readline()
    run_all.end(parent)
    parent.stdout.close()
    assert trace.read_text() == "began\ncleaned up\n"


def test_a_machine_without_git_has_no_head(monkeypatch):
    monkeypatch.setitem(os.environ, "PATH", "/nothing")
    assert run_all.head() == "none"


def test_reasons_of_skipped_unit_tests_are_counted(tmp_path):
    junit = tmp_path / "junit.xml"
    junit.write_text("""<testsuite>
      <testcase name="A.Passes" status="run"><system-out>a.cpp:1: Skipped\nnot this one\n</system-out></testcase>
      <testcase name="A.First" status="notrun"><skipped message=""/><system-out>[ RUN ] A.First\na.cpp:7: Skipped\nno AVX\n\n[ SKIPPED ]</system-out></testcase>
      <testcase name="A.Second" status="notrun"><skipped message=""/><system-out>a.cpp:9: Skipped\nno AVX\n</system-out></testcase>
      <testcase name="A.Third" status="notrun"><skipped message=""/></testcase>
    </testsuite>""")
    assert run_all.skip_reasons(junit).most_common() == [("no AVX", 2), ("no reason given", 1)]
