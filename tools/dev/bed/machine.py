"""The bed's machine: an emulated AMD host ("L1") whose root is this machine's own root. It runs jobs one after the other."""

import contextlib
import os
import pathlib
import resource
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import time

HERE = pathlib.Path(__file__).resolve().parent
CACHE = pathlib.Path(os.environ.get("VPMU_CACHE") or HERE.parents[2] / "build" / "cache")
EXIT_TIMEOUT = 124
EXIT_BED = 125  # the bed cannot run, or the job's directory does not exist in it
SILENT_SECONDS = 120  # L1 reports every 15 s of its clock
POKE_EVERY_SECONDS = 1
SLOWER_BY_INSTRUCTIONS = 10  # with --by-instructions, L1's clock is at most so many times slower
BOOT_SECONDS = 120  # a machine with all CPUs taken needs many times the usual 3 s
# Boot work that nothing here needs; together a second on the emulated CPU.
SKIPPED_INITCALLS = (
    "load_system_certificate_list", "jent_mod_init", "bpf_tcp_ca_kfunc_init", "bpf_dummy_struct_ops_init", "trace_eval_init",
    "bpf_kfunc_init", "depot_debugfs_init", "latency_fsnotify_init", "param_sysfs_builtin_init",
)
KERNEL_ARGUMENTS = (
    "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check random.trust_cpu=on nmi_watchdog=0 "
    "rcupdate.rcu_expedited=1 initcall_blacklist=" + ",".join(SKIPPED_INITCALLS)
)


class BedError(Exception):
    """The bed cannot run; the text says what failed and what to do."""


def cpio_entry(name, data, mode):
    """One file of a "newc" archive; the kernel unpacks archives that follow each other."""
    path = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    padded = header + path + b"\0" * (-(len(header) + len(path)) % 4)
    return padded + data + b"\0" * (-len(data) % 4)


