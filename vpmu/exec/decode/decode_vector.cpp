#include <algorithm>
#include <bit>
#include <utility>

#include "exec/decode/decoding.hpp"

/// From Zydis to ops: what works with vector registers or saves them.
namespace vpmu::exec {
namespace {

/// XSAVE and its relatives.
Run xsave_op(Decoding& d) {
  const auto with = [&](XsaveForm form, CpuFeature feature, Run run) {
    d.op.imm = static_cast<std::int64_t>(form);
    return d.guest_has(feature) && set_memory(d, 0) ? run : nullptr;
  };
  switch (d.in.mnemonic) {
    case ZYDIS_MNEMONIC_XSAVE:
    case ZYDIS_MNEMONIC_XSAVE64: return with(XsaveForm::standard, CpuFeature::xsave, op_xsave());
    case ZYDIS_MNEMONIC_XSAVEOPT:
    case ZYDIS_MNEMONIC_XSAVEOPT64: return with(XsaveForm::optimized, CpuFeature::xsaveopt, op_xsave());
    case ZYDIS_MNEMONIC_XSAVEC:
    case ZYDIS_MNEMONIC_XSAVEC64: return with(XsaveForm::compacted, CpuFeature::xsavec, op_xsave());
    case ZYDIS_MNEMONIC_XSAVES:
    case ZYDIS_MNEMONIC_XSAVES64: return with(XsaveForm::supervisor, CpuFeature::xsaves, op_xsave());
    case ZYDIS_MNEMONIC_XRSTOR:
    case ZYDIS_MNEMONIC_XRSTOR64:
      return with(d.guest_has(CpuFeature::xsavec) ? XsaveForm::compacted : XsaveForm::standard, CpuFeature::xsave,
                  op_xrstor());
    case ZYDIS_MNEMONIC_XRSTORS:
    case ZYDIS_MNEMONIC_XRSTORS64: return with(XsaveForm::supervisor, CpuFeature::xsaves, op_xrstor());
    default: return nullptr;
  }
}

std::uint8_t vector_number(const Decoding& d, unsigned operand) {
  return static_cast<std::uint8_t>(ZydisRegisterGetId(d.at(operand).reg.value));
}

/// Masked moves and gathers.
Run masked_op(Decoding& d) {
  const bool vex = d.in.encoding == ZYDIS_INSTRUCTION_ENCODING_VEX;
  MaskedForm f{.unit = vex ? VectorUnit::avx : VectorUnit::sse};
  const auto with = [&](unsigned memory, CpuFeature feature, Run run) {
    d.op.imm = std::bit_cast<std::int64_t>(f);
    return d.guest_has(feature) && set_memory(d, memory) ? run : nullptr;
  };
  const auto masks = [&](unsigned element, CpuFeature feature) {
    f.store = d.is_memory(0);
    f.data = vector_number(d, f.store ? 2 : 0);
    f.mask = vector_number(d, 1);
    f.element = static_cast<std::uint8_t>(element);
    f.count = static_cast<std::uint8_t>(d.in.avx.vector_length / 8 / element);
    return with(f.store ? 0 : 2, feature, op_masked_move());
  };
  const auto bytes = [&](std::uint8_t count, VectorUnit unit) {
    f = {.data = vector_number(d, 0),
         .mask = vector_number(d, 1),
         .element = 1,
         .count = count,
         .store = true,
         .unit = unit};
    return with(2, vex ? CpuFeature::avx : CpuFeature::baseline, op_masked_move());
  };
  const auto gathers = [&](GatherElements elements) {
    // The index is a vector: what is left is an address with no index.
    ZydisDecodedOperand& memory = d.all_operands[1];
    f.index = static_cast<std::uint8_t>(ZydisRegisterGetId(std::exchange(memory.mem.index, ZYDIS_REGISTER_NONE)));
    f.data = vector_number(d, 0);
    f.mask = vector_number(d, 2);
    f.element = elements.data;
    f.index_element = elements.index;
    f.count = static_cast<std::uint8_t>(d.in.avx.vector_length / 8 / std::max(elements.data, elements.index));
    const Run run = with(1, CpuFeature::avx2, op_gather());
    d.op.scale |= static_cast<std::uint8_t>(std::countr_zero(std::max<unsigned>(memory.mem.scale, 1)));
    return run;
  };
  if (const auto elements = gather_elements(d.in.mnemonic)) return gathers(*elements);
  switch (d.in.mnemonic) {
    case ZYDIS_MNEMONIC_VMASKMOVPS: return masks(4, CpuFeature::avx);
    case ZYDIS_MNEMONIC_VMASKMOVPD: return masks(8, CpuFeature::avx);
    case ZYDIS_MNEMONIC_VPMASKMOVD: return masks(4, CpuFeature::avx2);
    case ZYDIS_MNEMONIC_VPMASKMOVQ: return masks(8, CpuFeature::avx2);
    case ZYDIS_MNEMONIC_MASKMOVQ: return bytes(8, VectorUnit::x87);
    case ZYDIS_MNEMONIC_MASKMOVDQU:
    case ZYDIS_MNEMONIC_VMASKMOVDQU: return bytes(16, f.unit);
    default: return nullptr;
  }
}

/// How the host runs the instruction. Its code is 64-bit code; the address form of the memory operand is not part of
/// it, so that may differ. Empty: it does not run it, or as something else.
std::optional<HostForm> host_form_of(const Decoding& d) {
  if (d.mode == CodeMode::bits64) return host_form(d);
  DecodedInstruction i;
  const bool means_the_same = read_instruction(d.code, CodeMode::bits64, i) && i.in.length == d.in.length &&
                              i.in.mnemonic == d.in.mnemonic && i.in.operand_width == d.in.operand_width;
  return means_the_same ? host_form(i) : std::nullopt;
}

}  // namespace

Run vector_op(Decoding& d) {
  if (const Run run = xsave_op(d)) return run;
  if (const Run run = masked_op(d)) return run;
  for (unsigned i = 0; i < d.in.operand_count; ++i)
    if (d.is_memory(i) && !set_memory(d, i)) return nullptr;
  const bool vex = d.in.encoding == ZYDIS_INSTRUCTION_ENCODING_VEX;
  switch (d.in.mnemonic) {
    case ZYDIS_MNEMONIC_LDMXCSR:
    case ZYDIS_MNEMONIC_VLDMXCSR: return op_ldmxcsr(vex);
    case ZYDIS_MNEMONIC_STMXCSR:
    case ZYDIS_MNEMONIC_VSTMXCSR: return op_stmxcsr(vex);
    case ZYDIS_MNEMONIC_VZEROUPPER:
    case ZYDIS_MNEMONIC_VZEROALL: return op_vzero(d.in.mnemonic == ZYDIS_MNEMONIC_VZEROALL);
    case ZYDIS_MNEMONIC_XGETBV:
      return d.guest_has(CpuFeature::xsave) ? op_xgetbv(d.guest_has(CpuFeature::xgetbv_ecx1)) : nullptr;
    default: break;
  }
  const auto form = host_form_of(d);
  const HostRoutine* const routine = form ? d.routines->find(*form) : nullptr;
  if (routine == nullptr) return nullptr;
  d.op.imm = std::bit_cast<std::int64_t>(routine);
  return op_host(*routine);
}

}  // namespace vpmu::exec
