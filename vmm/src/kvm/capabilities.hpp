#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "kvm/system.hpp"
#include "support/result.hpp"

namespace vmm {

enum class Need : std::uint8_t {
  required,  ///< Without it no guest runs.
  optional,  ///< Without it something is slower or missing; `use` says what.
};

/// One KVM capability that we ask for.
struct CapabilityRow {
  std::uint32_t number;
  std::string_view name;  ///< As <linux/kvm.h> spells it.
  Need need;
  std::string_view use;  ///< What it is for, and since which kernel it exists.
};

/// What the probe found for one row.
struct CapabilityAnswer {
  const CapabilityRow* row;
  int value;  ///< KVM_CHECK_EXTENSION's answer; 0 = absent.
};

/// Asks for every capability we know. Cost: about twenty system calls.
std::vector<CapabilityAnswer> probe_capabilities(const System& system);

/// Fails (kind host) on the first required capability that is absent, and names it.
Result<void> require_capabilities(const System& system);

}  // namespace vmm