def job_script(command):
    """The command with this process's directory and environment, as a shell script."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in os.environ.items() if name.isidentifier()]
    lines.append(f"cd {shlex.quote(os.getcwd())} || exit {EXIT_BED}")
    lines.append("exec " + shlex.join(command))
    return "\n".join(lines) + "\n"


def initrd_with(shares, initrd):
    """An L1 initrd followed by an archive with the file /shares; returns it as a memfd."""
    file = os.memfd_create("vpmu-bed-initrd", 0)
    listing = "".join(f"{tag} {directory}\n" for tag, directory in shares)
    with os.fdopen(os.dup(file), "wb") as out:
        base = initrd.read_bytes()
        out.write(base + b"\0" * (-len(base) % 4))
        out.write(cpio_entry("shares", listing.encode(), 0o100644))
        out.write(cpio_entry("TRAILER!!!", b"", 0))
    return file


def qemu_program():
    """The cache's QEMU, or this machine's own if that is already the one from backports."""
    cached = CACHE / "qemu" / "usr" / "bin" / "qemu-system-x86_64"
    program = str(cached) if cached.exists() else shutil.which("qemu-system-x86_64")
    if not program:
        raise BedError("no QEMU: remove " + str(CACHE) + " and run tools/dev/bed/fetch")
    return program


def qemu_environment():
    libraries = [CACHE / "qemu" / part / "x86_64-linux-gnu" for part in ("usr/lib", "lib")]
    modules = CACHE / "qemu/usr/lib/x86_64-linux-gnu/qemu"
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, libraries)), "QEMU_MODULE_DIR": str(modules)}


def firmware_directories():
    return [CACHE / "qemu/usr/share" / name for name in ("qemu", "seabios")] if (CACHE / "qemu/usr/share").exists() else []


def thread_times(children):
    """((pid, tid), (ticks of CPU time, name, state)) of each thread of the children."""
    for name, child in children:
        for thread in sorted(pathlib.Path(f"/proc/{child.pid}/task").glob("*")):
            with contextlib.suppress(OSError):
                comm, _, rest = (thread / "stat").read_text(encoding="ascii", errors="replace").partition("(")[2].rpartition(")")
                fields = rest.split()
                waits = (thread / "wchan").read_text(encoding="ascii").strip("0\n")
                yield (child.pid, thread.name), (int(fields[11]) + int(fields[12]), f"{name} {comm}", f"{fields[0]} {waits}".strip())


class Bed:
    """One L1 machine: QEMU and one virtiofsd per shared directory.

    `options` has cpus, memory, by_instructions, share and console, as tools/dev/bed/run takes them."""

    def __init__(self, options):
        self.options = options
        self.children = []
        self.selector = selectors.DefaultSelector()
        self.console = b""
        self.reports = b""
        self.heard = time.monotonic()  # when L1 last reported that it runs, and that none of its threads keeps waiting for the host
        self.out, self.err = 1, 2  # where a job's output goes
        self.poke_pipe = self.job_pipe = None
        self.poked = 0  # when L1 was last poked
        self.signal = 0
        self.job_ended = False  # by itself, not by a limit or a signal
        self.errors = {}  # name of a child -> what it said on standard error

    def spawn(self, name, command, pass_fds=(), env=None, cwd=None):
        """Starts a child that dies with us and whose own messages are kept."""
        read, write = os.pipe()
        child = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *map(str, command)],
            stdin=subprocess.DEVNULL, stdout=write, stderr=write, pass_fds=pass_fds, env=env, cwd=cwd, start_new_session=True,
        )
        os.close(write)
        self.errors[name] = b""
        self.watch(read, lambda data: self.keep_error(name, data))
        self.children.append((name, child))
        return child

    def keep_error(self, name, data):
        self.errors[name] = (self.errors[name] + data)[-4096:]

    def watch(self, fd, handler, at_end=lambda: None):
        """Passes what arrives at `fd` to the handler; without a handler, the caller reads it."""
        self.selector.register(fd, selectors.EVENT_READ, (handler, at_end))

    def channel(self, handler):
        """A pipe out of QEMU: returns the end for QEMU, and passes what comes through to the handler."""
        read, write = os.pipe()
        self.watch(read, handler)
        return write

    def share(self, tag, directory, cache):
        """Starts virtiofsd for one directory; returns QEMU's arguments for it."""
        address = f"vpmu-bed-{os.getpid()}-{tag}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("\0" + address)
            listener.listen(1)
            program = CACHE / "virtiofsd/usr/lib/qemu/virtiofsd"
            self.spawn(
                f"virtiofsd for {directory}",
                [program, f"--fd={listener.fileno()}", "-o", f"source={directory},cache={cache},sandbox=chroot", "--rlimit-nofile=0",
                 "--thread-pool-size=4"],
                pass_fds=(listener.fileno(),),
            )
        return [
            "-chardev", f"socket,id={tag},path={address},abstract=on",
            "-device", f"vhost-user-fs-pci,chardev={tag},tag={tag},queue-size=1024",
        ]

    def into(self, name, number):
        """A pipe into QEMU: our end, QEMU's, and QEMU's arguments for the port of this number."""
        read, write = os.pipe()
        arguments = ["-chardev", f"file,id={name},path=/dev/null,input-path=/dev/fd/{read}", "-device", f"virtserialport,chardev={name},nr={number}"]
        return write, read, arguments

    def start(self):
        """Begins to boot; run() waits for it."""
        self.boot_limit = time.monotonic() + BOOT_SECONDS
        shares = [(f"share{number}", directory) for number, directory in enumerate(self.options.share)]
        initrd = initrd_with(shares, CACHE / "l1-initrd.img")
        arguments = self.share("root", "/", "always")
        for tag, directory in shares:
            arguments += self.share(tag, directory, "auto")
        ports = [
            ("out", self.channel(lambda data: write_all(self.out, data))),
            ("err", self.channel(lambda data: write_all(self.err, data))),
            ("report", self.channel(self.keep_report)),
        ]
        self.poke_pipe, poke, poke_port = self.into("poke", len(ports) + 1)
        self.job_pipe, job, job_port = self.into("job", len(ports) + 2)
        os.set_blocking(self.poke_pipe, False)
        arguments += poke_port + job_port
        console = self.channel(self.keep_console)
        for number, (name, fd) in enumerate(ports, start=1):
            arguments += ["-chardev", f"file,id={name},path=/dev/fd/{fd}", "-device", f"virtserialport,chardev={name},nr={number}"]
        memory = self.options.memory
        for directory in firmware_directories():
            arguments += ["-L", directory]
        # If there can be only one CPU, QEMU omits the guest's memory barriers and does not lock its locked instructions. But virtiofsd and
        # QEMU's own devices run concurrently with that CPU, and if one side misses a kick, nothing repeats it.
        possible = max(2, int(self.options.cpus))
        # 2 ns per instruction: on an idle machine this clock runs at about a quarter of real time. With more, the kernel's own timers would
        # expire more often per instruction of the command.
        emulation = ["-accel", "tcg,thread=single", "-icount", "shift=1"] if self.options.by_instructions else ["-accel", "tcg,thread=multi"]
        fds = [initrd, console, poke, job, *(fd for _, fd in ports)]
        self.spawn("QEMU", [
            qemu_program(), "-name", "bed,debug-threads=on", "-nodefaults", "-no-user-config", "-nographic", "-no-reboot", "-machine", "q35,memory-backend=ram,hpet=off",
            "-object", f"memory-backend-memfd,id=ram,size={memory},share=on", "-m", memory, "-smp", f"{self.options.cpus},maxcpus={possible}",
            *emulation, "-cpu", "max,+svm,+npt", "-kernel", CACHE / "l1/vmlinux", "-initrd", f"/dev/fd/{initrd}",
            "-append", KERNEL_ARGUMENTS, "-chardev", f"file,id=console,path=/dev/fd/{console}", "-serial", "chardev:console",
            "-device", "virtio-serial-pci", *arguments,
        ], pass_fds=fds, env=qemu_environment())
        for fd in fds:
            os.close(fd)

    def keep_report(self, data):
        self.reports += data
        last = self.last_report()
        if last in ("ready", "started", "alive"):
            self.heard = time.monotonic()

    def last_report(self):
        """The last complete line."""
        lines = self.reports.decode(errors="replace").splitlines(keepends=True)
        return next((line.strip() for line in reversed(lines) if line.endswith("\n")), "nothing")

    def keep_console(self, data):
        if self.options.console:
            write_all(2, data)
        self.console = (self.console + data)[-65536:]

    def watch_signals(self):
        """A signal asks run() to end. Raising from the handler instead could leave a lock of the standard library taken."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _frame: setattr(self, "signal", number))
        self.watch(read, lambda data: None)

    def has(self, report):
        return f"{report}\n".encode() in self.reports

    def run(self, script, limit=None):
        """The exit code of a job, which must end before the time `limit`."""
        while not self.has("ready"):
            self.reported_exit_code()  # raises L1's failure
            if time.monotonic() > self.boot_limit:
                raise BedError(f"L1 did not start within {BOOT_SECONDS} s: {self.last_words()}")
            if (code := self.turn(limit)) is not None:
                return code
        self.reports, self.job_ended = b"", False
        script = script.encode()
        write_all(self.job_pipe, b"%d\n%b" % (len(script), script))
        while (code := self.reported_exit_code()) is None:
            if (code := self.turn(limit)) is not None:
                return code
        self.reports, self.boot_limit, self.job_ended = b"", time.monotonic() + BOOT_SECONDS, True  # L1 now cleans up for the next job
        return code

    def turn(self, limit):
        """Waits for an event, at most a second. Returns an exit code if a signal or the limit ends the job, else None."""
        for key, _ in self.selector.select(timeout=1):
            self.pass_on(key)
        if self.signal:
            return 128 + self.signal
        now = time.monotonic()
        if limit and now > limit and self.reported_exit_code() is None:
            heard = f"L1 was well {now - self.heard:.0f} s ago, its last report: {self.last_report()}"
            write_all(self.err, f"bed: no end in time; stopped (--timeout); {heard}\n".encode())
            return EXIT_TIMEOUT
        self.poke(now)
        if self.has("started") and now > self.heard + self.silent_seconds():
            raise BedError(f"L1 stands still for {self.silent_seconds()} s, its last report: {self.last_report()}; {self.what_children_do()}")
        self.check_children()
        return None

    def poke(self, now):
        """Sends L1 an interrupt. While an interrupt for L1's guest is pending, QEMU's VMRUN occasionally loses a timer interrupt of L1: VMRUN sets a bit in
        the mask of pending interrupts without the lock that other threads take. L1 would sleep forever; any further interrupt also wakes it for the lost one."""
        if self.options.by_instructions or now < self.poked + POKE_EVERY_SECONDS:
            return
        self.poked = now
        with contextlib.suppress(BlockingIOError):
            os.write(self.poke_pipe, b"\n")

    def silent_seconds(self):
        return SILENT_SECONDS * (SLOWER_BY_INSTRUCTIONS if self.options.by_instructions else 1)

    def what_children_do(self):
        """Each thread of QEMU and virtiofsd: its state, what it waits for, and how much of a second it takes."""
        before = dict(thread_times(self.children))
        time.sleep(1)
        ticks = os.sysconf("SC_CLK_TCK")
        told = [f"{name}: {state}, {100 * (spent - before.get(key, (0,))[0]) // ticks} %" for key, (spent, name, state) in thread_times(self.children)]
        return "; ".join(told)

    def check_children(self):
        """L1 ends only when we end it: a child process that has ended is a failure."""
        for name, child in self.children:
            if child.poll() is not None:
                self.drain()
                said = self.errors[name].decode(errors="replace").strip().splitlines()
                raise BedError(f"{name} ended with code {child.returncode}: {said[-1] if said else self.last_words()}")

    def reported_exit_code(self):
        for line in self.reports.decode(errors="replace").splitlines(keepends=True):
            word, _, value = line.strip().partition(" ")
            if line.endswith("\n") and word == "exit":
                self.drain()
                return int(value)
            if line.endswith("\n") and word == "error":
                raise BedError(f"L1: {value}; run with --console to see its kernel's messages")
        return None

    def drain(self):
        while ready := [key for key, _ in self.selector.select(timeout=0) if key.data[0] is not None]:
            for key in ready:
                self.pass_on(key)

    def pass_on(self, key):
        handler, at_end = key.data
        if handler is None:
            return
        data = os.read(key.fd, 65536)
        if data:
            handler(data)
        else:
            self.selector.unregister(key.fd)
            os.close(key.fd)
            at_end()

    def last_words(self):
        lines = [line.strip() for line in self.console.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else "its kernel said nothing; is the machine out of memory or CPU time?"

    def stop(self):
        for _, child in reversed(self.children):  # QEMU first: each virtiofsd ends when its connection does
            child.kill()
            child.wait()


def write_all(fd, data):
    while data:
        data = data[os.write(fd, data):]


def check_machine():
    if os.geteuid() != 0:
        raise BedError("virtiofsd needs root; run as root")
    fetched = subprocess.run([HERE / "fetch"], stdin=subprocess.DEVNULL, stdout=2, check=False)
    if fetched.returncode:
        raise BedError("tools/dev/bed/fetch failed, see above")
    free = next(int(line.split()[1]) for line in open("/proc/meminfo", encoding="ascii") if line.startswith("MemAvailable"))
    if free < 1 << 20:
        raise BedError(f"only {free >> 10} MiB of memory available, the bed needs 1024 MiB; close something and try again")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # virtiofsd holds a descriptor for each file L1 knows
