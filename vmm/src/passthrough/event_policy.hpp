#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kvm/vm.hpp"
#include "support/result.hpp"

namespace vmm {

/// Which events a guest may count with KVM's own PMU; KVM counts nothing for the others. KVM_SET_PMU_EVENT_FILTER,
/// Linux 5.3.
struct EventPolicy {
  enum class Rule : std::uint8_t {
    everything,
    nothing_but,     ///< `events` and `fixed_counters`.
    everything_but,  ///< The event codes `events`, whatever their unit masks.
  };
  Rule rule{};
  std::vector<std::uint16_t> events;  ///< UMASK and event code, as in PERFEVTSEL[15:0].
  std::uint32_t fixed_counters{};     ///< Bit n: fixed counter n.
  friend bool operator==(const EventPolicy&, const EventPolicy&) = default;

  static constexpr std::size_t max_events = 300;  ///< KVM takes no more.
};

/// What `name` stands for: `all`; `architectural`, the events of SDM 3B table 18-1 and the fixed counters; `standard`,
/// all but the off-core response events, which reveal other tenants' use of caches and memory; or the path of a file
/// with a line for each event that may be counted: `rUUEE` (perf's raw form, hexadecimal) or `fixed N`; # begins a
/// comment. Fails with kind usage, naming the line.
Result<EventPolicy> read_event_policy(const std::string& name);

/// Sets the policy in KVM, before the first vCPU. Fails with kind host if KVM is too old for the policy.
Result<void> apply(const EventPolicy& policy, Vm& vm);

}  // namespace vmm
