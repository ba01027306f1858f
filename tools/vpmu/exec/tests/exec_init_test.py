"""the init of vpmu exec's guest, in QEMU

As root, without KVM.
"""

import os
import pathlib
import re
import tempfile

import pytest

from checks import same
from guest import Guest

pytestmark = [pytest.mark.full, pytest.mark.seconds(6)]


class Runner:
    """Boots guests of one kernel."""

    def __init__(self, kernel, workspace):
        self.kernel, self.workspace = kernel, workspace

    def run(self, *command, fields=(), **options):
        fields = [*(f"argument={word}" for word in command), "environment=PATH=/usr/bin:/bin", *fields]
        return Guest(self.kernel, fields, self.workspace, **options).run()

    def shell(self, text, **options):
        return self.run("sh", "-c", text, **options)


@pytest.fixture
def runner(fetched):
    with tempfile.TemporaryDirectory(prefix="vpmu-exec-") as workspace:
        yield Runner(fetched, workspace)


def ended(guest, end, out=b"", err=b""):
    same(guest.end, end, "the end")
    same(guest.out, out, "standard output")
    same(guest.err, err, "standard error")


def plain(guest, end, out=b"", err=b""):
    """Also nothing but that was said on the control port, in this order."""
    ended(guest, end, out, err)
    same(guest.lines, ["started", f"written {len(out)} {len(err)}", end], "the lines")


def test_true(runner):
    plain(runner.run("true"), "exit 0")


def test_false(runner):
    plain(runner.run("false"), "exit 1")


def test_exit_code(runner):
    plain(runner.shell("exit 42"), "exit 42")


def test_killed(runner):
    plain(runner.shell("kill -KILL $$"), "killed 9")


def test_no_such_command(runner):
    guest = runner.run("no-such-command")
    same(guest.lines, ["started", "error no-such-command: command not found", "written 0 0", "exit 127"], "the lines")
    guest = runner.run("./no-such-file", fields=["directory=/usr"])
    same(guest.lines[1:], ["error executing ./no-such-file: No such file or directory", "written 0 0", "exit 127"], "the lines")


def test_not_executable(runner):
    guest = runner.run("/etc/passwd")
    same(guest.lines, ["started", "error executing /etc/passwd: Permission denied", "written 0 0", "exit 126"], "the lines")


def test_no_such_directory(runner):
    guest = runner.run("true", fields=["directory=/no/such/directory"])
    same(guest.lines, ["error changing to the directory /no/such/directory: No such file or directory", "written 0 0", "exit 125"], "the lines")


def test_no_such_device(runner):
    guest = runner.run("true", fields=["root=absent"])
    assert re.fullmatch("error mounting virtiofs 'absent' at /lower: .+", guest.lines[0]), f"the first line is {guest.lines[0]}"
    same(guest.lines[1:], ["written 0 0", "exit 125"], "the lines")


def test_input_is_unchanged(runner):
    data = os.urandom(1 << 20)
    guest = runner.shell("echo begin >&2; cat", stdin=data, script=[(b"", lambda guest: guest.say(f"eof {len(data)}"))])
    plain(guest, "exit 0", data, b"begin\n")


def test_streams_are_apart(runner):
    plain(runner.shell("echo one; echo two >&2; echo three; echo four >&2"), "exit 0", b"one\nthree\n", b"two\nfour\n")


def test_eof_without_a_count(runner):
    text = b"a line\n"
    guest = runner.shell("read -r line; echo $line; cat; echo end", stdin=text, script=[(text, lambda guest: guest.say("eof"))])
    plain(guest, "exit 0", text + b"end\n")


def test_eof_by_the_port(runner):
    text = b"a line\n"
    guest = runner.shell("cat; echo end", stdin=text, script=[(text, lambda guest: guest.close("stdin"))])
    plain(guest, "exit 0", text + b"end\n")


def test_user(runner):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        os.chmod(directory, 0o755)
        fields = ["user=12345", "group=23456", "groups=7", "groups=8", f"directory={directory}", "environment=FOO=a b=c", "umask=63", "hostname=guest"]
        guest = runner.shell('id -u; id -g; id -G; pwd; echo "$FOO"; env | wc -l; umask; hostname; cat /proc/sys/kernel/perf_event_paranoid; echo x >/dev/stderr',
                             fields=fields)
    # PATH, FOO and the PWD that a shell adds; OLDPWD it does not
    plain(guest, "exit 0", f"12345\n23456\n23456 7 8\n{directory}\na b=c\n3\n0077\nguest\n-1\n".encode(), b"x\n")


