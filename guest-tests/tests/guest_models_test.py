"""test kernels on models, without KVM"""

import pytest

import guest_kernels
from paths import models
from rig import directory_of

pytestmark = [pytest.mark.sample(6), pytest.mark.seconds(15)]


# The last one has no SMT.
@pytest.mark.parametrize(("model", "threads"), [*((model, 2) for model in models()), ("haswell", 1)])
def test_all(model, threads, checks):
    ended = guest_kernels.without_kvm(directory_of("guest-models") / f"{model}.{threads}", f"--model={model}", f"--threads={threads}")
    guest_kernels.judge(ended, checks)
