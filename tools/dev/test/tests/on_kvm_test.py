"""which runs on KVM are repeated

In place of tools/dev/bed/on-kvm, a script plays outcomes, one for each run.
"""

import types
import warnings

import pytest

import bed

pytestmark = pytest.mark.quick

SCRIPT = """#!/bin/sh
echo run >>runs
outcome=$(sed -n "$(wc -l <runs)p" outcomes)
case $outcome in
  broken) echo "bed: broken"; exit 125 ;;
  twice) printf "RIP: 0010:asm_sysvec_irq_work+0x0/0x20\\nCode: 0f\\nRSP: 0000:0 EFLAGS: 00010002\\n"; exit 3 ;;
  panic) printf "RIP: 0010:asm_sysvec_irq_work+0x0/0x20\\nCode: 0f\\nRSP: 0000:0 EFLAGS: 00000002\\n"; exit 3 ;;
  failed) echo failed; exit 1 ;;
  *) echo "passed with $*" ;;
esac
"""


@pytest.fixture
def play(tmp_path, monkeypatch):
    script = tmp_path / "tools/dev/bed/on-kvm"
    script.parent.mkdir(parents=True)
    script.write_text(SCRIPT, encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setattr(bed, "ROOT", tmp_path)

    def played(*outcomes, outs=("out",), **options):
        """The code, the number of runs, the reasons for which some were repeated, the last output, and how many earlier outputs are kept."""
        (tmp_path / "outcomes").write_text("\n".join(outcomes) + "\n", encoding="utf-8")
        for old in tmp_path.glob("*out*.*"):
            old.unlink()
        (tmp_path / "runs").unlink(missing_ok=True)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for out in outs:
                ended = bed.on_kvm(tmp_path / out, ["a", "b"], **options)
        again = [str(warning.message) for warning in warned]
        return types.SimpleNamespace(code=ended.code, runs=(tmp_path / "runs").read_text(encoding="utf-8").count("run"), again=again, output=ended.text, kept=len(list(tmp_path.glob("out.*"))))

    return played


def test_what_passes_runs_once(play):
    played = play("passed", timeout=7, by_instructions=True)
    assert (played.code, played.runs, played.again, played.output, played.kept) == (0, 1, [], "passed with --timeout 7 --by-instructions -- a b\n", 0)


def test_what_fails_runs_once(play):
    played = play("failed")
    assert (played.code, played.runs, played.again, played.output, played.kept) == (1, 1, [], "failed\n", 0)


def test_another_panic_is_a_failure(play):
    played = play("panic", "passed")
    assert (played.code, played.runs, played.again) == (3, 1, [])


def test_a_broken_bed_has_one_more_run(play, tmp_path):
    played = play("broken", "passed")
    assert (played.code, played.runs, played.again, played.output, played.kept) == (0, 2, [f"again, after bed: broken, see {tmp_path}/out.1"], "passed with -- a b\n", 1)
    played = play("broken", "broken", "passed")
    assert (played.code, played.runs) == (125, 2)


def test_an_interrupt_given_twice_has_three_more(play):
    played = play("twice", "twice", "twice", "passed")
    assert (played.code, played.runs, played.kept) == (0, 4, 3)
    assert "".join(played.again).count("QEMU gave twice") == 3
    played = play("twice", "twice", "twice", "twice", "passed")
    assert (played.code, played.runs) == (3, 4)


def test_the_reasons_are_those_of_all_guests(play):
    played = play("twice", "passed", "passed", outs=("out", "other"))
    assert (played.runs, len(played.again)) == (3, 1)
