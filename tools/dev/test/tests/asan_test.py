"""unit tests under ASan and UBSan"""

import pytest

import sanitized

pytestmark = [pytest.mark.full, pytest.mark.seconds(2000)]


def test_all(checks):
    sanitized.unit_tests("asan", checks)
