"""kvm-unit-tests, Linux's x86 selftests and perf_event_tests, without KVM

From the directories that environment variables name. The results as tables stay in build/logs/test/public-tests.
"""

import os

import pytest

import results
from paths import PROGRAM
from public_suites import VARIABLES, Given, checked
from rig import directory_of

SUITES = [pytest.param(suite, marks=pytest.mark.skipif(not os.environ.get(variable), reason=f"{suite}: {variable} names no directory")) for suite, variable in VARIABLES.items()]


@pytest.mark.seconds(600)
@pytest.mark.parametrize("suite", SUITES)
def test_suite(suite, fetched, checks):
    rows = []
    seen = list(checked(suite, Given(PROGRAM), rows))
    (directory_of("public-tests") / f"{suite}.md").write_text(results.table(rows))
    checks(sum(ok for ok, _ in seen), [text for ok, text in seen if not ok])
