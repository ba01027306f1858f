#include "sources/guest_breakpoints.hpp"

#include <algorithm>
#include <array>

#include "support/x86.hpp"

namespace vmm {

vpmu::exec::Stop GuestBreakpoints::run_up_to_hit(EngineVcpu& vcpu, std::uint64_t instructions) const {
  using vpmu::exec::Stop;
  Stop stop = Stop::budget;
  for (std::uint64_t n = 0; n < instructions; ++n) {
    const std::uint64_t before = vcpu.engine().passed().instructions;
    stop = vcpu.run(1);
    if (stop != Stop::budget || vcpu.engine().passed().instructions == before || vcpu.is_kicked()) break;
    if (may_hit(vcpu)) break;
  }
  return stop;
}

// SDM 3B 17.2.4; 3A 6.8.3: MOV SS suppresses an instruction breakpoint on the next instruction, as RF does.
bool GuestBreakpoints::may_hit(const EngineVcpu& vcpu) const {
  if (!watch_.any()) return false;
  const bool resumes = x86::rflags::RF::test(vcpu.regs().rflags) || (vcpu.shadow() & KVM_X86_SHADOW_INT_MOV_SS) != 0;
  if (!resumes && execution_hits(watch_, vcpu.ip().value()) != 0) return true;
  if (!watches_data(watch_)) return false;
  const Instruction* const instruction = code_->at(vcpu.ip(), vcpu.sregs());
  return instruction == nullptr || may_hit_data(*instruction, vcpu);
}

bool GuestBreakpoints::may_hit_data(const Instruction& i, const EngineVcpu& vcpu) const {
  if (i.rep || !i.steppable) return is_near(i, vcpu);
  std::array<Access, 2> accesses{};
  unsigned size = 0;
  const auto add = [&](const std::optional<MemoryOperand>& m, bool write) {
    if (!m) return;
    const auto address = operand_address(*m, i, vcpu.ip(), vcpu.regs(), vcpu.sregs());
    accesses[size++] = {.at = address.value(), .bytes = std::max<std::uint16_t>(m->bytes, 1), .write = write};
  };
  add(i.load, false);
  add(i.store, true);
  return data_hits(watch_, std::span{accesses}.first(size)) != 0;
}

// For an instruction that accesses more than its operands say: scattered addresses, the stack, or descriptor tables.
bool GuestBreakpoints::is_near(const Instruction& i, const EngineVcpu& vcpu) const {
  constexpr std::uint64_t area = 16384;  // more than the largest access, that of XSAVE
  const auto scattered = [](const std::optional<MemoryOperand>& m) { return m && m->scattered; };
  if (scattered(i.load) || scattered(i.store)) return true;
  const std::uint64_t max = 1ULL << 32;
  const std::uint64_t reach = i.rep ? area + 8 * std::min<std::uint64_t>(vcpu.regs().rcx, max) : area;
  const auto near = [&](const std::optional<MemoryOperand>& m) {
    if (!m) return false;
    const auto address = operand_address(*m, i, vcpu.ip(), vcpu.regs(), vcpu.sregs());
    return watches_data_near(watch_, address.value(), reach);
  };
  return near(i.load) || near(i.store) || watches_data_near(watch_, vcpu.regs().rsp, area);
}

}  // namespace vmm
