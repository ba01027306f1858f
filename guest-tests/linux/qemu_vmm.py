"""QEMU as the VMM of a Linux guest, alone or with our PMU attached to it: its command line, and what its monitor (QMP) and its gdbstub answer."""

import contextlib
import itertools
import json
import os
import pathlib
import socket
import time

REPO = pathlib.Path(__file__).resolve().parent.parent.parent
CACHE = pathlib.Path(os.environ.get("VPMU_CACHE") or REPO / "build" / "cache")
# What tools/dev/bed/fetch unpacked, by QEMU's version. The first may be empty where the machine has that one.
ROOTS = {"10": CACHE / "qemu", "7.2": CACHE / "qemu7"}
# The smallest one, and what libvirt takes by itself.
MACHINES = {"microvm": "microvm,acpi=on,rtc=on", "q35": "q35"}
# As libvirt starts QEMU: the library has to work within it.
SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
ANSWER_SECONDS = 60
STOP_SECONDS = 2


class QemuError(Exception):
    """QEMU refused a request or did not answer; the text says which."""


def command(version, kernel, memory, cpus, more=(), attached=False, machine="microvm", sandboxed=False):
    """Its serial port is standard input and output."""
    root = ROOTS[version]
    firmware = [word for name in ("qemu", "seabios") for word in ("-L", root / "usr/share" / name)]
    program = root / "usr/bin/qemu-system-x86_64"
    return [
        program if program.exists() else "qemu-system-x86_64", *firmware, "-nodefaults", "-no-user-config", "-nographic",
        "-machine", MACHINES[machine], "-accel", "kvm", "-cpu", "host,pmu=off" if attached else "host", "-smp", cpus, "-m", memory,
        "-kernel", kernel, "-serial", "stdio", *(["-sandbox", SANDBOX] if sandboxed else []), *more,
    ]


def linux(initrd, append):
    """What `more` has for a Linux kernel."""
    return ["-initrd", initrd, "-append", append]


def environment(version, library=None, model=None, source=None, statistics=None):
    """With a library: it is preloaded. Without a model it must do nothing."""
    root = ROOTS[version]
    libraries = [root / part / "x86_64-linux-gnu" for part in ("usr/lib", "lib")]
    result = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, libraries)), "QEMU_MODULE_DIR": str(libraries[0] / "qemu")}
    if library:
        result |= {"LD_PRELOAD": str(library)}
    if model:
        result |= {"VPMU_MODEL": model, "VPMU_SOURCE": source}
    if statistics:
        result |= {"VPMU_STATS": str(statistics)}
    return result


def connect(path):
    """Connects to a UNIX socket at which a QEMU that is starting will listen."""
    for _ in range(ANSWER_SECONDS * 10):
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
            connection.settimeout(ANSWER_SECONDS)
            return connection
        except OSError:
            connection.close()
            time.sleep(0.1)
    raise QemuError(f"QEMU does not listen at {path}")


class Monitor:
    """A client of QEMU's monitor, by QMP."""

    def __init__(self, path):
        self.connection = connect(path)
        self.lines = self.connection.makefile("rw")
        self.events = []
        self.lines.readline()  # the greeting
        self.do("qmp_capabilities")

    def do(self, name, **arguments):
        self.lines.write(json.dumps({"execute": name, "arguments": arguments}) + "\n")
        self.lines.flush()
        while True:
            line = self.lines.readline()
            if not line:
                raise QemuError(f"{name}: QEMU has gone")
            answer = json.loads(line)
            if "error" in answer:
                raise QemuError(f"{name}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]
            self.events.append(answer)

    def human(self, line):
        """Runs a command of the human monitor; returns its answer."""
        return self.do("human-monitor-command", **{"command-line": line})

    def wait_until(self, what, poll):
        """Calls `poll` until it returns true."""
        for _ in range(ANSWER_SECONDS * 10):
            if poll():
                return
            time.sleep(0.1)
        raise QemuError(f"not in {ANSWER_SECONDS} s: {what}")

    def run_job(self, name, **arguments):
        """Runs a command that begins a job; returns when the job has ended well."""
        job = f"job{next(JOBS)}"
        self.do(name, **{"job-id": job}, **arguments)
        self.wait_until(name, lambda: any(j["id"] == job and j["status"] == "concluded" for j in self.do("query-jobs")))
        error = next(j.get("error") for j in self.do("query-jobs") if j["id"] == job)
        self.do("job-dismiss", id=job)
        if error:
            raise QemuError(f"{name}: {error}")


JOBS = itertools.count()


class Debugger:
    """A client of QEMU's gdbstub: the remote serial protocol, as far as a single-step needs it."""

    RIP_OFFSET = 16 * 8  # in the answer to "g", after 16 general-purpose registers

    def __init__(self, path):
        self.connection = connect(path)
        self.rest = b""
        # QEMU 7.2 reports that the guest has stopped for us; QEMU 10 does not.
        self.connection.settimeout(STOP_SECONDS)
        with contextlib.suppress(TimeoutError):
            self.answer()
        self.connection.settimeout(ANSWER_SECONDS)

    def ask(self, text):
        packet = text.encode()
        self.connection.sendall(b"$%s#%02x" % (packet, sum(packet) % 256))
        return self.answer()

    def answer(self):
        while b"#" not in self.rest or len(self.rest) < self.rest.index(b"#") + 3:
            data = self.connection.recv(65536)
            if not data:
                raise QemuError("the gdbstub has gone")
            self.rest += data
        end = self.rest.index(b"#")
        packet, self.rest = self.rest[:end], self.rest[end + 3:]
        self.connection.sendall(b"+")
        return packet.lstrip(b"+").removeprefix(b"$").decode()

    def rip(self):
        registers = bytes.fromhex(self.ask("g"))
        return int.from_bytes(registers[self.RIP_OFFSET:self.RIP_OFFSET + 8], "little")

    def step(self):
        stopped = self.ask("s")
        if not stopped.startswith("T05"):
            raise QemuError(f"a single-step ended with {stopped!r}")

    def detach(self):
        self.ask("D")
        self.connection.close()
