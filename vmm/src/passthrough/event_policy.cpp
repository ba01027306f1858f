#include "passthrough/event_policy.hpp"

#include <linux/kvm.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "files/input_file.hpp"

namespace vmm {
namespace {

/// The largest file of events: max_events lines with some 3 KiB of comment for each.
constexpr std::uint64_t max_policy_bytes = 1U << 20U;

// From kernels newer than Debian 12's headers: KVM's api.rst, 4.120 KVM_SET_PMU_EVENT_FILTER.
constexpr std::uint32_t cap_masked_events = 226;  // Linux 6.3
constexpr std::uint32_t flag_masked_events = 1;

/// SDM 3B table 18-1.
const std::vector<std::uint16_t> architectural_codes{0x003C, 0x013C, 0x00C0, 0x4F2E, 0x412E, 0x00C4, 0x00C5};
/// OFFCORE_RESPONSE of both MSRs, under the codes that it had until and since Alder Lake and Sapphire Rapids.
const std::vector<std::uint16_t> off_core{0xB7, 0xBB, 0x2A, 0x2B};

template <class Number>
bool read_number(std::string_view text, int base, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return error == std::errc{} && end == text.data() + text.size();
}

/// One line without its comment; false when it is no event.
bool add(std::string_view line, EventPolicy& policy) {
  constexpr unsigned fixed_counters_known = 32;
  constexpr std::string_view fixed = "fixed ";
  if (line.starts_with('r') && line.size() == 5) return read_number(line.substr(1), 16, policy.events.emplace_back());
  unsigned counter = 0;
  if (!line.starts_with(fixed) || !read_number(line.substr(fixed.size()), 10, counter) ||
      counter >= fixed_counters_known)
    return false;
  policy.fixed_counters |= 1U << counter;
  return true;
}

std::string_view without_comment(std::string_view line) {
  line = line.substr(0, line.find('#'));
  const auto first = line.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
}

Result<EventPolicy> read_file(const std::string& path) {
  const std::string choice = "give --events all, architectural, standard, or a file with lines like r00c0 and fixed 0";
  VMM_ASSIGN(const auto bytes, read_whole_file(path, {.what = "the event policy", .advice = choice}, max_policy_bytes));
  std::istringstream file{std::string{reinterpret_cast<const char*>(bytes.data()), bytes.size()}};
  EventPolicy policy{.rule = EventPolicy::Rule::nothing_but};
  std::string line;
  for (unsigned number = 1; std::getline(file, line); ++number) {
    const std::string_view text = without_comment(line);
    if (!text.empty() && !add(text, policy))
      return usage_error(fmt::format("{} line {}: \"{}\" is not an event", printable(path), number, printable(line)),
                         choice);
    if (policy.events.size() > EventPolicy::max_events)
      return usage_error(
          fmt::format("{} line {}: more than {} events", printable(path), number, EventPolicy::max_events),
          "KVM takes no more; leave out some");
  }
  return policy;
}

/// kvm_pmu_event_filter ends in a flexible array of 64-bit words.
std::vector<std::uint64_t> native(const EventPolicy& policy) {
  constexpr std::size_t head_words = sizeof(kvm_pmu_event_filter) / sizeof(std::uint64_t);
  std::vector<std::uint64_t> words(head_words);
  const bool deny = policy.rule == EventPolicy::Rule::everything_but;
  auto& head = *reinterpret_cast<kvm_pmu_event_filter*>(words.data());
  head.action = deny ? KVM_PMU_EVENT_DENY : KVM_PMU_EVENT_ALLOW;
  head.nevents = static_cast<std::uint32_t>(policy.events.size());
  head.fixed_counter_bitmap = policy.fixed_counters;
  head.flags = deny ? flag_masked_events : 0;
  // A masked event without bits in its mask stands for all unit masks.
  for (const std::uint16_t event : policy.events) words.push_back(deny ? event & 0xFFU : event);
  return words;
}

}  // namespace

Result<EventPolicy> read_event_policy(const std::string& name) {
  constexpr std::uint32_t every_fixed_counter = 0xFFFF'FFFF;
  if (name == "all") return EventPolicy{};
  if (name == "architectural")
    return EventPolicy{
        .rule = EventPolicy::Rule::nothing_but, .events = architectural_codes, .fixed_counters = every_fixed_counter};
  if (name == "standard") return EventPolicy{.rule = EventPolicy::Rule::everything_but, .events = off_core};
  return read_file(name);
}

Result<void> apply(const EventPolicy& policy, Vm& vm) {
  if (policy.rule == EventPolicy::Rule::everything) return {};
  if (vm.check(KVM_CAP_PMU_EVENT_FILTER) == 0)
    return host_error("this KVM has no filter of PMU events (KVM_CAP_PMU_EVENT_FILTER)", 0,
                      "use Linux 5.3 or later, or give --events all");
  if (policy.rule == EventPolicy::Rule::everything_but && vm.check(cap_masked_events) == 0)
    return host_error("this KVM's filter of PMU events knows no masks (KVM_CAP_PMU_EVENT_MASKED_EVENTS)", 0,
                      "use Linux 6.3 or later, or give --events architectural or a file");
  std::vector<std::uint64_t> words = native(policy);
  return vm.set_pmu_event_filter(*reinterpret_cast<kvm_pmu_event_filter*>(words.data()));
}

}  // namespace vmm
