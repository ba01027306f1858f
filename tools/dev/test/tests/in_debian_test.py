"""in-debian leaves nothing behind, however a run ends

In place of mmdebstrap, a script makes a root that has only busybox.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest

from paths import ROOT

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


pytestmark = [pytest.mark.quick, pytest.mark.skipif(os.geteuid() != 0 or not is_clone(), reason="needs root, and a clone")]


def eventually(true, what):
    limit = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < limit, what
        time.sleep(0.1)


class Debian:
    """Runs of in-debian with a release of its own, in whose place are the chroot and what is kept."""

    def __init__(self, release, directory):
        self.release, self.place, self.logs = release, ROOT / "build" / release, directory / "logs"
        fake = directory / "mmdebstrap"
        fake.write_text(MMDEBSTRAP)
        fake.chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}"}

    def start(self, script, **environment):
        return subprocess.Popen([ROOT / "tools/dev/in-debian", self.release, self.logs, "sh", "-c", script], env={**self.environment, **environment},
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def start_long(self):
        """Starts a run that does not end by itself, whose command ignores signals and has a child that does, too."""
        process = self.start("trap '' TERM INT; sleep 1000 & echo >build/logs/began; wait")
        eventually((self.logs / "began").exists, "it has not begun")
        assert len(self.processes()) >= 2
        return process

    def processes(self):
        """The ids of the processes whose root is in the chroot."""
        found = []
        for link in pathlib.Path("/proc").glob("[0-9]*/root"):
            try:
                if os.readlink(link).startswith(f"{self.place}/"):
                    found.append(link.parent.name)
            except OSError:  # it has ended
                pass
        return found

    def nothing_is_left(self):
        assert self.processes() == []
        assert f"{self.place}/" not in pathlib.Path("/proc/mounts").read_text(encoding="utf-8")
        assert sorted(path.name for path in self.place.iterdir()) == ["ccache", "lock", "packages"]


@pytest.fixture
def debian(request, tmp_path):
    made = Debian("test-of-in-debian." + re.sub(r"\W", "-", request.node.name), tmp_path)
    yield made
    shutil.rmtree(made.place, ignore_errors=True)


def test_the_command_has_the_commit_and_its_exit_code_comes_back(debian):
    process = debian.start("test -x tools/dev/in-debian && cat CMakeLists.txt >build/logs/seen && echo >/root/.cache/ccache/cached; exit 7")
    assert process.wait(SECONDS) == 7
    assert "project(vpmu" in (debian.logs / "seen").read_text(encoding="utf-8")
    assert (debian.place / "ccache/cached").exists()
    debian.nothing_is_left()


def test_nothing_is_left_where_there_is_no_such_debian(debian):
    assert debian.start("true", FAILS="1").wait(SECONDS) == 3
    debian.nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_nothing_is_left_when_it_is_interrupted(debian, number):
    process = debian.start_long()
    process.send_signal(number)
    assert process.wait(SECONDS) == 128 + number
    debian.nothing_is_left()


def test_no_process_outlives_it_when_it_is_killed_and_the_next_run_removes_the_rest(debian):
    process = debian.start_long()
    process.kill()
    process.wait()
    eventually(lambda: not debian.processes(), "processes have not ended")
    assert (debian.place / "scratch/root/bin/busybox").exists()
    assert debian.start("exit 0").wait(SECONDS) == 0
    debian.nothing_is_left()


def test_a_second_run_beside_it_is_refused(debian):
    process = debian.start_long()
    assert debian.start("exit 0").wait(SECONDS) == 1
    assert (debian.place / "scratch/root/bin/busybox").exists()
    process.terminate()
    process.wait(SECONDS)
    debian.nothing_is_left()
