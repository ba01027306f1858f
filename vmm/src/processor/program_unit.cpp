#include "processor/program_unit.hpp"

#include <algorithm>
#include <array>

#include "processor/far_transfer.hpp"
#include "processor/system_operands.hpp"
#include "support/x86.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

std::int64_t signed_value(std::uint64_t value, unsigned bytes) {
  const unsigned unused = 64 - 8 * bytes;
  return static_cast<std::int64_t>(value << unused) >> unused;
}

}  // namespace

// SDM 2A INT n: a trap, like INT 4.
SystemResult ProgramUnit::interrupt_on_overflow() {
  if (!x86::rflags::OF::test(s_->regs.rflags)) return Completed{};
  return Raised{{.vector = x86::vector::OF, .error_code = std::nullopt}, EventKind::software};
}

// SDM 2A BOUND: the bounds are signed, and inclusive.
SystemResult ProgramUnit::check_bounds(const SystemInstruction& i, std::uint64_t operand) {
  std::array<std::uint64_t, 2> bounds{};
  for (unsigned n = 0; n < bounds.size(); ++n) {
    const vpmu::GuestLinear at{operand + std::uint64_t{n} * i.bytes};
    const auto word = std::as_writable_bytes(std::span{&bounds[n], 1}).first(i.bytes);
    if (const auto fault = view_->read_current(at, word)) return Raised{page_fault(*s_, *fault)};
  }
  const std::int64_t index = signed_value(gpr(*s_, i), i.bytes);
  if (index >= signed_value(bounds[0], i.bytes) && index <= signed_value(bounds[1], i.bytes)) return Completed{};
  return Raised{{.vector = x86::vector::BR, .error_code = std::nullopt}};
}

// SDM 2A ENTER. The last word of the frame must be writable before anything changes.
SystemResult ProgramUnit::enter_frame(const SystemInstruction& i) {
  constexpr std::uint64_t max_nesting = 32;
  const std::uint64_t level = i.selector % max_nesting;
  kvm_regs& r = s_->regs;
  std::array<std::uint64_t, max_nesting + 1> words{r.rbp};
  const std::uint64_t frame = r.rsp - i.bytes;
  for (std::uint64_t n = 1; n < level; ++n)
    if (const auto fault = view_->read_current(stack_address(s_->sregs, r.rbp - n * i.bytes),
                                               std::as_writable_bytes(std::span{&words[n], 1}).first(i.bytes)))
      return Raised{stack_exception(*s_, *fault)};
  if (level != 0) words[level] = frame;
  const std::uint64_t end = r.rsp - (level + 1) * i.bytes - i.immediate;
  if (const auto fault = write_fault(*view_, stack_address(s_->sregs, end), i.bytes))
    return Raised{stack_exception(*s_, *fault)};
  for (std::uint64_t n = 0; n <= level; ++n)
    if (const auto fault = view_->write_current(stack_address(s_->sregs, frame - n * i.bytes),
                                                std::as_bytes(std::span{&words[n], 1}).first(i.bytes)))
      return Raised{stack_exception(*s_, *fault)};
  set_stack_pointer(*s_, end);
  r.rbp = i.bytes == 2 ? (r.rbp & ~vpmu::low_bits(16)) | (frame & vpmu::low_bits(16))
                       : frame & vpmu::low_bits(8U * i.bytes);
  return Completed{};
}

SystemResult ProgramUnit::interrupt_flag(bool on) {
  if (cpl_of(s_->sregs) > (s_->regs.rflags & x86::rflags::IOPL::mask) >> 12) return raised_gp;
  if (on && !x86::rflags::IF::test(s_->regs.rflags)) s_->events.interrupt.shadow = KVM_X86_SHADOW_INT_STI;
  s_->regs.rflags = on ? s_->regs.rflags | x86::rflags::IF::mask : s_->regs.rflags & ~x86::rflags::IF::mask;
  return Completed{};
}

// SDM 2B POPF: a 16-bit POPF leaves the upper bits unchanged.
SystemResult ProgramUnit::popf(std::uint8_t bytes) {
  std::uint64_t value{};
  const auto popped = std::as_writable_bytes(std::span{&value, 1}).first(std::min<std::size_t>(bytes, sizeof value));
  if (const auto fault = view_->read_current(stack_address(s_->sregs, s_->regs.rsp), popped))
    return Raised{stack_exception(*s_, *fault)};
  std::uint64_t loadable = x86::rflags::by_popf & vpmu::low_bits(8U * static_cast<unsigned>(popped.size()));
  const unsigned cpl = cpl_of(s_->sregs);
  if (cpl != 0) loadable &= ~x86::rflags::IOPL::mask;
  if (cpl > (s_->regs.rflags & x86::rflags::IOPL::mask) >> 12) loadable &= ~x86::rflags::IF::mask;
  s_->regs.rflags = (s_->regs.rflags & ~(loadable | x86::rflags::RF::mask)) | (value & loadable);
  set_stack_pointer(*s_, s_->regs.rsp + popped.size());
  return Completed{};
}

}  // namespace vmm
