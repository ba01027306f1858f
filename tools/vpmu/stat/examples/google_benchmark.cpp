// Counts of a benchmark of google-benchmark, by name: c++ -O2 -I INCLUDE google_benchmark.cpp -lbenchmark -lpthread
//
// With a fixed number of iterations the counts are the same on each run.

#include <benchmark/benchmark.h>
#include <vpmu_regions.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace {

/// A region of `vpmu stat`, as long as it lives.
class Region {
 public:
  explicit Region(const char* label) { vpmu_region_begin(label); }
  ~Region() { vpmu_region_end(); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  Region(Region&&) = delete;
  Region& operator=(Region&&) = delete;
};

void sort_numbers(benchmark::State& state) {
  std::vector<unsigned> numbers(static_cast<std::size_t>(state.range(0)));
  const Region region{"sort_numbers"};
  for (auto _ : state) {
    std::iota(numbers.rbegin(), numbers.rend(), 0U);
    std::sort(numbers.begin(), numbers.end());
    benchmark::DoNotOptimize(numbers.data());
  }
}

void sum_numbers(benchmark::State& state) {
  const std::vector<unsigned> numbers(static_cast<std::size_t>(state.range(0)), 3U);
  const Region region{"sum_numbers"};
  for (auto _ : state) benchmark::DoNotOptimize(std::accumulate(numbers.begin(), numbers.end(), 0U));
}

}  // namespace

BENCHMARK(sort_numbers)->Arg(1000)->Iterations(100);
BENCHMARK(sum_numbers)->Arg(1000)->Iterations(100);
BENCHMARK_MAIN();
