#include <array>
#include <cerrno>

#include "test_kernel/guest/checks.hpp"
#include "test_kernel/guest/event.hpp"
#include "test_kernel/guest/known.hpp"

namespace vmm::tool::checker {
namespace {

constexpr std::uint64_t raw_branches = 0xC4;  // BR_INST_RETIRED.ALL_BRANCHES: umask 0 is the architectural event's

void run(const OpenedEvent& leader) {
  std::array<std::uint64_t, 2> memory{};
  vpmu_known_loop(leader.fd.get(), usual_loop.rounds, memory.data());
}

std::string count_text(const OpenedEvent& event) {
  if (event.is_refused()) return refusal(event.error);
  const auto count = count_of(event);
  return count ? decimal(*count) : "not always counted";
}

void check_count(std::string_view name, std::uint64_t number, std::uint64_t expected, Report& report) {
  const OpenedEvent event = open_event(hardware_event(number, Counts::user));
  if (!event.is_refused()) run(event);
  report.equal(name, decimal(expected), count_text(event));
}

/// The counts of user and kernel mode add up to the count of both.
void check_privilege(Report& report) {
  const std::uint64_t instructions = PERF_COUNT_HW_INSTRUCTIONS;
  const OpenedEvent kernel = open_event(hardware_event(instructions, Counts::kernel));
  const OpenedEvent user = open_event(hardware_event(instructions, Counts::user), kernel.fd.get());
  const OpenedEvent both = open_event(hardware_event(instructions, Counts::both), kernel.fd.get());
  if (!kernel.is_refused()) run(kernel);
  const std::uint64_t in_kernel = count_of(kernel).value_or(0);
  const bool holds = in_kernel > 0 && count_of(user) == usual_loop.instructions() &&
                     count_of(both) == usual_loop.instructions() + in_kernel;
  report.check("count.privilege", holds, decimal(usual_loop.instructions()) + " user + kernel > 0 = both",
               count_text(user) + " user, " + count_text(kernel) + " kernel, " + count_text(both) + " both");
}

/// As many events as there are counters can be scheduled together, and one more is refused.
void check_group(const Processor& processor, Report& report) {
  std::vector<OpenedEvent> events;
  const auto add = [&events](const perf_event_attr& attributes) {
    events.push_back(open_event(attributes, events.empty() ? -1 : events.front().fd.get()));
    return !events.back().is_refused();
  };
  bool opened = true;
  for (unsigned i = 0; i < processor.counters; ++i) opened = opened && add(raw_event(raw_branches, Counts::user));
  opened = opened && add(hardware_event(PERF_COUNT_HW_INSTRUCTIONS, Counts::user));
  opened = opened && add(hardware_event(PERF_COUNT_HW_CPU_CYCLES, Counts::user));
  if (processor.fixed > 2) opened = opened && add(hardware_event(PERF_COUNT_HW_REF_CPU_CYCLES, Counts::user));
  const std::string expected = decimal(processor.counters) + " counts of " + decimal(usual_loop.branches()) + ", " +
                               decimal(processor.fixed) + " fixed ones";
  if (!opened)
    return report.check("count.group", false, expected,
                        "event " + decimal(events.size()) + " " + refusal(events.back().error));
  const OpenedEvent more = open_event(raw_event(raw_branches, Counts::user), events.front().fd.get());
  run(events.front());
  std::string seen;
  unsigned right = 0, fixed = 0;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const auto count = count_of(events[i]);
    const bool general = i < processor.counters;
    right += general && count == usual_loop.branches();
    fixed += !general && count.value_or(0) > 0;
    seen += (i == 0 ? "" : " ") + count_text(events[i]);
  }
  report.check("count.group", right == processor.counters && fixed == processor.fixed, expected, seen);
  report.equal("count.too-many", refusal(EINVAL), more.is_refused() ? refusal(more.error) : "opened");
}

}  // namespace

void check_counting(const Processor& processor, Report& report) {
  check_count("count.instructions", PERF_COUNT_HW_INSTRUCTIONS, usual_loop.instructions(), report);
  check_count("count.branches", PERF_COUNT_HW_BRANCH_INSTRUCTIONS, usual_loop.branches(), report);
  check_privilege(report);
  check_group(processor, report);
}

}  // namespace vmm::tool::checker
