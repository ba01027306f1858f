"""Counts of each test, by its name: vpmu stat -- python3 -m pytest -p no:cacheprovider"""

import ctypes
import os
import pathlib

import pytest

LIBRARY = ctypes.CDLL(os.environ.get("VPMU_REGIONS", pathlib.Path(__file__).parent / "regions.so"))


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Only the test's own function is the region, without its fixtures."""
    label = ctypes.create_string_buffer(pyfuncitem.name.encode()[:127])
    LIBRARY.region_begin(label)
    yield
    LIBRARY.region_end()
