#include "vcpu/handlers.hpp"

#include <array>

#include "support/x86.hpp"
#include "vpmu/bits.hpp"

namespace vmm {

std::optional<vpmu::GuestLinear> handler_of(GuestView& view, const kvm_sregs& sregs, unsigned vector) {
  std::array<std::uint32_t, 4> gate{};
  if (!x86::efer::LMA::test(sregs.efer) || sregs.idt.limit < vector * sizeof gate + sizeof gate - 1)
    return std::nullopt;
  const vpmu::GuestLinear at{sregs.idt.base + vector * sizeof gate};
  if (view.read(at, std::as_writable_bytes(std::span{gate}))) return std::nullopt;
  const bool present = (gate[1] & vpmu::bit(15)) != 0;
  if (!present) return std::nullopt;
  return vpmu::GuestLinear{(gate[0] & 0xFFFFU) | (gate[1] & 0xFFFF0000U) | (std::uint64_t{gate[2]} << 32)};
}

}  // namespace vmm
