#pragma once
#include <string>

namespace vmm::tool {

/// What `vpmu --version` prints, a line each: the version and the commit; what built it; whether this host can run the
/// JIT; what its KVM has of what we ask for. Opens `kvm_device`, and maps executable memory to see that it may.
std::string describe_version(const std::string& kvm_device = "/dev/kvm");

}  // namespace vmm::tool
