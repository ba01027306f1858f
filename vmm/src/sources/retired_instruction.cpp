#include "sources/retired_instruction.hpp"

#include <linux/kvm.h>

#include "vcpu/guest_view.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

constexpr std::uint64_t efer_lma = vpmu::bit(10);

vpmu::PebsRegisters pebs_registers(const kvm_regs& r) {
  return {{r.rflags, r.rip, r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12,
           r.r13, r.r14, r.r15}};
}

vpmu::MemAccess access_of(const std::optional<MemoryOperand>& operand, const Instruction& i, vpmu::GuestLinear ip,
                          const kvm_regs& before, const kvm_sregs& sregs) {
  if (!operand || operand->scattered) return {};  // no single address
  constexpr std::uint64_t line = 64;
  const vpmu::GuestLinear at = operand_address(*operand, i, ip, before, sregs);
  const std::uint64_t last = at.value() + (operand->bytes > 0 ? operand->bytes - 1U : 0U);
  return {.address = at, .locked = i.locked, .split = at.value() / line != last / line};
}

/// Only a conditional branch may be not taken, and then goes to the next instruction.
bool is_taken(const Instruction& i, vpmu::GuestLinear at, vpmu::GuestLinear next) {
  if (i.branch == vpmu::BranchKind::none) return false;
  return i.branch != vpmu::BranchKind::conditional || next != at + i.length;
}

}  // namespace

Retired retired_instruction(const Instruction& i, const kvm_regs& before, const kvm_sregs& sregs, const kvm_regs& after,
                            std::uint32_t cycles, std::optional<unsigned> target_cpl) {
  const vpmu::GuestLinear at = instruction_pointer(before, sregs);
  const vpmu::GuestLinear next = instruction_pointer(after, sregs);
  const auto cpl = static_cast<std::uint8_t>(cpl_of(sregs));
  return {.what = {.ip = at,
                   .next_ip = next,
                   .cpl = cpl,
                   .long_mode = (sregs.efer & efer_lma) != 0,
                   .has_load = i.load.has_value(),
                   .has_store = i.store.has_value(),
                   .kind = i.kind,
                   .load = access_of(i.load, i, at, before, sregs),
                   .store = access_of(i.store, i, at, before, sregs),
                   .branch = {.kind = i.branch,
                              .taken = is_taken(i, at, next),
                              .target_cpl = static_cast<std::uint8_t>(target_cpl.value_or(cpl)),
                              .to_next = next == at + i.length},
                   .cycles = cycles,
                   .ref_cycles = cycles,
                   .bus_cycles = cycles},
          .registers = pebs_registers(after)};
}

vpmu::TakenBranch delivery(vpmu::GuestLinear from, unsigned cpl, vpmu::GuestLinear to, unsigned handler_cpl) {
  return {.from = from,
          .to = to,
          .cpl = static_cast<std::uint8_t>(cpl),
          .what = {.kind = vpmu::BranchKind::far, .taken = true, .target_cpl = static_cast<std::uint8_t>(handler_cpl)}};
}

}  // namespace vmm
