#pragma once
#include <string>

#include "support/result.hpp"

namespace vmm::tool {

/// What of the guest tests runs on this host.
struct SelftestOptions {
  std::string kvm_device{"/dev/kvm"};
  bool on_kvm{};  ///< Else the instruction engine runs the guests.
  std::string model{"skylake"};
  std::string filter{"*"};  ///< A glob of names of tests.
};

/// Runs the guest tests by each source that counts here, a fresh machine each, and prints a report: this host, each
/// test that failed, and the totals. Fails where a name is wrong or the host is, true when no test failed and one
/// passed. Cost: a minute on KVM.
Result<bool> run_selftest(const SelftestOptions& options);

}  // namespace vmm::tool
