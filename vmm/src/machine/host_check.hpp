#pragma once
#include <string>
#include <vector>

namespace vmm {

/// One fact about this host.
struct Finding {
  enum class Verdict {
    good,
    limited,  ///< Guests run; something is slower or missing.
    unfit,    ///< Guests do not run well or at all.
  };
  Verdict verdict;
  std::string subject;
  std::string finding;  ///< What was seen.
  std::string advice;   ///< What to do; empty when good.
};

/// Examines everything that a guest with a virtual PMU needs of this host: the KVM device and its capabilities, the
/// speed of ring-0 code, RDPMC, timers. Runs two tiny guests; takes less than a second. Never fails: what cannot be
/// examined is a finding.
std::vector<Finding> examine_host(const std::string& kvm_device);

/// Whether no finding is unfit.
bool is_fit(const std::vector<Finding>& findings);

}  // namespace vmm
