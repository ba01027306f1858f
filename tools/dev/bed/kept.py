"""Beds that stay between commands: tools/dev/bed/keep makes a directory for them and names it in VPMU_BEDS; tools/dev/bed/run takes a free bed or starts another.

Each bed has a number N there: its current user holds N.lock, its server listens at N.socket, and N.kind has the options that it was started with. A
server ends when no process holds the FIFO `alive` open for writing any more: that is when tools/dev/bed/keep ends, in whatever way.

A client sends one line of JSON, together with the descriptors of its standard output and error; the server answers with one line: "exit CODE" or
"error TEXT". If the client disconnects, or its command exceeds its time limit, the bed ends, too.
"""

import array
import contextlib
import fcntl
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import types

import machine

START_SECONDS = 20  # until a server listens: it is a Python program, on a machine that may be busy
MOST = 64  # beds of one directory


def directory():
    return os.environ.get("VPMU_BEDS", "")


def wanted(options):
    """Whether there is a directory of kept beds, and this bed can be kept. A bed that counts instructions serves one measurement only."""
    return bool(directory()) and not options.by_instructions and not options.console and options.host == "amd"


def kind_of(options):
    return json.dumps([options.cpus, options.memory, options.share])


def take(options):
    """The path of a free bed, without suffix, and its lock; those of a new bed if none of this kind is free."""
    for number in range(MOST):
        base = pathlib.Path(directory()) / str(number)
        lock = os.open(f"{base}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            kind = base.with_suffix(".kind")
            if not kind.exists() or not connects(base):
                start(options, base)
            if kind.read_text(encoding="utf-8") == kind_of(options):
                return base, lock
        os.close(lock)
    raise machine.BedError(f"{MOST} beds are in use or of another kind; end some")


def connects(base):
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"{base}.socket")
        return True
    except OSError:
        return False


def start(options, base):
    """Starts a server, which boots a bed."""
    machine.check_machine()
    pathlib.Path(f"{base}.socket").unlink(missing_ok=True)
    what = {"cpus": options.cpus, "memory": options.memory, "share": options.share, "console": False, "by_instructions": False}
    with open(f"{base}.log", "wb") as log:
        subprocess.Popen([sys.executable, __file__, base, json.dumps(what)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    base.with_suffix(".kind").write_text(kind_of(options), encoding="utf-8")
    limit = time.monotonic() + START_SECONDS
    while not connects(base):
        if time.monotonic() > limit:
            raise machine.BedError(f"its server does not listen after {START_SECONDS} s at {base}.socket")
        time.sleep(0.05)


def run(options, script, limit):
    """The exit code of the job, in a kept bed."""
    base, lock = take(options)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"{base}.socket")
            seconds = max(0.1, limit - time.monotonic()) if limit else 0
            request = json.dumps({"script": script, "seconds": seconds}).encode() + b"\n"
            connection.sendmsg([request[:1]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1, 2]))])
            connection.sendall(request[1:])
            with connection.makefile() as answers:
                word, _, value = answers.readline().strip().partition(" ")
    except OSError as error:
        raise machine.BedError(f"its server at {base}.socket: {error}") from error
    finally:
        os.close(lock)
    if word != "exit":
        raise machine.BedError(value or "its server has ended")
    return int(value)


class Server:
    """Serves one client after the other."""

    def __init__(self, base, options):
        self.bed = machine.Bed(types.SimpleNamespace(**options))
        self.bed.watch_signals()
        self.bed.watch(os.open(pathlib.Path(base).parent / "alive", os.O_RDONLY | os.O_NONBLOCK), lambda data: None, self.end)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(f"{base}.socket")
        self.listener.listen()
        self.listener.setblocking(False)
        self.bed.watch(self.listener.fileno(), None)  # so that turn() ends when a client comes

    def end(self):
        """Called when tools/dev/bed/keep or the client has gone: ends the job."""
        self.bed.signal = self.bed.signal or signal.SIGTERM

    def serve(self):
        self.bed.start()
        fit = True
        while fit and self.bed.turn(None) is None:
            with contextlib.suppress(BlockingIOError):
                connection, _ = self.listener.accept()
                with connection:
                    fit = self.answer(connection)

    def answer(self, connection):
        """False: the bed can run no further job."""
        connection.setblocking(True)
        first, fds, _flags, _address = socket.recv_fds(connection, 1, 2)
        if not first:
            return True  # the client only wanted to know whether this server runs
        with connection.makefile() as lines:
            request = json.loads(first.decode() + lines.readline())
        self.bed.out, self.bed.err = fds
        gone = os.dup(connection.fileno())
        self.bed.watch(gone, lambda data: None, self.end)
        limit = time.monotonic() + request["seconds"] if request["seconds"] else None
        try:
            code = self.bed.run(request["script"], limit)
            if not self.bed.signal:
                self.bed.selector.unregister(gone)
                os.close(gone)
            connection.sendall(f"exit {code}\n".encode())
        except (machine.BedError, BrokenPipeError) as error:
            with contextlib.suppress(OSError):
                connection.sendall(f"error {error}\n".encode())
            return False
        finally:
            for fd in fds:
                os.close(fd)
        return self.bed.job_ended


def main():
    server = Server(sys.argv[1], json.loads(sys.argv[2]))
    try:
        server.serve()
    finally:
        server.bed.stop()


if __name__ == "__main__":
    main()
