// How the engine runs while the guest has breakpoints set.
#include <algorithm>
#include <array>

#include "sources/exact_source.hpp"
#include "vcpu/engine_state.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::exec::Stop;

constexpr std::uint64_t rflags_rf = vpmu::bit(16);

}  // namespace

// Runs up to the next instruction that hits one of the guest's breakpoints; the first one is not checked.
void ExactSource::run_watched(std::uint64_t instructions) {
  for (std::uint64_t n = 0; n < instructions; ++n) {
    const std::uint64_t before = engine_.passed().instructions;
    if (run_engine(1) != Stop::budget || engine_.passed().instructions == before || port_->kick_flag().is_set()) return;
    if (meets_breakpoint()) return;
  }
}

// For an instruction that accesses more than its operands say: scattered addresses, the stack, or descriptor tables.
bool ExactSource::may_meet_data(const Instruction& i) const {
  constexpr std::uint64_t area = 16384;  // more than the largest access, that of XSAVE
  const auto scattered = [](const std::optional<MemoryOperand>& m) { return m && m->scattered; };
  if (scattered(i.load) || scattered(i.store)) return true;
  const std::uint64_t most = 1ULL << 32;
  const std::uint64_t reach = i.rep ? area + 8 * std::min<std::uint64_t>(regs_.rcx, most) : area;
  const auto near = [&](const std::optional<MemoryOperand>& m) {
    if (!m) return false;
    const vpmu::GuestLinear at = instruction_pointer(regs_, sregs_);
    return watches_data_near(watch_, operand_address(*m, i, at, regs_, sregs_).value(), reach);
  };
  return near(i.load) || near(i.store) || watches_data_near(watch_, regs_.rsp, area);
}

// SDM 3B 17.2.4.
bool ExactSource::meets_breakpoint() {
  if (!watch_.any()) return false;
  if ((regs_.rflags & rflags_rf) == 0 && execution_hits(watch_, instruction_pointer(regs_, sregs_).value()) != 0)
    return true;
  if (!watches_data(watch_)) return false;
  std::array<std::byte, longest_instruction> bytes{};
  const vpmu::GuestLinear at = instruction_pointer(regs_, sregs_);
  const Instruction* const instruction =
      decoded_(std::span{bytes}.first(view_->fetch(at, bytes, cpl_of(sregs_))), code_mode(sregs_));
  if (instruction == nullptr) return true;
  if (instruction->rep || !instruction->steppable) return may_meet_data(*instruction);
  std::array<Access, 2> accesses{};
  unsigned size = 0;
  const auto add = [&](const std::optional<MemoryOperand>& m, bool write) {
    if (!m) return;
    const auto address = operand_address(*m, *instruction, at, regs_, sregs_);
    accesses[size++] = {.at = address.value(), .bytes = std::max<std::uint16_t>(m->bytes, 1), .write = write};
  };
  add(instruction->load, false);
  add(instruction->store, true);
  return data_hits(watch_, std::span{accesses}.first(size)) != 0;
}

}  // namespace vmm
