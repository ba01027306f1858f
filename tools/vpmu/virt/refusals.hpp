#pragma once
#include "support/result.hpp"
#include "virt/domain.hpp"
#include "virt/xml.hpp"

namespace vmm::tool {

/// libvirt's namespace of elements that are passed to QEMU unchanged.
inline constexpr auto qemu_namespace = "http://libvirt.org/schemas/domain/qemu/1.0";

/// Fails with kind usage, with the first reason why the guest of `domain` could not have our PMU, and what to do. The
/// domain must not be enabled yet.
Result<void> refuse_what_cannot_work(XmlElement domain);
/// Fails with kind usage if the model, the source or the wrapper is invalid.
Result<void> refuse_wrong_options(const VirtOptions& options);

}  // namespace vmm::tool
