#pragma once
#include <string>

namespace vmm::tool {

/// The output of `vpmu --version`, a line each: the version and the commit; the compiler; whether this host can run the
/// JIT; which features its KVM has. Opens `kvm_device`, and maps executable memory to see whether that is permitted.
std::string describe_version(const std::string& kvm_device = "/dev/kvm");

}  // namespace vmm::tool
