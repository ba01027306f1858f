#include "exec/instruction_set.hpp"

#include "exec/host_form.hpp"

/// Which instruction sets there are, what a CPU must have for each, and what instructions have in common.
namespace vpmu::exec {
namespace {

/// For Zydis 4.1 they are a set of their own, which 4.0 has no name for.
bool is_fcomi(ZydisMnemonic mnemonic) {
  return mnemonic == ZYDIS_MNEMONIC_FCOMI || mnemonic == ZYDIS_MNEMONIC_FCOMIP || mnemonic == ZYDIS_MNEMONIC_FUCOMI ||
         mnemonic == ZYDIS_MNEMONIC_FUCOMIP;
}

}  // namespace

const ZydisDecoder& zydis_decoder(CodeMode mode) {
  static const auto all = [] {
    std::array<ZydisDecoder, 3> d;  // by CodeMode
    auto& [bits64, bits32, bits16] = d;
    ZydisDecoderInit(&bits64, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
    ZydisDecoderInit(&bits32, ZYDIS_MACHINE_MODE_LEGACY_32, ZYDIS_STACK_WIDTH_32);
    ZydisDecoderInit(&bits16, ZYDIS_MACHINE_MODE_LEGACY_16, ZYDIS_STACK_WIDTH_16);
    return d;
  }();
  return all[static_cast<std::size_t>(mode)];
}

BranchKind branch_kind(const ZydisDecodedInstruction& i, const ZydisDecodedOperand& target) {
  if (i.mnemonic == ZYDIS_MNEMONIC_IRET || i.mnemonic == ZYDIS_MNEMONIC_IRETD || i.mnemonic == ZYDIS_MNEMONIC_IRETQ)
    return BranchKind::far;
  const bool far = i.meta.branch_type == ZYDIS_BRANCH_TYPE_FAR;
  const bool relative = target.type == ZYDIS_OPERAND_TYPE_IMMEDIATE;
  switch (i.meta.category) {
    case ZYDIS_CATEGORY_COND_BR: return BranchKind::conditional;
    case ZYDIS_CATEGORY_UNCOND_BR:
      return far ? BranchKind::far : relative ? BranchKind::near_rel_jmp : BranchKind::near_ind_jmp;
    case ZYDIS_CATEGORY_CALL:
      return far ? BranchKind::far : relative ? BranchKind::near_rel_call : BranchKind::near_ind_call;
    case ZYDIS_CATEGORY_RET: return far ? BranchKind::far : BranchKind::near_ret;
    case ZYDIS_CATEGORY_SYSCALL:
    case ZYDIS_CATEGORY_SYSRET:
    case ZYDIS_CATEGORY_INTERRUPT: return BranchKind::far;
    default: return BranchKind::none;
  }
}

std::optional<GatherElements> gather_elements(ZydisMnemonic mnemonic) {
  switch (mnemonic) {
    case ZYDIS_MNEMONIC_VGATHERDPS:
    case ZYDIS_MNEMONIC_VPGATHERDD: return GatherElements{.index = 4, .data = 4};
    case ZYDIS_MNEMONIC_VGATHERDPD:
    case ZYDIS_MNEMONIC_VPGATHERDQ: return GatherElements{.index = 4, .data = 8};
    case ZYDIS_MNEMONIC_VGATHERQPS:
    case ZYDIS_MNEMONIC_VPGATHERQD: return GatherElements{.index = 8, .data = 4};
    case ZYDIS_MNEMONIC_VGATHERQPD:
    case ZYDIS_MNEMONIC_VPGATHERQQ: return GatherElements{.index = 8, .data = 8};
    default: return std::nullopt;
  }
}

std::optional<CpuFeature> host_feature(const ZydisDecodedInstruction& in) {
  const bool wide = in.avx.vector_length == 256;
  if (is_fcomi(in.mnemonic)) return CpuFeature::baseline;
  switch (in.meta.isa_set) {
    case ZYDIS_ISA_SET_PPRO:
      if (in.meta.isa_ext != ZYDIS_ISA_EXT_X87) return std::nullopt;
      return CpuFeature::baseline;
    case ZYDIS_ISA_SET_X87:
    case ZYDIS_ISA_SET_FCMOV:
    case ZYDIS_ISA_SET_PENTIUMMMX:
    case ZYDIS_ISA_SET_FXSAVE:
    case ZYDIS_ISA_SET_FXSAVE64:
    case ZYDIS_ISA_SET_SSE:
    case ZYDIS_ISA_SET_SSE2:
    case ZYDIS_ISA_SET_SSE2MMX: return CpuFeature::baseline;
    case ZYDIS_ISA_SET_SSE3:
    case ZYDIS_ISA_SET_SSE3X87: return CpuFeature::sse3;
    case ZYDIS_ISA_SET_SSSE3:
    case ZYDIS_ISA_SET_SSSE3MMX: return CpuFeature::ssse3;
    case ZYDIS_ISA_SET_SSE4: return CpuFeature::sse41;
    case ZYDIS_ISA_SET_SSE42: return CpuFeature::sse42;
    case ZYDIS_ISA_SET_AES: return CpuFeature::aes;
    case ZYDIS_ISA_SET_PCLMULQDQ: return CpuFeature::pclmulqdq;
    case ZYDIS_ISA_SET_AVX:
      return in.mnemonic == ZYDIS_MNEMONIC_VPCLMULQDQ ? CpuFeature::vex_pclmulqdq : CpuFeature::avx;
    case ZYDIS_ISA_SET_AVXAES: return CpuFeature::vex_aes;
    case ZYDIS_ISA_SET_VAES: return wide ? CpuFeature::vaes : CpuFeature::vex_aes;
    case ZYDIS_ISA_SET_VPCLMULQDQ: return wide ? CpuFeature::vpclmulqdq : CpuFeature::vex_pclmulqdq;
    case ZYDIS_ISA_SET_AVX2: return CpuFeature::avx2;
    case ZYDIS_ISA_SET_FMA: return CpuFeature::fma;
    case ZYDIS_ISA_SET_F16C: return CpuFeature::f16c;
    case ZYDIS_ISA_SET_BMI1: return CpuFeature::bmi1;
    case ZYDIS_ISA_SET_BMI2: return CpuFeature::bmi2;
    case ZYDIS_ISA_SET_ADOX_ADCX: return CpuFeature::adx;
    case ZYDIS_ISA_SET_MOVBE: return CpuFeature::movbe;
    default: return std::nullopt;
  }
}

std::optional<CpuFeature> feature_needed(std::span<const std::byte> code, CodeMode mode) {
  ZydisDecodedInstruction in;
  if (!ZYAN_SUCCESS(ZydisDecoderDecodeInstruction(&zydis_decoder(mode), nullptr, code.data(), code.size(), &in)))
    return std::nullopt;
  switch (in.meta.isa_set) {
    case ZYDIS_ISA_SET_CLFLUSHOPT: return CpuFeature::clflushopt;
    case ZYDIS_ISA_SET_RDRAND: return CpuFeature::rdrand;
    case ZYDIS_ISA_SET_RDSEED: return CpuFeature::rdseed;
    case ZYDIS_ISA_SET_RDTSCP: return CpuFeature::rdtscp;
    case ZYDIS_ISA_SET_RDWRFSGS: return CpuFeature::fsgsbase;
    case ZYDIS_ISA_SET_SMAP: return CpuFeature::smap;
    case ZYDIS_ISA_SET_AVX2GATHER: return CpuFeature::avx2;
    case ZYDIS_ISA_SET_XSAVE: return CpuFeature::xsave;
    case ZYDIS_ISA_SET_XSAVEOPT: return CpuFeature::xsaveopt;
    case ZYDIS_ISA_SET_XSAVEC: return CpuFeature::xsavec;
    case ZYDIS_ISA_SET_XSAVES: return CpuFeature::xsaves;
    default: return host_feature(in);
  }
}

VectorUnit unit_needed(std::span<const std::byte> code, CodeMode mode) {
  if (const auto form = host_form(code, mode)) return form->unit;
  ZydisDecodedInstruction in;
  if (!ZYAN_SUCCESS(ZydisDecoderDecodeInstruction(&zydis_decoder(mode), nullptr, code.data(), code.size(), &in)))
    return VectorUnit::none;
  switch (in.meta.isa_set) {
    case ZYDIS_ISA_SET_XSAVE:
    case ZYDIS_ISA_SET_XSAVEOPT:
    case ZYDIS_ISA_SET_XSAVEC:
    case ZYDIS_ISA_SET_XSAVES:
      // XGETBV and XSETBV depend on CR4 alone, and not on CR0.TS.
      return in.mnemonic == ZYDIS_MNEMONIC_XGETBV || in.mnemonic == ZYDIS_MNEMONIC_XSETBV ? VectorUnit::none
                                                                                          : VectorUnit::xsave;
    default: break;
  }
  if (in.encoding == ZYDIS_INSTRUCTION_ENCODING_VEX) return VectorUnit::avx;
  const bool control = in.mnemonic == ZYDIS_MNEMONIC_LDMXCSR || in.mnemonic == ZYDIS_MNEMONIC_STMXCSR;
  return control || in.mnemonic == ZYDIS_MNEMONIC_MASKMOVDQU ? VectorUnit::sse : VectorUnit::none;
}

}  // namespace vpmu::exec
