"""The bed's other machine: an emulated Intel host with a PMU, in Bochs. See intel/README.md."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import machine

sys.path.insert(0, str(machine.HERE / "intel"))
import boot_image  # noqa: E402

INTEL = machine.CACHE / "intel"
BOOT_SECONDS = 300
FIRST_DIRECTORY = 4  # channel of the root; those of shares follow
MOST_CHANNELS = 8
CPUS = {  # Bochs's CPU model for each generation, for what CPUID reports apart from the PMU and the signature
    "nehalem": "corei5_lynnfield_750", "westmere": "corei5_arrandale_m520", "sandybridge": "corei7_sandy_bridge_2600k",
    "ivybridge": "corei7_ivy_bridge_3770k", "haswell": "corei7_haswell_4770", "broadwell": "broadwell_ult", "skylake": "broadwell_ult",
}
SIGNATURES = {
    "nehalem": 0x106E5, "westmere": 0x20655, "sandybridge": 0x206A7, "ivybridge": 0x306A9, "haswell": 0x306C3, "broadwell": 0x306D4, "skylake": 0x506E3,
}
KERNEL_ARGUMENTS = (
    "console=ttyS0,115200 panic=-1 mitigations=off nokaslr tsc=reliable lpj=4000000 no_timer_check random.trust_cpu=on nmi_watchdog=0 mce=off "
    "rcupdate.rcu_expedited=1 i8042.noaux i8042.nokbd initcall_blacklist=" + ",".join(machine.SKIPPED_INITCALLS)
)
BOCHSRC = """\
display_library: nogui
config_interface: textconfig
megs: {megs}
cpu: model={cpu}, count=1, ips=1000000000, reset_on_triple_fault=0, ignore_bad_msrs=1, cpuid_limit_winnt=0
romimage: file={bios}, options=fastboot
vgaromimage: file={vga_bios}
vga: extension=none, update_freq=1
floppya: 1_44={floppy}, status=inserted
boot: floppy
com1: enabled=1, mode=file, dev=/dev/fd/{console}
clock: sync=none, time0=1700000000
log: {work}/log
panic: action=fatal
error: action=ignore
info: action=ignore
debug: action=ignore
"""


def bytes_of(memory):
    match = re.fullmatch(r"(\d+)([MG])", memory)
    if not match or not 512 <= (megs := int(match[1]) * (1024 if match[2] == "G" else 1)) <= 2048:
        raise machine.BedError(f"--memory {memory}: the Intel host takes 512M to 2G")
    return megs << 20


class IntelBed(machine.Bed):
    """One L1 machine: Bochs, and one 9P server per directory. `options` has those of machine.Bed, host_model, skid, cycles, seed and warm."""

    def __init__(self, options):
        super().__init__(options)
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="vpmu-bed-"))

    def serve(self, directory, writable):
        """Starts a 9P server. Returns our ends of its pipes: the one to read from, and the one to write to."""
        to_server, to_us = os.pipe(), os.pipe()
        program = (INTEL / "diod/usr/sbin/diod").absolute()
        libraries = [INTEL.absolute() / "diod" / part / "x86_64-linux-gnu" for part in ("usr/lib", "lib")]
        self.spawn(
            f"diod for {directory}",
            [program if program.exists() else shutil.which("diod"), "-f", "-n", "-c", "/dev/null", "-L", "stderr", "-e", directory, "-o", "sharefd" if writable else "ro", "-r", str(to_server[0]), "-w",
             str(to_us[1])],
            pass_fds=(to_server[0], to_us[1]), env={**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, libraries))},
            cwd=self.work,  # diod dumps core in its working directory, whatever the limit for core files is
        )
        os.close(to_server[0])
        os.close(to_us[1])
        return to_us[0], to_server[1]

    def start(self):
        self.boot_limit = machine.time.monotonic() + BOOT_SECONDS
        options = self.options
        if options.cpus != "1":
            raise machine.BedError(f"--cpus {options.cpus}: the Intel host has one")
        if len(options.share) > MOST_CHANNELS - FIRST_DIRECTORY - 1:
            raise machine.BedError(f"{len(options.share)} shares are too many for the Intel host")
        shares = [(f"share{number}", directory) for number, directory in enumerate(options.share)]
        with os.fdopen(machine.initrd_with(shares, INTEL / "l1-initrd.img"), "rb") as made:
            made.seek(0)
            initrd = made.read()
        memory = bytes_of(options.memory)
        arguments = KERNEL_ARGUMENTS + ("" if options.console else " quiet")
        floppy, images = boot_image.write(self.work, INTEL / "l1/vmlinux", memory, arguments, initrd)
        job, self.job_pipe = os.pipe()
        channels = [
            (job, -1),
            (-1, self.channel(lambda data: machine.write_all(self.out, data))),
            (-1, self.channel(lambda data: machine.write_all(self.err, data))),
            (-1, self.channel(self.keep_report)),
            self.serve("/", writable=False),
            *(self.serve(directory, writable=True) for directory in options.share),
        ]
        console = self.channel(self.keep_console)
        fds = [console, *(fd for ends in channels for fd in ends if fd >= 0)]
        text = BOCHSRC.format(megs=memory >> 20, cpu=CPUS[options.host_model], bios=INTEL / "bios.bin", vga_bios=INTEL / "vgabios.bin",
                              floppy=floppy, console=console, work=self.work)
        text += "".join(f"optramimage{number}: file={file}, address={at:#x}\n" for number, (file, at) in enumerate(images, start=1))
        (self.work / "bochsrc").write_text(text, encoding="utf-8")
        environment = {
            **os.environ, "BED_MODEL": options.host_model, "BED_SIGNATURE": f"{SIGNATURES[options.host_model]:x}",
            "BED_CHANNELS": ",".join(f"{i}:{o}" for i, o in channels),
            "BED_SKID": str(options.skid), "BED_CYCLES": str(options.cycles), "BED_SEED": str(options.seed), "BED_WARM": str(int(options.warm)),
        }
        self.spawn("Bochs", [INTEL / "bochs", "-q", "-f", self.work / "bochsrc"], pass_fds=fds, env=environment)
        for fd in fds:
            os.close(fd)

    def poke(self, now):
        pass  # Bochs loses no timer interrupt

    def silent_seconds(self):
        return float("inf")  # L1's clock follows its instructions, at no fixed rate of real time

    def stop(self):
        super().stop()
        shutil.rmtree(self.work, ignore_errors=True)


def check_machine():
    if subprocess.run([machine.HERE / "fetch", "intel"], stdin=subprocess.DEVNULL, stdout=2, check=False).returncode:
        raise machine.BedError("tools/dev/bed/fetch intel failed, see above")
