"""unit tests on KVM"""

import re

import pytest

from rig import directory_of

pytestmark = pytest.mark.seconds(100)

# What is written to files in the bed is lost.
SCRIPT = """report=$(mktemp)
ctest --preset dev -R '(^Kvm|OnKvm)' --timeout 120 --no-tests=error --output-junit "$report"
code=$?
cat "$report"
rm "$report"
exit $code"""


# KVM is there, so that a skipped test is a failure.
def test_all(bed, checks):
    ended = bed.on_kvm(directory_of("kvm") / "said", ["sh", "-c", SCRIPT], timeout=900)
    found = re.search(r"<\?xml.*</testsuite>", ended.text, re.S)
    assert found, f"no report of CTest: {ended}"
    passed, skipped, failed = bed.outcomes_of(found[0])
    checks(passed, [f"{name.partition('::')[0]}: {text}" for name, text in failed.items()])
    assert skipped == 0, f"{skipped} skipped: {ended}"
    assert ended.code == 0, f"no test has failed, but: {ended}"
