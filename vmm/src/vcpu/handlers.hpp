#pragma once
#include <optional>

#include "vcpu/guest_view.hpp"

namespace vmm {

/// The handler to which the guest's IDT sends a vector, through a present 64-bit gate. Empty outside IA-32e mode, and
/// if the gate cannot be read. SDM 3A figure 6-7.
std::optional<vpmu::GuestLinear> handler_of(GuestView& view, const kvm_sregs& sregs, unsigned vector);

}  // namespace vmm
