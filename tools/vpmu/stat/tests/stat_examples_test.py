"""examples for google-benchmark and pytest: counts by the names of benchmarks and tests, without KVM"""

import json
import shutil
import subprocess

import pytest

import fetched as files
from checks import contains, same
from paths import PROGRAM, ROOT

PACKAGES = ("libbenchmark-dev", "python3-pytest")
pytestmark = [pytest.mark.seconds(20)]
EXAMPLES, INCLUDE = ROOT / "tools/vpmu/stat/examples", ROOT / "tools/vpmu/stat/include"


class Bench:
    def __init__(self, kernel, directory):
        self.kernel, self.directory = kernel, directory

    def regions(self, *command):
        done = subprocess.run([PROGRAM, "stat", "--accel", "soft", "--kernel", self.kernel, "--quiet", "-e", "instructions:u,instructions:k", "--json", "counts.json", "--", *command],
                              env=files.environment(), cwd=self.directory, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False)
        same(done.returncode, 0, f"the exit code ({done.stdout:.500} {done.stderr:.500})")
        return {region["label"]: (region["times"], region["events"]["instructions:u"]) for region in json.loads((self.directory / "counts.json").read_text())["regions"]}


@pytest.fixture
def bench(fetched, tmp_path):
    return Bench(fetched, tmp_path)


@pytest.mark.always
def test_google_benchmark(bench):
    subprocess.run(["g++", "-O2", f"-I{INCLUDE}", EXAMPLES / "google_benchmark.cpp", "-o", "bench", "-lbenchmark", "-lpthread"], cwd=bench.directory, check=True)
    regions = bench.regions("./bench")
    same(sorted(regions), ["sort_numbers", "sum_numbers"], "the regions")
    same({label: times for label, (times, _) in regions.items()}, {"sort_numbers": 1, "sum_numbers": 1}, "how often each was begun")
    # At least an addition for each of 1,000 numbers in vectors of 4, in each of 100 iterations; sorting takes more.
    if not 25000 < regions["sum_numbers"][1] < regions["sort_numbers"][1]:
        raise AssertionError(f"instructions: {regions}")
    same(bench.regions("./bench"), regions, "the counts of another run")


def test_pytest(bench):
    shutil.copytree(EXAMPLES / "pytest", bench.directory, dirs_exist_ok=True)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", f"-I{INCLUDE}", "regions.c", "-o", "regions.so"], cwd=bench.directory, check=True)
    command = ("/usr/bin/python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_numbers.py")
    regions = bench.regions(*command)
    same(sorted(regions), ["test_sort[1000]", "test_sort[2000]", "test_sum"], "the regions")
    small, large = (regions[f"test_sort[{n}]"][1] for n in (1000, 2000))
    if not 5000 < small < large < 3 * small:
        raise AssertionError(f"instructions: {regions}")
    same(bench.regions(*command), regions, "the counts of another run")


def test_counters_of_google_benchmark(bench):
    """Debian's library is built without libpfm: it says so, and the regions are there all the same."""
    subprocess.run(["g++", "-O2", f"-I{INCLUDE}", EXAMPLES / "google_benchmark.cpp", "-o", "bench", "-lbenchmark", "-lpthread"], cwd=bench.directory, check=True)
    done = subprocess.run(["./bench", "--benchmark_perf_counters=INSTRUCTIONS", "--benchmark_filter=sum"], cwd=bench.directory, capture_output=True, text=True, check=False)
    contains(done.stdout + done.stderr, "Performance counters not supported", "what google-benchmark says")
    same(sorted(bench.regions("./bench", "--benchmark_perf_counters=INSTRUCTIONS", "--benchmark_filter=sum")), ["sum_numbers"], "the regions")
