"""vpmu exec on KVM"""

import pytest

from rig import directory_of

EXEC, STAT, PROFILE = (f"tools/vpmu/{command}/tests/{command}_soft_test.py" for command in ("exec", "stat", "profile"))
# In the bed each test takes twice as long as without KVM: only those that KVM makes a difference to.
USUAL = [EXEC, STAT, "-m", "kvm"]
# Of the engine that runs guests without KVM.
NOT_THERE = [f"--deselect={EXEC}::test_{name}" for name in ("turns", "shared_lines", "false_sharing", "features")]
# Counts are not the same each time there: of the other commands those that do not compare two runs.
OF_STAT = [f"{STAT}::test_{name}" for name in ("known_counts", "rise_is_caught", "exit_code", "no_document", "nothing_stays")]
OF_PROFILE = [f"{PROFILE}::test_{name}" for name in (
    "known_function_is_hot", "loads_are_at_their_level", "mispredictions_are_in_the_known_branch", "perf_of_this_machine_reads_it", "story_redis")]
FULL = [EXEC, *NOT_THERE, *OF_STAT, *OF_PROFILE]
PACKAGES = ("redis-tools",)


@pytest.mark.seconds(300)
def test_as_without(bed, images, checks, request):
    full = request.config.option.size == "full"
    passed, skipped, failed = bed.pytest_on_kvm(directory_of("exec-kvm") / "output", FULL if full else USUAL, timeout=5400)
    assert skipped == 0, f"{skipped} skipped"
    checks(passed, [f"{name}: {text}" for name, text in failed.items()])
