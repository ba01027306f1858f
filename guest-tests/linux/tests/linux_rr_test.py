"""rr in a Linux guest

With KVM and without. Not on models like Nehalem and Haswell, on which Linux takes no period below 32: rr 5.6 asks for 1.
"""

import pytest

import console_log
import linux_guests
import suites

pytestmark = [pytest.mark.some_of(2, among="Linux guests on KVM"), pytest.mark.sample(1), pytest.mark.seconds(90)]
SECONDS = 1800


@pytest.fixture(scope="module", params=["sandybridge", "broadwell", "skylake"])
def runs(request, bed, images, kept):
    """What the guests say, by what runs them. Few rounds in each guest of the bed: when the bed breaks down, only that guest's rounds are repeated."""
    guests, rounds, soft_rounds = (5, 4, 20) if request.config.option.size == "full" else (1, 1, 2)
    model = request.param
    arguments = ["--model", model, "--initrd", images / "profilers.img", "--run", "rr,gdb,dmesg", "--append"]
    consoles = {f"kvm-{guest}": linux_guests.on_kvm(kept / f"{model}.{guest}", "--source", "exact", *arguments, f"vpmu.rounds={rounds}", timeout=SECONDS) for guest in range(guests)}
    consoles["soft"] = linux_guests.without_kvm(kept / f"{model}.soft", *arguments, f"vpmu.rounds={soft_rounds}", timeout=SECONDS)
    return {name: console_log.parse(console) for name, console in consoles.items()}


@pytest.mark.parametrize("accel", ["kvm", "soft"])
@pytest.mark.parametrize("check", suites.names("rr"))
def test_guest(runs, accel, check):
    of_accel = [name for name in runs if name.startswith(accel)]
    assert of_accel
    for name in of_accel:
        suites.judge("rr", check, runs[name])
