#pragma once
#include <string>
#include <string_view>

#include "support/result.hpp"
#include "virt/domain.hpp"

namespace vmm::tool {

/// What KubeVirt's onDefineDomain hook answers: the domain's XML with our PMU. The model and the source are those of
/// the VMI's annotations vpmu/model and vpmu/source (`vmi` is the VMI as JSON; may be empty), else those of `options`.
/// Without a model it is the XML as it is: the VMI has not asked. Fails with kind usage as enable_virt() does, and on
/// what is no VMI.
Result<std::string> define_domain_hook(std::string_view vmi, const std::string& xml, VirtOptions options);

}  // namespace vmm::tool
