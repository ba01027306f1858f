#pragma once
#include <optional>
#include <string>

#include "support/result.hpp"
#include "virt/apparmor.hpp"
#include "virt/domains.hpp"

namespace vmm::tool {

/// What enable_domain() needs.
struct EnableRequest {
  std::string domain;  ///< Name or UUID.
  VirtOptions options;
  std::optional<AppArmorHost> apparmor;  ///< Where to put the snippets; none: nowhere.
};

/// Gives a domain our PMU from its next start on; returns what to tell the user. Reads back what libvirt has stored
/// and, if that is not as intended, restores the old definition. If it fails, nothing is left behind: not in the
/// definition, and not in AppArmor's files.
Result<std::string> enable_domain(Domains& domains, const EnableRequest& request);

/// Takes the PMU away again, from the next start on.
Result<std::string> disable_domain(Domains& domains, const std::string& name);

/// Some lines about one domain, or a line for each.
Result<std::string> describe_domain(Domains& domains, const std::string& name);
Result<std::string> list_domains(Domains& domains);

}  // namespace vmm::tool
