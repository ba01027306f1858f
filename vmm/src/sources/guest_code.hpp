#pragma once
#include <array>

#include "decode/decoded_instructions.hpp"
#include "vcpu/guest_view.hpp"

namespace vmm {

/// The instructions of a vCPU's code, decoded.
class GuestCode {
 public:
  /// `view` must outlive it.
  explicit GuestCode(GuestView& view) : view_{&view} {}

  /// Both results are valid until the next call; null if there is no valid instruction. The instruction at this
  /// address, for a vCPU with these registers.
  const Instruction* at(vpmu::GuestLinear ip, const kvm_sregs& sregs) {
    std::array<std::byte, max_instruction_bytes> bytes{};
    const std::size_t size = view_->fetch(ip, bytes, cpl_of(sregs));
    return of(std::span{bytes}.first(size), sregs);
  }
  /// The instruction of these bytes.
  const Instruction* of(std::span<const std::byte> bytes, const kvm_sregs& sregs) {
    return decoded_(bytes, code_mode(sregs));
  }

 private:
  GuestView* view_;
  DecodedInstructions decoded_;
};

}  // namespace vmm
