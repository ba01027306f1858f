#include "processor/system_operands.hpp"

#include <algorithm>
#include <array>

#include "decode/registers.hpp"
#include "support/x86.hpp"

namespace vmm {
namespace {

constexpr std::array privileged{
    SystemOp::rdmsr,  SystemOp::wrmsr,        SystemOp::lgdt,          SystemOp::lidt,       SystemOp::ltr,
    SystemOp::lldt,   SystemOp::read_control, SystemOp::write_control, SystemOp::read_debug, SystemOp::write_debug,
    SystemOp::clts,   SystemOp::lmsw,         SystemOp::invlpg,        SystemOp::wbinvd,     SystemOp::hlt,
    SystemOp::sysret, SystemOp::sysexit,      SystemOp::swapgs,        SystemOp::xsetbv};
/// Instructions that set RIP themselves.
constexpr std::array branches{SystemOp::iret,    SystemOp::far_jump, SystemOp::far_call, SystemOp::far_return,
                              SystemOp::syscall, SystemOp::sysret,   SystemOp::sysenter, SystemOp::sysexit};

}  // namespace

bool is_privileged(SystemOp op) { return std::ranges::find(privileged, op) != privileged.end(); }

bool goes_on_behind(SystemOp op, const SystemResult& result) {
  if (const auto* raised = std::get_if<Raised>(&result)) return raised->kind != EventKind::fault;
  return std::holds_alternative<Completed>(result) && std::ranges::find(branches, op) == branches.end();
}

__u64& gpr(SoftState& s, const SystemInstruction& i) { return s.regs.*gpr_fields[i.gpr % gpr_fields.size()]; }

void set_gpr(SoftState& s, const SystemInstruction& i, std::uint64_t value) {
  __u64& to = gpr(s, i);
  to = i.bytes == 2 ? (to & ~0xFFFFULL) | (value & 0xFFFF) : i.bytes == 4 ? value & 0xFFFF'FFFF : value;
}

vpmu::TlbFlush flush_by(SoftState& s, const SystemInstruction& i, std::optional<std::uint64_t> operand) {
  using enum vpmu::TlbFlush::Of;
  const std::uint16_t pcid = x86::pcid_of(s.sregs.cr3, s.sregs.cr4);
  if (i.op == SystemOp::invlpg && operand) return {.of = page, .pcid = pcid, .linear = *operand};
  if (i.op != SystemOp::write_control || i.special != 3) return {.of = everything, .pcid = pcid};
  const bool keeps = x86::cr4::PCIDE::test(s.sregs.cr4) && x86::cr3::KEEPS::test(gpr(s, i));
  return {.of = keeps ? nothing : address_space, .pcid = pcid};
}

SystemResult give(SoftState& s, GuestView& view, const SystemInstruction& i, std::optional<std::uint64_t> operand,
                  std::uint64_t value) {
  if (!operand) {
    set_gpr(s, i, value);
    return Completed{};
  }
  const auto word = static_cast<std::uint16_t>(value);
  if (const auto fault = view.write_current(vpmu::GuestLinear{*operand}, std::as_bytes(std::span{&word, 1})))
    return Raised{page_fault(s, *fault)};
  return Completed{};
}

std::optional<Exception> fetch_selector(SoftState& s, GuestView& view, const SystemInstruction& i,
                                        std::optional<std::uint64_t> operand, std::uint16_t& selector) {
  selector = static_cast<std::uint16_t>(gpr(s, i));
  if (!operand) return std::nullopt;
  const auto fault = view.read_current(vpmu::GuestLinear{*operand}, std::as_writable_bytes(std::span{&selector, 1}));
  return fault ? std::optional{page_fault(s, *fault)} : std::nullopt;
}

vpmu::AccessResult write_fault(GuestView& view, vpmu::GuestLinear at, std::uint64_t bytes) {
  const auto fault = view.probe_current(at, bytes, vpmu::AccessKind::write);
  return fault && fault->not_memory ? vpmu::AccessResult{} : fault;
}

}  // namespace vmm
