#include "vcpu/debug_moves.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include "decode/registers.hpp"
#include "support/x86.hpp"

namespace vmm {
namespace {

constexpr std::size_t max = 15;

struct Move {
  bool write{};
  unsigned special{}, gpr{}, length{};
};

// SDM 2B MOV to/from debug registers: 0F 21, 0F 23; mod is ignored, and so are prefixes. SDM 2A 2.1.1, 2.2.1 REX.
std::optional<Move> decode(std::span<const std::byte> code, bool long_mode) {
  const auto at = [&](std::size_t i) { return i < code.size() ? std::to_integer<unsigned>(code[i]) : 0U; };
  std::size_t i = 0;
  constexpr std::array prefixes{0x26U, 0x2EU, 0x36U, 0x3EU, 0x64U, 0x65U, 0x66U, 0x67U, 0xF2U, 0xF3U};
  while (std::ranges::find(prefixes, at(i)) != prefixes.end()) ++i;
  const unsigned rex = long_mode && (at(i) & 0xF0) == 0x40 ? at(i++) : 0;
  if (at(i) != 0x0F || (at(i + 1) != 0x21 && at(i + 1) != 0x23) || i + 2 >= code.size()) return std::nullopt;
  const unsigned modrm = at(i + 2);
  return Move{.write = at(i + 1) == 0x23,
              .special = (modrm >> 3 & 7) | (rex & 4) << 1,
              .gpr = (modrm & 7) | (rex & 1) << 3,
              .length = static_cast<unsigned>(i) + 3};
}

/// What the processor pushes for #DB in IA-32e mode. SDM 3A figure 6-8.
struct Frame {
  std::uint64_t rip, cs, rflags, rsp, ss;
};

}  // namespace

Result<bool> DebugMoves::is_next() {
  VMM_ASSIGN(const kvm_sregs sregs, backend_->sregs());
  if (cpl_of(sregs) != 0) return false;
  VMM_ASSIGN(const kvm_regs regs, backend_->regs());
  std::array<std::byte, max> bytes{};
  const vpmu::GuestLinear at{regs.rip + (sregs.cs.l != 0 ? 0 : sregs.cs.base)};
  return decode(std::span{bytes}.first(view_->fetch(at, bytes, 0)), sregs.cs.l != 0).has_value();
}

Result<bool> DebugMoves::run() {
  VMM_ASSIGN(const kvm_sregs sregs, backend_->sregs());
  VMM_ASSIGN(kvm_regs regs, backend_->regs());
  VMM_ASSIGN(kvm_debugregs debug, breakpoints_->guests_registers());
  const bool long_mode = sregs.cs.l != 0;
  std::array<std::byte, max> bytes{};
  const vpmu::GuestLinear at{regs.rip + (long_mode ? 0 : sregs.cs.base)};
  const auto move = decode(std::span{bytes}.first(view_->fetch(at, bytes, 0)), long_mode);
  const bool alias = move && (move->special == 4 || move->special == 5);
  if (!move || move->special > 7 || (alias && x86::cr4::DE::test(sregs.cr4))) return raise(x86::vector::UD, false);
  if (x86::dr7::GD::test(debug.dr7)) {
    debug.dr7 &= ~x86::dr7::GD::mask;
    VMM_TRY(breakpoints_->set_guests_registers(debug));
    VMM_TRY(breakpoints_->inject({.exception = 1, .pc = regs.rip, .dr6 = x86::dr6::BD::mask, .dr7 = 0}));
    return false;
  }
  __u64& gpr = regs.*gpr_fields[move->gpr];
  const std::uint64_t value = long_mode ? gpr : gpr & 0xFFFF'FFFF;
  if (move->special < 4) {
    (move->write ? debug.db[move->special] : gpr) = move->write ? value : debug.db[move->special];
  } else {
    if (move->write && value >> 32 != 0) return raise(x86::vector::GP, true);
    const bool six = move->special % 2 == 0;
    if (!move->write)
      gpr = six ? debug.dr6 | x86::dr6::fixed : debug.dr7 | x86::dr7::fixed;
    else
      (six ? debug.dr6 : debug.dr7) = value | (six ? x86::dr6::fixed : x86::dr7::fixed);
  }
  if (move->write) VMM_TRY(breakpoints_->set_guests_registers(debug));
  regs.rip += move->length;
  regs.rflags &= ~x86::rflags::RF::mask;
  VMM_TRY(backend_->set_regs(regs));
  VMM_ASSIGN(kvm_vcpu_events events, backend_->events());
  if (events.interrupt.shadow != 0) {
    events.interrupt.shadow = 0;
    VMM_TRY(backend_->set_events(events));
  }
  ++statistics_.done;
  if (x86::rflags::TF::test(regs.rflags))
    VMM_TRY(breakpoints_->inject({.exception = 1, .pc = regs.rip, .dr6 = x86::dr6::BS::mask, .dr7 = 0}));
  return true;
}

Result<bool> DebugMoves::raise(unsigned vector, bool has_error_code) {
  VMM_ASSIGN(kvm_vcpu_events events, backend_->events());
  events.exception.injected = 1;
  events.exception.nr = static_cast<std::uint8_t>(vector);
  events.exception.has_error_code = static_cast<std::uint8_t>(has_error_code);
  events.exception.error_code = 0;
  VMM_TRY(backend_->set_events(events));
  return false;
}

// Also undoes what our #DB left in DR6. In ring 0 the delivery changes no segment.
Result<void> DebugMoves::on_debug_handler() {
  VMM_ASSIGN(kvm_regs regs, backend_->regs());
  VMM_ASSIGN(const kvm_debugregs debug, backend_->debugregs());
  const kvm_regs at_handler = regs;
  Frame frame{};
  const bool readable =
      !view_->read(vpmu::GuestLinear{regs.rsp}, std::as_writable_bytes(std::span{&frame, 1})) && (frame.cs & 3) == 0;
  if (readable && breakpoints_->detects() && x86::dr6::BD::test(debug.dr6)) {
    regs.rip = frame.rip;
    regs.rsp = frame.rsp;
    regs.rflags = frame.rflags & ~x86::rflags::RF::mask;
    VMM_TRY(backend_->set_regs(regs));
    VMM_ASSIGN(const bool ours, is_next());
    if (ours) {
      VMM_TRY(breakpoints_->take_detection_back());
      VMM_TRY(run());
      return {};
    }
  }
  ++statistics_.let_through;
  regs = at_handler;
  if (const std::uint64_t hit = breakpoints_->guests_at(vpmu::GuestLinear{regs.rip}); hit != 0)
    return breakpoints_->inject({.exception = 1, .pc = regs.rip, .dr6 = hit, .dr7 = 0});
  regs.rflags |= x86::rflags::RF::mask;
  return backend_->set_regs(regs);
}

}  // namespace vmm
