#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "support/result.hpp"

namespace vmm::tool {

/// What a domain gets.
struct VirtOptions {
  std::string model;           ///< A name that `vpmu models` lists.
  std::string source{"auto"};  ///< A counting source of the library.
  std::string wrapper;         ///< Absolute path of qemu-vpmu on the domain's host.
};

/// What a libvirt connection does with a domain's XML.
struct VirtDriver {
  bool keeps_environment{
      true};  ///< It knows <qemu:commandline>. libvirt's test driver, which stands for QEMU in tests, drops it.
};

/// What a domain's definition says of our PMU.
struct VirtStatus {
  bool enabled{};
  std::string model, source, wrapper;
  std::string qemu;                  ///< The emulator of before; empty when the definition had none.
  std::vector<std::string> changed;  ///< What has been changed since, so that the guest may not have the PMU.
};

/// The definition (text of a domain's inactive XML) with our PMU: QEMU's wrapper as emulator, what the wrapper reads in
/// QEMU's environment, host-passthrough and no PMU of KVM's. What that replaces is kept in the domain's metadata. One
/// that is enabled gets the other options and keeps the way back. Fails with kind usage on what is no definition, and
/// with the reason on a domain whose guest cannot have the PMU.
Result<std::string> enable_virt(std::string_view xml, const VirtOptions& options);

/// The definition without our PMU: the text that enable_virt() was given, with all that has been changed since. Fails
/// when it is not enabled.
Result<std::string> disable_virt(std::string_view xml);

/// Fails with kind usage on what is no definition.
Result<VirtStatus> virt_status(std::string_view xml, const VirtDriver& driver = {});

/// Why `read_back`, a definition that a hypervisor was given enabled and has put into its own words, is not `original`
/// with our PMU. Empty when it is: it is enabled, and the way back leads to `original`.
Result<std::string> difference(std::string_view original, std::string_view read_back, const VirtDriver& driver);

}  // namespace vmm::tool
