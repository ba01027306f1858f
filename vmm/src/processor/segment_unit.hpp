#pragma once
#include "decode/system_instruction.hpp"
#include "processor/descriptors.hpp"
#include "processor/far_transfer.hpp"
#include "processor/system_result.hpp"

namespace vmm {

/// The segment register whose base an MSR is: IA32_FS_BASE or IA32_GS_BASE. Null for any other MSR.
using SegmentRegister = kvm_segment kvm_sregs::*;
[[nodiscard]] SegmentRegister segment_of_base_msr(std::uint32_t msr);

/// Emulates what loads, stores and examines segment registers and descriptor tables, and what goes to code in another
/// segment or at another privilege level. SDM volume 2.
class SegmentUnit {
 public:
  /// Both must outlive it. `view` reads the guest through `state`.
  SegmentUnit(SoftState& state, GuestView& view) : s_{&state}, view_{&view} {}

  // The work of instructions: run_instruction() has what is around it. `operand`: the address of the memory operand;
  // empty if the operand is a register.
  SystemResult load_table(kvm_dtable& table, const SystemInstruction& i, std::uint64_t operand);
  SystemResult store_table(const kvm_dtable& table, std::uint64_t operand);
  SystemResult load_task(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  SystemResult load_local_table(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  /// LAR, LSL, VERR, VERW: what they may not examine, they report in ZF.
  SystemResult examine_segment(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  SystemResult adjust_privilege(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  SystemResult read_segment(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  SystemResult write_segment(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  SystemResult push_segment(const SystemInstruction& i);
  SystemResult pop_segment(const SystemInstruction& i);
  SystemResult load_far_pointer(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  SystemResult far_branch(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  SystemResult far_return(const SystemInstruction& i);
  SystemResult interrupt_return(const SystemInstruction& i);
  /// SYSCALL and SYSRET, in 64-bit code only.
  SystemResult call_system(const SystemInstruction& i);
  SystemResult return_from_system(const SystemInstruction& i);
  SystemResult swap_gs();
  SystemResult read_base(const SystemInstruction& i);
  SystemResult write_base(const SystemInstruction& i);

 private:
  [[nodiscard]] std::optional<Exception> fetch_system_segment(std::uint16_t selector, unsigned types, Descriptor& d);
  SystemResult load_segment(unsigned number, std::uint16_t selector);
  SystemResult set_segment(unsigned number, std::uint16_t selector);
  [[nodiscard]] std::optional<Exception> fetch_pointer(const SystemInstruction& i, std::optional<std::uint64_t> operand,
                                                       FarPointer& to);
  [[nodiscard]] kvm_segment& segment(unsigned number);

  SoftState* s_;
  GuestView* view_;
};

}  // namespace vmm
