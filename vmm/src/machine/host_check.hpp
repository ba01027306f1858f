#pragma once
#include <functional>
#include <string>
#include <vector>

#include "machine/probe_guest.hpp"
#include "support/result.hpp"

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

/// Whether this KVM runs ring-0 code as fast as a CPU does. The first measurement after a host's boot may be a hundred
/// times too slow, so `measure` is called again, up to max_measurements times, until one shows that it does. The
/// finding is about the best one.
inline constexpr unsigned max_measurements = 5;
Finding judge_speed(const std::function<Result<SpeedComparison>()>& measure);

/// Examines everything that a guest with a virtual PMU needs of this host: the KVM device and its capabilities, the
/// speed of ring-0 code, RDPMC, timers. Runs some tiny guests; takes less than a second. Never fails: what cannot be
/// examined is a finding.
std::vector<Finding> examine_host(const std::string& kvm_device);

/// Whether this process may use the host's counters. Never unfit: guests run without them.
Finding examine_host_pmu();

/// Whether no finding is unfit.
bool is_fit(const std::vector<Finding>& findings);

}  // namespace vmm
