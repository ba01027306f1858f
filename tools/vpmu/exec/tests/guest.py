"""A guest of `vpmu exec` in QEMU: boots, runs one command, and keeps what it said."""

import contextlib
import os
import pathlib
import selectors
import socket
import subprocess
import time

import machine  # where QEMU and the kernels are
from paths import ROOT

LIMIT_SECONDS = 100
PORTS = ("control", "stdin", "stdout", "stderr")
KERNEL = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check random.trust_cpu=on"
CHUNK = 1 << 16


class GuestError(Exception):
    """The guest did not do what each guest does; the text says what."""


class Guest:
    """One boot with one command. `shares` are (tag, directory); `script` is [(what standard output has to begin with, what to do then)]."""

    def __init__(self, kernel, fields, workspace, stdin=b"", shares=(), script=(), rate=None, accel="tcg,thread=multi"):
        self.kernel, self.fields, self.workspace, self.accel = kernel, fields, pathlib.Path(workspace), accel
        self.pending, self.shares, self.script, self.rate = stdin, [("root", "/"), *shares], list(script), rate
        self.received = {name: b"" for name in PORTS}
        self.console = b""
        self.sent_off = False
        self.children = []
        self.ports = {}
        self.selector = selectors.DefaultSelector()

    @property
    def lines(self):
        return self.received["control"].decode().splitlines()

    @property
    def out(self):
        return self.received["stdout"]

    @property
    def err(self):
        return self.received["stderr"]

    @property
    def end(self):
        """The line that says how the command ended."""
        return next((line for line in self.lines if line.split()[0] in ("exit", "killed")), None)

    def say(self, line):
        self.ports["control"].sendall(line.encode() + b"\n")

    def close(self, name):
        port = self.ports.pop(name)
        with contextlib.suppress(KeyError):
            self.selector.unregister(port)
        port.close()

    def run(self):
        """Until the guest has powered off."""
        initramfs = self.workspace / "initramfs"
        program = ROOT / "build/dev/tools/vpmu/exec/tests/exec_initramfs"
        made = subprocess.run([program, self.kernel, initramfs, *self.fields], capture_output=True, text=True, check=False)
        if made.returncode:
            raise GuestError(made.stderr.strip())
        try:
            self.start(initramfs)
            self.serve()
        finally:
            for child in reversed(self.children):
                child.kill()
                child.wait()
            for port in self.ports.values():
                port.close()
        return self

    def spawn(self, command, **options):
        child = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *map(str, command)], stdin=subprocess.DEVNULL, **options)
        self.children.append(child)
        return child

    def listen(self, name):
        path = self.workspace / name
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(1)
        return listener, path

    def start(self, initramfs):
        arguments = []
        for tag, directory in self.shares:
            listener, path = self.listen(f"fs-{tag}")
            self.spawn([machine.CACHE / "virtiofsd/usr/lib/qemu/virtiofsd", f"--fd={listener.fileno()}", "-o", f"source={directory},cache=always,sandbox=chroot"],
                       pass_fds=[listener.fileno()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            listener.close()
            arguments += ["-chardev", f"socket,id={tag},path={path}", "-device", f"vhost-user-fs-pci,chardev={tag},tag={tag}"]
        listeners = {name: self.listen(name) for name in PORTS}
        for name, (_, path) in listeners.items():
            arguments += ["-chardev", f"socket,id={name},path={path}", "-device", f"virtserialport,chardev={name},name=vpmu.{name}"]
        console_read, console_write = os.pipe()
        for directory in machine.firmware_directories():
            arguments = ["-L", directory, *arguments]
        self.qemu = self.spawn([
            machine.qemu_program(), "-nodefaults", "-no-user-config", "-nographic", "-no-reboot", "-machine", "q35,memory-backend=ram,hpet=off",
            "-object", "memory-backend-memfd,id=ram,size=512M,share=on", "-m", "512M", "-smp", "1,maxcpus=2", "-accel", self.accel, "-cpu", "max",
            "-kernel", self.kernel, "-initrd", initramfs, "-append", KERNEL, "-serial", "stdio", "-device", "virtio-serial-pci", *arguments,
        ], stdout=console_write, stderr=console_write, env=machine.qemu_environment())
        os.close(console_write)
        for name, (listener, _) in listeners.items():
            listener.settimeout(LIMIT_SECONDS)
            self.ports[name] = listener.accept()[0]
            listener.close()
            self.watch(name)
        self.selector.register(console_read, selectors.EVENT_READ, "console")

    def watch(self, name):
        port = self.ports[name]
        port.setblocking(name == "control")
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if name == "stdin" and self.pending else 0)
        self.selector.register(port, events, name)

    def serve(self):
        limit = time.monotonic() + LIMIT_SECONDS
        while self.qemu.poll() is None:
            if time.monotonic() > limit:
                raise GuestError(f"no end in {LIMIT_SECONDS} s; it said {self.lines[-3:]}, {len(self.out)} bytes, and on its console: {self.last_words()}")
            for key, events in self.selector.select(timeout=0.5):
                if events & selectors.EVENT_WRITE:
                    self.feed()
                if events & selectors.EVENT_READ:
                    self.take(key)
            self.go_on()
        if self.qemu.returncode or not self.sent_off:
            raise GuestError(f"QEMU ended with code {self.qemu.returncode}; the guest said {self.lines[-3:]}, and on its console: {self.last_words()}")

    def feed(self):
        self.pending = self.pending[self.ports["stdin"].send(self.pending[:CHUNK]):]
        if not self.pending:
            self.selector.modify(self.ports["stdin"], selectors.EVENT_READ, "stdin")

    def take(self, key):
        name = key.data
        if name == "console":
            self.console += os.read(key.fd, CHUNK)
            return
        if name == "stdout" and self.rate:
            time.sleep(CHUNK / self.rate)
        with contextlib.suppress(ConnectionError):
            data = self.ports[name].recv(CHUNK)
            self.received[name] += data
            if data:
                return
        self.close(name)

    def go_on(self):
        while self.script and self.out.startswith(self.script[0][0]) and "started" in self.lines:
            self.script.pop(0)[1](self)
        written = next((line.split()[1:] for line in self.lines if line.startswith("written ")), None)
        if self.end and written and not self.sent_off and self.is_all_here(written):
            self.sent_off = True
            self.say("off")

    def is_all_here(self, written):
        return all(name not in self.ports or len(self.received[name]) >= int(count) for name, count in zip(("stdout", "stderr"), written))

    def last_words(self):
        lines = [line.strip() for line in self.console.decode(errors="replace").splitlines() if line.strip()]
        return " / ".join(lines[-3:]) or "nothing"
