"""Tests of on_kvm.sh: which runs are repeated, how often, and with what remark. In place of tools/dev/bed/on-kvm, a script plays outcomes, one for each run."""
import pathlib
import subprocess
import tempfile
import unittest

ON_KVM = pathlib.Path(__file__).resolve().parents[1] / "on_kvm.sh"
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


class OnKvm(unittest.TestCase):
    def run_with(self, *outcomes, command="on_kvm out a b"):
        """Returns the exit code, the number of runs, the remark, the last output, how many earlier outputs are kept, and what on_kvm printed."""
        with tempfile.TemporaryDirectory() as place:
            root = pathlib.Path(place)
            script = root / "tools/dev/bed/on-kvm"
            script.parent.mkdir(parents=True)
            script.write_text(SCRIPT, encoding="utf-8")
            script.chmod(0o755)
            (root / "outcomes").write_text("\n".join(outcomes) + "\n", encoding="utf-8")
            ended = subprocess.run(
                ["bash", "-c", f'set -euo pipefail; . "{ON_KVM}"; code=0; {{ {command}; }} >said || code=$?; echo "$code"; echo "$again"; cat said'],
                cwd=root, capture_output=True, text=True, check=True)
            code, remark, *said = ended.stdout.split("\n")
            runs = (root / "runs").read_text(encoding="utf-8").count("run")
            kept = len(list(root.glob("out.*")))
            return int(code), runs, remark, (root / "out").read_text(encoding="utf-8"), kept, "".join(said)

    def test_what_passes_runs_once(self):
        self.assertEqual(self.run_with("passed"), (0, 1, "", "passed with a b\n", 0, ""))

    def test_what_fails_runs_once(self):
        self.assertEqual(self.run_with("failed"), (1, 1, "", "failed\n", 0, "exit code 1"))

    def test_another_panic_is_a_failure(self):
        code, runs, remark, *_ = self.run_with("panic", "passed")
        self.assertEqual((code, runs, remark), (3, 1, ""))

    def test_a_broken_bed_has_one_more_run(self):
        code, runs, remark, output, kept, _ = self.run_with("broken", "passed")
        self.assertEqual((code, runs, remark, output, kept), (0, 2, "again, after bed: broken, see out.1", "passed with a b\n", 1))
        self.assertEqual(self.run_with("broken", "broken", "passed")[:2], (125, 2))

    def test_an_interrupt_given_twice_has_three_more(self):
        code, runs, remark, _, kept, _ = self.run_with("twice", "twice", "twice", "passed")
        self.assertEqual((code, runs, kept), (0, 4, 3))
        self.assertEqual(remark.count("QEMU gave twice"), 3)
        self.assertEqual(self.run_with("twice", "twice", "twice", "twice", "passed")[:2], (3, 4))

    def test_the_remark_tells_of_all_guests(self):
        _, runs, remark, *_ = self.run_with("twice", "passed", "passed", command="on_kvm out a; on_kvm out b")
        self.assertEqual((runs, remark.count("again")), (3, 1))


if __name__ == "__main__":
    unittest.main()
