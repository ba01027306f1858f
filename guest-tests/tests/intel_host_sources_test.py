"""all test kernels on Intel hosts

With each source; with late PMIs; on a host of another generation than the guest; and with the perf source while others count on the host, while they leave it no counter, and for a user without privileges.
"""

import shlex

import pytest

import guest_kernels
import host_commands
from paths import PROGRAM
from rig import directory_of

pytestmark = pytest.mark.full

# The source, the host's options, and the runner's.
RUNS = {
    "perf": ("perf", {}, []),
    "clock": ("clock", {}, []),
    "exact": ("exact", {}, []),
    "kvm": ("kvm", {}, []),
    "late": ("perf", {"skid": 100, "cycles": 3}, []),
    "haswell-host": ("perf", {"host_model": "haswell"}, []),
    "haswell-guest": ("perf", {}, ["--model", "haswell"]),
}


@pytest.mark.seconds(400)
@pytest.mark.parametrize("name", RUNS)
def test_kernels(intel, bed, checks, name):
    source, of_host, options = RUNS[name]
    limit = 20 if source == "kvm" else 300  # one test never ends with KVM's own PMU
    ended = bed.on_intel(directory_of("intel-host-sources") / name, guest_kernels.command(source, "--time-limit", limit, *options), **of_host)
    if source == "kvm":
        guest_kernels.judge_kvms_own(ended, checks)
    else:
        guest_kernels.judge(ended, checks)


LEVEL, WATCHDOG = "/proc/sys/kernel/perf_event_paranoid", "/proc/sys/kernel/nmi_watchdog"
DOCTOR = f"{PROGRAM} doctor"
SOME_KERNELS = shlex.join(map(str, guest_kernels.command("perf", "--time-limit", 100, "--filter", "Pmi.[A-C]*")))
AS_A_USER = "setpriv --reuid nobody --clear-groups --bounding-set=-all --inh-caps=-all"


def session(events):
    return f"perf stat -a -e {events} sleep 100000 2>/dev/null & session=$!; sleep 1"


BESIDE = {
    "watchdog": f"echo 1 >{LEVEL}; echo 1 >{WATCHDOG}; {DOCTOR}",
    "kernels-watchdog": SOME_KERNELS,
    "session": f"echo 0 >{WATCHDOG}; {session('cycles,instructions,branches')}; {DOCTOR}",
    "kernels-session": SOME_KERNELS,
    "greedy-session": f"kill $session; {session('instructions:D,cycles:D,ref-cycles:D,r01d1:D,r02d1:D,r04d1:D,r08d1:D')}; {DOCTOR}",
    "user-at-1": f"kill $session; chmod 666 /dev/kvm; {AS_A_USER} {DOCTOR}",
    "user-at-2": f"echo 2 >{LEVEL}; {AS_A_USER} {DOCTOR}",
}
TAKEN = {
    "watchdog": ["auto: perf"],
    "session": ["auto: perf"],
    "greedy-session": ["auto: clock", "counters are shared"],
    "user-at-1": ["auto: perf"],
    "user-at-2": ["auto: clock", "Permission denied"],
}


@pytest.fixture(scope="module")
def host(intel, kept):
    return host_commands.run_on_intel(kept / "beside", BESIDE)


@pytest.mark.seconds(60)
@pytest.mark.parametrize("name", TAKEN)
def test_doctor_takes(host, name):
    """With a greedy session no counter is left."""
    words = TAKEN[name]
    lines = [line for line in host[name].text.splitlines() if "source auto" in line]
    assert any(all(word in line for word in words) for line in lines), f"no line with {words}: {host[name]}"


@pytest.mark.parametrize("beside", ["watchdog", "session"])
def test_kernels_beside(host, checks, beside):
    guest_kernels.judge(host[f"kernels-{beside}"], checks)
