#include "test_kernel/guest/checks.hpp"
#include "test_kernel/guest/known.hpp"
#include "test_kernel/guest/recorded.hpp"
#include "test_kernel/guest/system_files.hpp"

namespace vmm::tool::checker {
namespace {

constexpr std::uint64_t frontend_retired = 0x01C6;
constexpr std::uint64_t missed_cache = 0x12;  // L1I_MISS. SDM 3B table 18-59
constexpr std::uint64_t line_period = 97;
constexpr unsigned rounds = 10;

}  // namespace

void check_frontend(const Processor& processor, Report& report) {
  if (!processor.frontend) {
    const bool has = exists(core_pmu_path("format/frontend"));
    return report.equal("frontend", "no event", has ? "an event" : "no event");
  }
  perf_event_attr event = sampled(raw_event(frontend_retired, Counts::user), line_period, 2, PERF_SAMPLE_IP);
  event.config1 = missed_cache;
  const Recorded recorded = record(event, [](int fd) { vpmu_known_lines(fd, rounds); });
  const std::uint64_t begin = address_of(vpmu_known_lines_begin), end = address_of(vpmu_known_lines_end);
  // Each line misses in each iteration; the lines around them may miss.
  const std::size_t expected = rounds * (end - begin) / line_bytes / (line_period + 1);
  check_samples(report, "frontend", recorded, expected, "each at a line's begin",
                [begin, end](const Sample& sample, std::size_t) {
                  const bool right = sample.ip >= begin && sample.ip <= end && sample.ip % line_bytes == 0;
                  return right ? std::string{} : "at " + hexadecimal(sample.ip);
                });
}

}  // namespace vmm::tool::checker
