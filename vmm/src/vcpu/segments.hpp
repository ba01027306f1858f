#pragma once
#include <cstdint>
#include <optional>

#include "vcpu/guest_view.hpp"

namespace vmm {

/// The segment of a selector, from the guest's GDT, as loading it would put it into a segment register. Empty for the
/// null selector, one beyond the GDT, and one in the LDT. The descriptor may hold anything. SDM 3A figure 5-1.
std::optional<kvm_segment> segment_of(GuestView& view, const kvm_sregs& sregs, std::uint16_t selector);

}  // namespace vmm
