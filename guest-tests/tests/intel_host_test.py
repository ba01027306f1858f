"""an Intel host with a PMU, and test kernels by it

What Linux and the doctor say of the host's PMU, what perf counts with it, and some of the test kernels with each source that works there.
"""

import shlex

import pytest

import guest_kernels
import host_commands
from paths import IMAGES, LINUX, PROGRAM

pytestmark = pytest.mark.seconds(180)

LEVEL = "/proc/sys/kernel/perf_event_paranoid"
# At 3, as Debian sets it, only root may use perf: the broker opens the events of the jailed machine.
LEVELS = (3, 1)
TIMES = 3
PERF = ("Counting.*", "Pmi.*", "MemoryLevels.*", "LoadLatency.*", "GuestDebugging.*")
OURS = ("Pmi.[AC]*", "Rdpmc.*", "GuestDebugging.*", "Interrupts.*", "Nmi.*")
KVMS = ("[C-F]*", "MsrLegality.*", "Pmi.[AC]*", "Rdpmc.*", "Nmi.*")
KERNELS = [*(("perf", tests) for tests in PERF), *((source, tests) for tests in OURS for source in ("clock", "exact"))]


def commands():
    yield "dmesg", 'dmesg | grep "Performance Events"'
    for number in range(TIMES):
        yield f"perf-stat-{number}", f"perf stat -x, -e instructions:u,branches:u {IMAGES}/programs/counted"
    for level in LEVELS:
        yield f"doctor-at-{level}", f"echo {level} >{LEVEL}; {PROGRAM} doctor"
    yield "auto", f"echo 3 >{LEVEL}; {LINUX}/boot-guest --program {PROGRAM} --source auto --run nothing"
    for source, tests in [*KERNELS, *(("kvm", tests) for tests in KVMS)]:
        limit = {"perf": 300, "kvm": 20}.get(source, 60)
        yield f"{source}:{tests}", shlex.join(map(str, guest_kernels.command(source, "--time-limit", limit, "--filter", tests)))


@pytest.fixture(scope="module")
def host(intel, images, kept):
    return host_commands.run_on_intel(kept / "said", dict(commands()))


def test_linux_knows_its_pmu(host):
    assert "PEBS fmt3+, Skylake events, 32-deep LBR, full-width counters, Intel PMU driver" in host["dmesg"].text, host["dmesg"]


@pytest.mark.parametrize("number", range(TIMES))
def test_perf_counts_exactly(host, number):
    said = host[f"perf-stat-{number}"]
    assert [line.split(",")[0] for line in said.text.splitlines()] == ["500005", "100001"], said


@pytest.mark.parametrize("level", LEVELS)
def test_doctor_takes_perf(host, level):
    assert [line for line in host[f"doctor-at-{level}"].text.splitlines() if line.startswith("ok ") and "source auto: perf" in line], host[f"doctor-at-{level}"]


def test_auto_takes_perf(host):
    assert "\nvpmu: source perf" in "\n" + host["auto"].text, host["auto"]


def test_auto_runs(host):
    assert "\nvpmu-host: exit 0" in host["auto"].text, host["auto"]


@pytest.mark.parametrize(("source", "tests"), KERNELS)
def test_kernels(host, checks, source, tests):
    guest_kernels.judge(host[f"{source}:{tests}"], checks)


@pytest.mark.parametrize("tests", KVMS)
def test_kernels_with_kvms_own_pmu(host, checks, tests):
    guest_kernels.judge_kvms_own(host[f"kvm:{tests}"], checks)
