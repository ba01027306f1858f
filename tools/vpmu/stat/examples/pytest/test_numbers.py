import pytest


@pytest.mark.parametrize("n", [1000, 2000])
def test_sort(n):
    assert sorted(range(n, 0, -1))[0] == 1


def test_sum():
    assert sum(range(1000)) == 499500
