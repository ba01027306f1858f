#include "sources/retired_instruction.hpp"

#include <linux/kvm.h>

#include <algorithm>
#include <limits>

#include "support/x86.hpp"
#include "vcpu/guest_view.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

vpmu::PebsRegisters pebs_registers(const kvm_regs& r) {
  return {{r.rflags, r.rip, r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12,
           r.r13, r.r14, r.r15}};
}

/// The elements that a repeated string instruction has done.
std::uint64_t elements_of(const MemoryOperand& operand, const kvm_regs& before, const kvm_regs& after) {
  return (before.rcx - after.rcx) & vpmu::low_bits(operand.address_bytes * 8U);
}

// Of several elements the last (rule S4): RSI and RDI point behind it, or before it with DF.
vpmu::MemAccess access_of(const std::optional<MemoryOperand>& operand, const Instruction& i, vpmu::GuestLinear ip,
                          const kvm_regs& before, const kvm_regs& after, const kvm_sregs& sregs) {
  if (!operand || operand->scattered) return {};  // no single address
  if (i.rep && elements_of(*operand, before, after) == 0) return {};
  constexpr std::uint64_t line = 64;
  MemoryOperand element = *operand;
  if (i.rep)
    element.displacement += x86::rflags::DF::test(before.rflags) ? element.bytes : -std::int64_t{element.bytes};
  const vpmu::GuestLinear at = operand_address(element, i, ip, i.rep ? after : before, sregs);
  const std::uint64_t last = at.value() + (operand->bytes > 0 ? operand->bytes - 1U : 0U);
  return {.address = at, .locked = i.locked, .split = at.value() / line != last / line};
}

/// Only a conditional branch may be not taken, and then goes to the next instruction.
bool is_taken(const Instruction& i, vpmu::GuestLinear at, vpmu::GuestLinear next) {
  if (i.branch == vpmu::BranchKind::none) return false;
  return i.branch != vpmu::BranchKind::conditional || next != at + i.length;
}

/// The accesses beyond the first, of which the instruction makes `each` for each element.
std::int32_t more_accesses(const std::optional<MemoryOperand>& operand, unsigned each, const Instruction& i,
                           const kvm_regs& before, const kvm_regs& after) {
  if (!operand) return 0;
  const std::uint64_t elements = i.rep ? elements_of(*operand, before, after) : 1;
  constexpr std::uint64_t max = std::numeric_limits<std::int32_t>::max();
  return static_cast<std::int32_t>(std::min(elements * each, max)) - 1;
}

}  // namespace

Retired retired_instruction(const Instruction& i, const kvm_regs& before, const kvm_sregs& sregs, const kvm_regs& after,
                            const Ticks& ticks, std::optional<unsigned> target_cpl) {
  const vpmu::GuestLinear at = instruction_pointer(before, sregs);
  const vpmu::GuestLinear next = instruction_pointer(after, sregs);
  const auto cpl = static_cast<std::uint8_t>(cpl_of(sregs));
  return {.what = {.ip = at,
                   .next_ip = next,
                   .cpl = cpl,
                   .long_mode = x86::efer::LMA::test(sregs.efer),
                   .has_load = i.load || i.prefetched,
                   .has_store = i.store.has_value(),
                   .more_loads = more_accesses(i.load, i.accesses.loads, i, before, after),
                   .more_stores = more_accesses(i.store, i.accesses.stores, i, before, after),
                   .kind = i.kind,
                   .load = access_of(i.load ? i.load : i.prefetched, i, at, before, after, sregs),
                   .store = access_of(i.store, i, at, before, after, sregs),
                   .branch = {.kind = i.branch,
                              .taken = is_taken(i, at, next),
                              .target_cpl = static_cast<std::uint8_t>(target_cpl.value_or(cpl)),
                              .to_next = next == at + i.length},
                   .cycles = ticks.cycles,
                   .ref_cycles = ticks.ref,
                   .bus_cycles = static_cast<std::uint32_t>(ticks.bus),
                   .alone = ticks.alone},
          .registers = pebs_registers(after)};
}

void join(Retired& compare, const Retired& branch) {
  compare.what.branch_offset = static_cast<std::uint8_t>(branch.what.ip.value() - compare.what.ip.value());
  compare.what.next_ip = branch.what.next_ip;
  compare.what.branch = branch.what.branch;
  compare.what.uops = static_cast<std::uint16_t>(compare.what.uops + branch.what.uops);
  compare.registers = branch.registers;
}

vpmu::TakenBranch delivery(vpmu::GuestLinear from, unsigned cpl, vpmu::GuestLinear to, unsigned handler_cpl) {
  return {.from = from,
          .to = to,
          .cpl = static_cast<std::uint8_t>(cpl),
          .what = {.kind = vpmu::BranchKind::far, .taken = true, .target_cpl = static_cast<std::uint8_t>(handler_cpl)}};
}

}  // namespace vmm
