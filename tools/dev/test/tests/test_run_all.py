"""Tests of tools/test."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import run_all  # noqa: E402 # pylint: disable=wrong-import-position


class IntelHost(unittest.TestCase):
    def test_the_intel_hosts_steps_are_those_that_need_its_files(self):
        text = (run_all.ROOT / "tools/dev/test/CMakeLists.txt").read_text(encoding="utf-8")
        needing = re.findall(r"^vpmu_step\((\S+) .* NEEDS intel\b", text, re.M)
        self.assertEqual(sorted(run_all.INTEL_HOST), sorted(needing))


class Interrupted(unittest.TestCase):
    def test_children_end_and_clean_up(self):
        """CTest dies of a signal and leaves its tests behind: the signal reaches these, too, and they have the time to clean up."""
        with tempfile.TemporaryDirectory() as directory:
            trace = pathlib.Path(directory) / "trace"
            step = f"trap 'sleep 1; echo cleaned up >>{trace}; exit 143' TERM; echo began >{trace}; echo; sleep 60 & wait"
            parent = run_all.start(["bash", "-c", f"bash -c \"{step}\"; true"], stdout=subprocess.PIPE)
            parent.stdout.readline()
            run_all.end(parent)
            parent.stdout.close()
            self.assertEqual(trace.read_text(), "began\ncleaned up\n")


class Head(unittest.TestCase):
    def test_a_machine_without_git_has_none(self):
        with unittest.mock.patch.dict(os.environ, PATH="/nothing"):
            self.assertEqual(run_all.head(), "none")


class Skipped(unittest.TestCase):
    def test_reasons_are_counted(self):
        junit = """<testsuite>
          <testcase name="A.Passes" status="run"><system-out>a.cpp:1: Skipped\nnot this one\n</system-out></testcase>
          <testcase name="A.First" status="notrun"><skipped message=""/><system-out>[ RUN ] A.First\na.cpp:7: Skipped\nno AVX\n\n[ SKIPPED ]</system-out></testcase>
          <testcase name="A.Second" status="notrun"><skipped message=""/><system-out>a.cpp:9: Skipped\nno AVX\n</system-out></testcase>
          <testcase name="A.Third" status="notrun"><skipped message=""/></testcase>
        </testsuite>"""
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(junit)
            file.flush()
            self.assertEqual(run_all.skip_reasons(file.name).most_common(), [("no AVX", 2), ("no reason given", 1)])


if __name__ == "__main__":
    unittest.main()
