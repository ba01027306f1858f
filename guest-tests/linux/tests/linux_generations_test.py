"""Linux guests of models, without KVM

What Linux and perf do with the PMUs of CPU models is what facilities.md says.
"""

import pytest

import generations
from rig import directory_of

pytestmark = [pytest.mark.sample(3), pytest.mark.seconds(25)]


@pytest.mark.parametrize(("model", "kernel"), generations.guests_of())
def test_model(model, kernel, images):
    generations.is_as_in_the_table(directory_of("linux-generations"), model, kernel)
