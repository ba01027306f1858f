#pragma once
#include <memory>
#include <string>
#include <vector>

#include "support/result.hpp"
#include "virt/domain.hpp"

namespace vmm::tool {

/// One domain, as a hypervisor keeps it.
struct DomainDefinition {
  std::string name;
  std::string xml;  ///< What it will be started with, secrets included.
  bool persistent{};
  bool active{};
  bool saved{};  ///< Its next start goes on with a state that was saved, and with the definition of then.
};

/// The domains of one host. Fails with kind usage where the name is wrong, else with kind host.
class Domains {
 public:
  virtual ~Domains() = default;
  virtual Result<DomainDefinition> read(const std::string& name) = 0;
  virtual Result<std::vector<DomainDefinition>> read_all() = 0;
  /// Replaces the definition of the domain that `xml` names, as a whole or not at all.
  virtual Result<void> define(const std::string& xml) = 0;
  /// On this machine, where paths can be looked at.
  [[nodiscard]] virtual bool local() const = 0;
  [[nodiscard]] virtual VirtDriver driver() const = 0;
};

/// Connects to libvirt; without a URI as virsh would. Fails with kind host, also where vpmu was built without libvirt.
Result<std::unique_ptr<Domains>> connect_to_libvirt(const std::string& uri);

}  // namespace vmm::tool
