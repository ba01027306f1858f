#include "soft/instruction_faults.hpp"

#include <algorithm>
#include <array>

#include "exec/host/host_form.hpp"
#include "processor/descriptors.hpp"
#include "sources/retired_instruction.hpp"
#include "support/x86.hpp"
#include "vcpu/engine_state.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

constexpr std::int8_t stack_segment_number = 2;

const kvm_segment& segment_of(const kvm_sregs& s, std::int8_t number) {
  const std::array<const kvm_segment*, 6> all{&s.es, &s.cs, &s.ss, &s.ds, &s.fs, &s.gs};
  return *all[static_cast<std::uint8_t>(number) % all.size()];
}

/// SDM 3A 5.3: whether the offsets from `first` to `last` are within the limit. An expand-down segment has those above.
bool is_within(const kvm_segment& s, std::uint64_t first, std::uint64_t last) {
  const bool expands_down = !is_code(s) && (s.type & 4) != 0;
  if (!expands_down) return last <= s.limit;
  return first > s.limit && last <= vpmu::low_bits(s.db != 0 ? 32 : 16);
}

/// SDM 3A table 6-7. Operands of more than 10 bytes are not checked: those that must be aligned raise #GP.
bool is_misaligned(std::uint64_t at, unsigned bytes) {
  const unsigned alignment = bytes == 10 ? 8 : bytes == 2 || bytes == 4 || bytes == 8 ? bytes : 1;
  return at % alignment != 0;
}

/// The fault of an operand, if its segment does not allow the access. SDM 3A 5.3, 5.5.
std::optional<Exception> segment_fault(const kvm_sregs& sregs, const MemoryOperand& m, std::uint64_t at, bool write) {
  if (code_mode(sregs) == CodeMode::bits64 || m.segment < 0) return std::nullopt;
  const kvm_segment& s = segment_of(sregs, m.segment);
  const std::uint64_t first = (at - s.base) & vpmu::low_bits(32);
  const bool may = s.unusable == 0 && (s.selector & ~3U) != 0 && (write ? is_writable(s) : is_readable(s)) &&
                   is_within(s, first, first + std::max<std::uint64_t>(m.bytes, 1) - 1);
  if (may) return std::nullopt;
  return m.segment == stack_segment_number ? stack_fault : general_protection;
}

}  // namespace

std::optional<Exception> feature_fault(const SoftCore& core, const Instruction& i, std::span<const std::byte> code) {
  using vpmu::exec::CpuFeature;
  using vpmu::exec::VectorUnit;
  constexpr Exception ud = undefined_opcode;
  constexpr Exception nm{.vector = x86::vector::NM, .error_code = std::nullopt};
  constexpr std::uint64_t em = vpmu::bit(2), ts = vpmu::bit(3);
  constexpr std::uint64_t sse_and_avx = x86::xcr0::SSE::mask | x86::xcr0::AVX::mask;
  const SoftState& s = core.state;
  const CodeMode mode = code_mode(s.sregs);
  const auto feature = vpmu::exec::feature_needed(code, mode);
  if (i.never_there || (feature && !core.features.has(*feature))) return ud;
  const std::uint64_t cr0 = s.sregs.cr0, cr4 = s.sregs.cr4;
  const VectorUnit unit = vpmu::exec::unit_needed(code, mode);
  switch (unit) {
    case VectorUnit::none: return std::nullopt;
    case VectorUnit::x87:
      if ((cr0 & em) != 0) return vpmu::is_mmx(i.kind) ? ud : nm;
      break;
    case VectorUnit::sse:
      if ((cr0 & em) != 0 || !x86::cr4::OSFXSR::test(cr4)) return ud;
      break;
    case VectorUnit::avx:
      if (!x86::cr4::OSXSAVE::test(cr4) || (s.vectors.xcr0 & sse_and_avx) != sse_and_avx) return ud;
      break;
    case VectorUnit::xsave:
      if (!x86::cr4::OSXSAVE::test(cr4)) return ud;
      break;
  }
  if ((cr0 & ts) != 0) return nm;
  return std::nullopt;
}

std::optional<Exception> checked_fault(const SoftCore& core, const Instruction& i, std::span<const std::byte> code) {
  const SoftState& s = core.state;
  const auto ip = instruction_pointer(s.regs, s.sregs);
  if (code_mode(s.sregs) != CodeMode::bits64 && s.regs.rip + i.length - 1 > s.sregs.cs.limit) return general_protection;
  if (const auto fault = feature_fault(core, i, code)) return fault;
  bool misaligned = false;
  const auto look = [&](const std::optional<MemoryOperand>& m, bool write) -> std::optional<Exception> {
    if (!m || i.gather) return std::nullopt;
    const std::uint64_t at = operand_address(*m, i, ip, s.regs, s.sregs).value();
    misaligned = misaligned || is_misaligned(at, m->bytes);
    return segment_fault(s.sregs, *m, at, write);
  };
  if (const auto fault = look(i.read(), false)) return fault;
  if (const auto fault = look(i.store, true)) return fault;
  if (!misaligned || !checks_alignment(s.regs, s.sregs)) return std::nullopt;
  return alignment_check;
}

Exception fetch_fault(SoftCore& core, std::uint64_t at) {
  const vpmu::Walk walk = vpmu::translate(core.paging(), core.memory.physical(), vpmu::GuestLinear{at},
                                          vpmu::PagingAccess::execute, core.privilege(), vpmu::AccessedDirty::leave);
  const auto* fault = std::get_if<vpmu::PageFault>(&walk);
  if (fault == nullptr) return general_protection;
  return page_fault(core.state, {.address = vpmu::GuestLinear{at}, .error_code = fault->error_code});
}

}  // namespace vmm