def test_signal(runner):
    guest = runner.shell("echo ready; exec sleep 1000", script=[(b"ready\n", lambda guest: guest.say("signal 2"))])
    plain(guest, "killed 2", b"ready\n")


def test_closed_output_is_a_broken_pipe(runner):
    guest = runner.run("yes", script=[(b"y\n", lambda guest: guest.close("stdout"))])
    same(guest.end, "killed 13", "the end")


def test_terminal(runner):
    text = "tty; stty size; stty -echo; echo ready; read -r line; stty size; echo $line; sleep 1000"
    # The interrupt character of the terminal ends what is in its foreground.
    script = [
        (b"/dev/pts/0\r\n24 80\r\nready\r\n", lambda guest: (guest.say("window 50 132"), guest.ports["stdin"].sendall(b"typed\n"))),
        (b"/dev/pts/0\r\n24 80\r\nready\r\n50 132\r\ntyped\r\n", lambda guest: guest.ports["stdin"].sendall(b"\x03")),
    ]
    guest = runner.shell(text, fields=["terminal=24 80"], script=script)
    same(guest.out, b"/dev/pts/0\r\n24 80\r\nready\r\n50 132\r\ntyped\r\n^C" if b"^C" in guest.out else b"/dev/pts/0\r\n24 80\r\nready\r\n50 132\r\ntyped\r\n", "the terminal")
    same(guest.end, "killed 2", "the end")


def test_terminal_of_a_user(runner):
    guest = runner.shell("stat -c %u:%a $(tty); exec </dev/tty; cat; echo end", fields=["terminal=24 80", "user=12345", "group=12345"],
                         script=[(b"12345:620\r\n", lambda guest: guest.say("eof"))])
    same(guest.out, b"12345:620\r\nend\r\n", "the terminal")
    same(guest.end, "exit 0", "the end")


def test_writes_are_lost_or_kept(runner):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as lost, tempfile.TemporaryDirectory(dir="/var/tmp") as kept:
        guest = runner.shell(f"echo a >{lost}/file && cat {lost}/file && echo b >{kept}/file && mv /etc/passwd /etc/moved && echo moved",
                             fields=[f"mount=rw rw0 {kept}"], shares=[("rw0", kept)])
        plain(guest, "exit 0", b"a\nmoved\n")
        same(sorted(os.listdir(lost)), [], "what the host has of /")
        same([(path.name, path.read_bytes()) for path in pathlib.Path(kept).iterdir()], [("file", b"b\n")], "what the host has of --rw")
    assert pathlib.Path("/etc/passwd").exists(), "the host has lost a file"


def test_much_output(runner):
    size = 64 << 20
    guest = runner.shell(f"head -c {size} /dev/zero | tr '\\0' x; echo end >&2", rate=100e6)
    same(len(guest.out), size, "bytes")
    ended(guest, "exit 0", b"x" * size, b"end\n")


def test_slow_reader(runner):
    """The end is said while most of the output is still on its way."""
    guest = runner.shell("seq 1000000", rate=7e5)  # more than the port's queue has room for
    plain(guest, "exit 0", b"".join(b"%d\n" % number for number in range(1, 1000001)))


def test_orphans(runner):
    guest = runner.shell("(trap '' HUP TERM INT; sleep 1000) & echo here; (sleep 0.01 &); exit 3")
    plain(guest, "exit 3", b"here\n")


def test_reaps(runner):
    # A process whose parent is gone is init's, and may not stay a zombie.
    text = "(sleep 0.05 & echo $! >/run/pid); read -r pid </run/pid; until [ ! -e /proc/$pid ]; do :; done; echo gone"
    plain(runner.shell(text), "exit 0", b"gone\n")


def test_file_systems(runner):
    guest = runner.shell("for d in proc sys dev dev/pts dev/shm run sys/kernel/tracing sys/kernel/debug sys/fs/bpf sys/fs/cgroup; do "
                         "stat -f -c %T /$d; done; readlink /dev/fd; cat /sys/class/net/lo/flags; stat -f -c %T /")
    names = "proc sysfs tmpfs devpts tmpfs tmpfs tracefs debugfs bpf_fs cgroup2fs /proc/self/fd 0x9 overlayfs".split()
    plain(guest, "exit 0", "".join(f"{name}\n" for name in names).encode())


def test_time_to_the_command(runner):
    guest = runner.shell("dmesg | grep 'vpmu exec: '")
    found = re.findall(r"\[ *([\d.]+)\] vpmu exec: (.*)", guest.out.decode())
    same([text for _, text in found], ["init starts", "the command starts"], "the log")
    took = float(found[1][0]) - float(found[0][0])
    assert took < 5, f"{took:.3f} s from init to the command"
