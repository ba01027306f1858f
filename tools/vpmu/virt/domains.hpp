#pragma once
#include <memory>
#include <string>
#include <vector>

#include "support/result.hpp"
#include "virt/domain.hpp"

namespace vmm::tool {

/// One domain, as a hypervisor stores it.
struct DomainDefinition {
  std::string name;
  std::string xml;  ///< The definition for its next start, secrets included.
  bool persistent{};
  bool active{};
  bool saved{};  ///< Its next start resumes a saved state, with the definition of the time of saving.
};

/// The domains of one host. Fails with kind usage if the name is wrong, else with kind host.
class Domains {
 public:
  virtual ~Domains() = default;
  virtual Result<DomainDefinition> read(const std::string& name) = 0;
  virtual Result<std::vector<DomainDefinition>> read_all() = 0;
  /// Replaces the definition of the domain that `xml` names, as a whole or not at all.
  virtual Result<void> define(const std::string& xml) = 0;
  /// Whether the domains are on this machine, where paths can be checked.
  [[nodiscard]] virtual bool local() const = 0;
  [[nodiscard]] virtual VirtDriver driver() const = 0;
};

/// Connects to libvirt; without a URI as virsh would. Fails with kind host, also where vpmu was built without libvirt.
Result<std::unique_ptr<Domains>> connect_to_libvirt(const std::string& uri);

}  // namespace vmm::tool
