#pragma once
#include "decode/system_instruction.hpp"
#include "processor/system_result.hpp"

namespace vmm {

/// Emulates IN, OUT, INS and OUTS up to the access, which a device answers, and from there on. SDM 2A IN, INS, 2B OUT,
/// OUTS.
class PortUnit {
 public:
  /// Both must outlive it. `view` reads the guest through `state`.
  PortUnit(SoftState& state, GuestView& view) : s_{&state}, view_{&view} {}

  /// The access of an instruction, or its fault. `operand`: the address of its memory operand, if it has one.
  SystemResult begin(const SystemInstruction& i, std::optional<std::uint64_t> operand);

  /// What is left of an instruction after its access.
  struct End {
    std::optional<Exception> fault;
    bool again{};  ///< It repeats: RIP must stay.
  };
  /// Takes the device's answer, of which a write has none. RIP is unchanged.
  End complete(const PortAccess& access, std::uint32_t value);

 private:
  [[nodiscard]] std::optional<Exception> permission_fault(std::uint16_t port, std::uint8_t bytes);
  [[nodiscard]] std::optional<Exception> fetch_element(PortAccess& access);

  SoftState* s_;
  GuestView* view_;
};

}  // namespace vmm
