#pragma once
#include <string>

#include "support/result.hpp"

namespace vmm::tool {

/// Which guest tests run on this host, and how.
struct SelftestOptions {
  std::string kvm_device{"/dev/kvm"};
  bool on_kvm{};  ///< Else the instruction engine runs the guests.
  std::string model{"skylake"};
  std::string filter{"*"};  ///< A glob of names of tests.
};

/// Runs the guest tests with each source that works here, each in a fresh machine, and prints a report: this host, each
/// test that failed, and the totals. True if no test failed and at least one passed. Fails if a name is wrong or the
/// host fails. Cost: a minute on KVM.
Result<bool> run_selftest(const SelftestOptions& options);

}  // namespace vmm::tool
