#include "virt/domains.hpp"

namespace vmm::tool {

Result<std::unique_ptr<Domains>> connect_to_libvirt(const std::string&) {
  return host_error("vpmu was built without libvirt", 0,
                    "install libvirt-dev and build again; `vpmu virt hook` works without");
}

}  // namespace vmm::tool
