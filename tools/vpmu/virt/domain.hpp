#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "support/result.hpp"

namespace vmm::tool {

/// The PMU that a domain gets.
struct VirtOptions {
  std::string model;           ///< A name that `vpmu models` lists.
  std::string source{"auto"};  ///< A counting source of the library.
  std::string wrapper;         ///< Absolute path of qemu-vpmu on the domain's host.
};

/// How a libvirt driver treats a domain's XML.
struct VirtDriver {
  bool keeps_environment{
      true};  ///< It keeps <qemu:commandline>. libvirt's test driver, which replaces QEMU in tests, drops it.
};

/// What a domain's definition says about our PMU.
struct VirtStatus {
  bool enabled{};
  std::string model, source, wrapper;
  std::string qemu;                  ///< The original emulator; empty if the definition had none.
  std::vector<std::string> changed;  ///< What has been edited since, so that the guest may not get the PMU.
};

/// The definition (text of a domain's inactive XML) with our PMU: qemu-vpmu as emulator, its variables in QEMU's
/// environment, host-passthrough, and KVM's own PMU off. The replaced parts are kept in the domain's metadata. A domain
/// that is already enabled gets the new options, and keeps its original parts. Fails with kind usage if the text is no
/// definition, and with the reason if the domain's guest cannot have the PMU.
Result<std::string> enable_virt(std::string_view xml, const VirtOptions& options);

/// The definition without our PMU: the text that was given to enable_virt(), with all later edits. Fails
/// if the PMU is not enabled.
Result<std::string> disable_virt(std::string_view xml);

/// Fails with kind usage if the text is no definition.
Result<VirtStatus> virt_status(std::string_view xml, const VirtDriver& driver = {});

/// A hypervisor may rewrite a definition that it is given. Says why `read_back` is not `original` with our PMU; empty
/// if it is: the PMU is enabled, and disabling it restores `original`.
Result<std::string> difference(std::string_view original, std::string_view read_back, const VirtDriver& driver);

}  // namespace vmm::tool
