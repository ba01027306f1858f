"""threads' unit tests under TSan"""

import pytest

import sanitized

pytestmark = [pytest.mark.full, pytest.mark.seconds(1000)]


def test_all(checks):
    sanitized.unit_tests("tsan", checks, "-L", "threads")
