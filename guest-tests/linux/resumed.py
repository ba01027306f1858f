"""The Linux guest without KVM, once as a whole, and once saved and restored at many instructions: both must do the same.

Each part is a process of its own (`vpmu run --after N --save FILE`, `vpmu run --restore FILE`).
"""

import json
import subprocess

from paths import PROGRAM

STOPPED = 6  # exit code of `vpmu run`
LIMIT_SECONDS = 600


class Guest:
    """It counts what its model of caches, TLBs and branch predictors sees (guest/misses.sh), or what its model of the pipeline says (guest/cycles.sh). Restored machines are not given `changes` of the model."""

    def __init__(self, directory, kernel, initrd, model="haswell", time="instructions", changes="", script="misses", cpus=2, threads=1):
        self.directory = directory
        self.restored_in_use = 0  # vCPUs that were restored with counters in use
        self.start = ["--accel", "soft", "--kernel", kernel, "--initrd", initrd, "--model", model, "--cpus", cpus, "--threads", threads, "--time", time, *(("--set", changes) if changes else ()),
                      "--append", f"console=ttyS0,115200 panic=-1 quiet sysctl.kernel.perf_cpu_time_max_percent=0 vpmu.run=dmesg,{script},dmesg"]

    def run(self, *what):
        """Returns the exit code, the console, and how long the busiest CPU has run, in what --after counts."""
        console, stats = self.directory / "console", self.directory / "stats"
        command = [PROGRAM, "run", *what, "--source", "exact", "--console", console, "--stats", stats]
        ended = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=LIMIT_SECONDS, check=False, text=True)
        assert ended.returncode in (0, STOPPED), f"exit code {ended.returncode}: {ended.stderr}"
        counters = json.loads(stats.read_text(encoding="ascii"))["vcpus"]
        self.restored_in_use += sum(vcpu["pmu.restores_in_use"] > 0 for vcpu in counters)
        return ended.returncode, console.read_bytes(), max(vcpu["soft.ticks"] for vcpu in counters)

    def run_in_parts(self, moments):
        console, start, image = b"", self.start, self.directory / "image"
        for number, moment in enumerate(moments):
            code, text, _ = self.run(*start, "--after", moment, "--save", f"{image}.{number}")
            assert code == STOPPED, f"it ended before {moment} ticks: exit code {code}"
            console += text
            if number > 0:
                (self.directory / f"image.{number - 1}").unlink()
            start = ["--restore", f"{image}.{number}"]
        code, text, _ = self.run(*start)
        return code, console + text


def does_the_same_in_parts(guest, parts=12, behind_percent=0):
    """All parts but the first are behind that much of the run, which is the boot."""
    code, whole, ticks = guest.run(*guest.start)
    assert code == 0 and b"vpmu-guest: done" in whole, f"exit code {code}"
    counts = [int(line.split()[-1]) for line in whole.splitlines() if line.startswith((b"vpmu-guest: missed ", b"vpmu-guest: took "))]
    assert len(counts) in (4, 14) and sum(count > 500 for count in counts) >= 4, counts
    # An odd number of instructions: no turn, timer or burst ends there.
    behind = ticks * behind_percent // 100
    code, in_parts = guest.run_in_parts([behind + (ticks - behind) * part // parts | 1 for part in range(1, parts)])
    assert guest.restored_in_use > 1, guest.restored_in_use
    assert code == 0, f"exit code {code}"
    differs = next((n for n, lines in enumerate(zip(whole.splitlines(), in_parts.splitlines())) if lines[0] != lines[1]), None)
    assert in_parts == whole, f"line {differs} differs, of {len(whole)} and {len(in_parts)} bytes"
