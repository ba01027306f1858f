#pragma once
#include <cstdint>
#include <optional>

#include "vcpu/guest_view.hpp"

namespace vmm {

/// A descriptor of the guest's GDT or LDT. It may hold anything. SDM 3A 3.4.5.
struct Descriptor {
  kvm_segment segment{};  ///< As a segment register would hold it; `type` as it is in memory.
  vpmu::GuestLinear at;
};
/// What reading one came to: neither for the null selector, and one beyond its table.
struct DescriptorRead {
  std::optional<Descriptor> found;
  std::optional<vpmu::AccessFault> fault;
};
/// The descriptor that a selector names. SDM 3A 3.4.2, figure 5-1.
DescriptorRead read_descriptor(GuestView& view, const kvm_sregs& sregs, std::uint16_t selector);

/// The segment of a selector as loading would put it into a segment register. Empty if there is none that can be read.
std::optional<kvm_segment> segment_of(GuestView& view, const kvm_sregs& sregs, std::uint16_t selector);

}  // namespace vmm
