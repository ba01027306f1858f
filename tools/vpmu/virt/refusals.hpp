#pragma once
#include "support/result.hpp"
#include "virt/domain.hpp"
#include "virt/xml.hpp"

namespace vmm::tool {

/// libvirt's namespace of what is passed to QEMU as it is.
inline constexpr auto qemu_namespace = "http://libvirt.org/schemas/domain/qemu/1.0";

/// Fails with kind usage, and what to do, on the first reason why the guest of `domain`, which is not enabled, could
/// not have our PMU.
Result<void> refuse_what_cannot_work(XmlElement domain);
/// Fails with kind usage on a model, a source or a wrapper that cannot be.
Result<void> refuse_wrong_options(const VirtOptions& options);

}  // namespace vmm::tool
