#pragma once
#include <string>
#include <string_view>

#include "support/result.hpp"
#include "virt/domain.hpp"

namespace vmm::tool {

/// The answer of KubeVirt's onDefineDomain hook: the domain's XML with our PMU. The model and the source are those of
/// the VMI's annotations vpmu/model and vpmu/source (`vmi` is the VMI as JSON; may be empty), else those of `options`.
/// If neither gives a model, the XML is returned unchanged. Fails with kind usage as enable_virt() does, and if
/// `vmi` is no VMI.
Result<std::string> define_domain_hook(std::string_view vmi, const std::string& xml, VirtOptions options);

}  // namespace vmm::tool
