"""Tests of in-debian: a run leaves nothing behind, however it ends. In place of mmdebstrap, a script makes a root that has only busybox."""
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[4]
RELEASE = "test-of-in-debian"
PLACE = ROOT / "build" / RELEASE
SECONDS = 60
MMDEBSTRAP = r"""#!/bin/sh
for last; do root=$before; before=$last; done # the one before the last
mkdir -p "$root"/bin "$root"/proc "$root"/sys "$root"/dev "$root"/root "$root"/var/cache/apt/archives
cp "$(command -v busybox)" "$root/bin/busybox"
for name in sh env sleep test cat; do ln -s busybox "$root/bin/$name"; done
printf "#!/bin/sh\n" >"$root/bin/apt-get"; chmod 755 "$root/bin/apt-get"
[ -z "$FAILS" ] || exit 3
"""


def is_clone():
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, check=False).returncode == 0 if shutil.which("git") else False


def processes():
    """The ids of the processes whose root is in the chroot."""
    found = []
    for link in pathlib.Path("/proc").glob("[0-9]*/root"):
        try:
            if os.readlink(link).startswith(str(PLACE)):
                found.append(link.parent.name)
        except OSError:  # it has ended
            pass
    return found


@unittest.skipUnless(os.geteuid() == 0 and is_clone(), "needs root, and a clone")
class InDebian(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.directory)
        self.addCleanup(shutil.rmtree, PLACE, ignore_errors=True)
        fake = self.directory / "mmdebstrap"
        fake.write_text(MMDEBSTRAP)
        fake.chmod(0o755)
        self.logs = self.directory / "logs"
        self.environment = {**os.environ, "PATH": f"{self.directory}:{os.environ['PATH']}"}

    def start(self, script, **environment):
        return subprocess.Popen([ROOT / "tools/dev/in-debian", RELEASE, self.logs, "sh", "-c", script], env={**self.environment, **environment},
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def start_long(self):
        """Starts a run that does not end by itself, whose command ignores signals and has a child that does, too."""
        process = self.start("trap '' TERM INT; sleep 1000 & echo >build/logs/began; wait")
        self.eventually((self.logs / "began").exists, "it has begun")
        self.assertGreaterEqual(len(processes()), 2)
        return process

    def eventually(self, true, what):
        limit = time.monotonic() + SECONDS
        while not true():
            self.assertLess(time.monotonic(), limit, what)
            time.sleep(0.1)

    def nothing_is_left(self):
        self.assertEqual(processes(), [])
        self.assertNotIn(str(PLACE), pathlib.Path("/proc/mounts").read_text(encoding="utf-8"))
        self.assertEqual(sorted(path.name for path in PLACE.iterdir()), ["ccache", "lock", "packages"])

    def test_the_command_has_the_commit_and_its_exit_code_comes_back(self):
        process = self.start("test -x tools/dev/in-debian && cat CMakeLists.txt >build/logs/seen && echo >/root/.cache/ccache/cached; exit 7")
        self.assertEqual(process.wait(SECONDS), 7)
        self.assertIn("project(vpmu", (self.logs / "seen").read_text(encoding="utf-8"))
        self.assertTrue((PLACE / "ccache/cached").exists())
        self.nothing_is_left()

    def test_nothing_is_left_where_there_is_no_such_debian(self):
        self.assertEqual(self.start("true", FAILS="1").wait(SECONDS), 3)
        self.nothing_is_left()

    def test_nothing_is_left_when_it_is_interrupted(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number):
                process = self.start_long()
                process.send_signal(number)
                self.assertEqual(process.wait(SECONDS), 128 + number)
                self.nothing_is_left()
                (self.logs / "began").unlink()

    def test_no_process_outlives_it_when_it_is_killed_and_the_next_run_removes_the_rest(self):
        process = self.start_long()
        process.kill()
        process.wait()
        self.eventually(lambda: not processes(), "the processes have ended")
        self.assertTrue((PLACE / "scratch/root/bin/busybox").exists())
        self.assertEqual(self.start("exit 0").wait(SECONDS), 0)
        self.nothing_is_left()

    def test_a_second_run_beside_it_is_refused(self):
        process = self.start_long()
        self.assertEqual(self.start("exit 0").wait(SECONDS), 1)
        self.assertTrue((PLACE / "scratch/root/bin/busybox").exists())
        process.terminate()
        process.wait(SECONDS)
        self.nothing_is_left()


if __name__ == "__main__":
    unittest.main()
