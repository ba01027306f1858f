#include <algorithm>
#include <bit>
#include <utility>

#include "exec/decoding.hpp"
#include "exec/instruction_set.hpp"

/// From Zydis to ops: what works with vector registers or saves them.
namespace vpmu::exec {
namespace {

/// XSAVE and its relatives.
Run xsave_op(Decoding& d) {
  const auto with = [&](XsaveForm form, CpuFeature feature, Run run) {
    d.op.imm = static_cast<std::int64_t>(form);
    return d.has(feature) && set_memory(d, 0) ? run : nullptr;
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
      return with(d.has(CpuFeature::xsavec) ? XsaveForm::compacted : XsaveForm::standard, CpuFeature::xsave,
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
  MaskedForm f{.vex = d.in.encoding == ZYDIS_INSTRUCTION_ENCODING_VEX};
  const auto with = [&](unsigned memory, CpuFeature feature, Run run) {
    d.op.imm = std::bit_cast<std::int64_t>(f);
    return d.has(feature) && set_memory(d, memory) ? run : nullptr;
  };
  const auto masks = [&](unsigned element, CpuFeature feature) {
    f.store = d.is_memory(0);
    f.data = vector_number(d, f.store ? 2 : 0);
    f.mask = vector_number(d, 1);
    f.element = static_cast<std::uint8_t>(element);
    f.count = static_cast<std::uint8_t>(d.in.avx.vector_length / 8 / element);
    return with(f.store ? 0 : 2, feature, op_masked_move());
  };
  const auto gathers = [&](GatherElements elements) {
    // The index is a vector: what is left is an address with no index.
    ZydisDecodedOperand& memory = d.operands[1];
    f.index = static_cast<std::uint8_t>(ZydisRegisterGetId(std::exchange(memory.mem.index, ZYDIS_REGISTER_NONE)));
    f.data = vector_number(d, 0);
    f.mask = vector_number(d, 2);
    f.element = elements.data;
    f.index_element = elements.index;
    f.count = static_cast<std::uint8_t>(d.in.avx.vector_length / 8 / std::max(elements.data, elements.index));
    const Run run = d.in.address_width == 64 ? with(1, CpuFeature::avx2, op_gather()) : nullptr;
    d.op.scale = static_cast<std::uint8_t>(std::countr_zero(std::max<unsigned>(memory.mem.scale, 1)));
    return run;
  };
  if (const auto elements = gather_elements(d.in.mnemonic)) return gathers(*elements);
  switch (d.in.mnemonic) {
    case ZYDIS_MNEMONIC_VMASKMOVPS: return masks(4, CpuFeature::avx);
    case ZYDIS_MNEMONIC_VMASKMOVPD: return masks(8, CpuFeature::avx);
    case ZYDIS_MNEMONIC_VPMASKMOVD: return masks(4, CpuFeature::avx2);
    case ZYDIS_MNEMONIC_VPMASKMOVQ: return masks(8, CpuFeature::avx2);
    case ZYDIS_MNEMONIC_MASKMOVDQU:
    case ZYDIS_MNEMONIC_VMASKMOVDQU:
      f = {.data = vector_number(d, 0),
           .mask = vector_number(d, 1),
           .element = 1,
           .count = 16,
           .store = true,
           .vex = f.vex};
      return with(2, f.vex ? CpuFeature::avx : CpuFeature::baseline, op_masked_move());
    default: return nullptr;
  }
}

/// Host routines are 64-bit code. The address form of the memory operand is not part of them, so it may differ.
bool means_the_same_in_64_bit_code(const Decoding& d) {
  ZydisDecodedInstruction in;
  const auto status = ZydisDecoderDecodeInstruction(&zydis_decoder(), nullptr, d.code.data(), d.code.size(), &in);
  return ZYAN_SUCCESS(status) && in.length == d.in.length && in.mnemonic == d.in.mnemonic &&
         in.operand_width == d.in.operand_width;
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
    case ZYDIS_MNEMONIC_XGETBV: return d.has(CpuFeature::xsave) ? op_xgetbv(d.has(CpuFeature::xgetbv_ecx1)) : nullptr;
    default: break;
  }
  if (d.mode != CodeMode::bits64 && !means_the_same_in_64_bit_code(d)) return nullptr;
  const HostRoutine* const routine = d.routines->find(d.code);
  if (routine == nullptr) return nullptr;
  d.op.imm = std::bit_cast<std::int64_t>(routine);
  return op_host(*routine);
}

}  // namespace vpmu::exec
