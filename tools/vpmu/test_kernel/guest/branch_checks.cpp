#include <array>

#include "test_kernel/guest/checks.hpp"
#include "test_kernel/guest/known.hpp"
#include "test_kernel/guest/recorded.hpp"

namespace vmm::tool::checker {
namespace {

constexpr KnownLoop short_loop{.rounds = 1'000};
constexpr unsigned calls_rounds = 10'000;
constexpr std::uint64_t branch_sample = PERF_SAMPLE_IP | PERF_SAMPLE_BRANCH_STACK;

std::string text_of(const Branch& branch) { return hexadecimal(branch.from) + " to " + hexadecimal(branch.to); }

std::string compare(const Branch& seen, const void* from, const void* to) {
  const Branch right{.from = address_of(from), .to = address_of(to)};
  if (seen.from == right.from && seen.to == right.to) return {};
  return "a branch from " + text_of(seen) + ", not from " + text_of(right);
}

/// The LBR holds the loop's branch in every entry: each sample is preceded by more iterations than there are entries.
void check_last_branches(const Processor& processor, Report& report) {
  perf_event_attr event =
      sampled(hardware_event(PERF_COUNT_HW_INSTRUCTIONS, Counts::user), loop_period, 2, branch_sample);
  event.branch_sample_type = PERF_SAMPLE_BRANCH_USER | PERF_SAMPLE_BRANCH_ANY;
  const Recorded recorded = record(event, [](int fd) {
    std::array<std::uint64_t, 2> memory{};
    vpmu_known_loop(fd, usual_loop.rounds, memory.data());
  });
  if (!processor.known) {
    const bool refused = says_unsupported(recorded.refused);
    return report.check("lbr.branches", refused, "refused", refused ? "refused" : "not refused");
  }
  check_samples(report, "lbr.branches", recorded, usual_loop.instructions() / (loop_period + 1),
                decimal(processor.branches) + " branches of the loop in each",
                [&processor](const Sample& sample, std::size_t) {
                  if (sample.branches.size() != processor.branches)
                    return decimal(sample.branches.size()) + " branches";
                  for (const Branch& branch : sample.branches)
                    if (std::string wrong = compare(branch, vpmu_known_jump, vpmu_known_load); !wrong.empty())
                      return wrong;
                  return std::string{};
                });
}

/// The calls that have not yet returned, the innermost first.
void check_call_stack(const Processor& processor, Report& report) {
  perf_event_attr event =
      sampled(hardware_event(PERF_COUNT_HW_INSTRUCTIONS, Counts::user), loop_period, 0, branch_sample);
  event.branch_sample_type = PERF_SAMPLE_BRANCH_USER | PERF_SAMPLE_BRANCH_CALL_STACK;
  const Recorded recorded = record(event, [](int fd) { vpmu_known_calls(fd, calls_rounds); });
  if (!processor.call_stack) {
    const bool refused = says_unsupported(recorded.refused);
    return report.check("lbr.stack", refused, "refused", refused ? "refused" : "not refused");
  }
  // Three calls, two instructions per iteration, three returns, and four instructions around them.
  const std::size_t expected = (3 + 2 * std::size_t{calls_rounds} + 3 + 4) / loop_period;
  check_samples(report, "lbr.stack", recorded, expected, "the two calls in each",
                [](const Sample& sample, std::size_t) {
                  if (sample.branches.size() < 2) return decimal(sample.branches.size()) + " calls";
                  const std::string inner = compare(sample.branches[0], vpmu_known_inner_call, vpmu_known_inner);
                  return inner.empty() ? compare(sample.branches[1], vpmu_known_outer_call, vpmu_known_outer) : inner;
                });
}

/// BTS: every taken branch, so not the loop's last one.
void check_trace(const Processor& processor, Report& report) {
  const Recorded recorded = record(
      sampled(hardware_event(PERF_COUNT_HW_BRANCH_INSTRUCTIONS, Counts::user), 1, 0, PERF_SAMPLE_IP | PERF_SAMPLE_ADDR),
      [](int fd) {
        std::array<std::uint64_t, 2> memory{};
        vpmu_known_loop(fd, short_loop.rounds, memory.data());
      });
  if (!processor.branch_trace) {
    const bool refused = says_unsupported(recorded.refused);
    return report.check("bts", refused, "refused", refused ? "refused" : "not refused");
  }
  check_samples(report, "bts", recorded, short_loop.rounds - 1, "each of the loop's branch",
                [](const Sample& sample, std::size_t) {
                  return compare({.from = sample.ip, .to = sample.address}, vpmu_known_jump, vpmu_known_load);
                });
}

}  // namespace

void check_branches(const Processor& processor, Report& report) {
  check_last_branches(processor, report);
  check_call_stack(processor, report);
  check_trace(processor, report);
}

}  // namespace vmm::tool::checker
