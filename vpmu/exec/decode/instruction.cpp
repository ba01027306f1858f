#include "exec/decode/instruction.hpp"

/// Which instruction sets there are, what a CPU must have for each, and what instructions have in common.
namespace vpmu::exec {
namespace {

/// For Zydis 4.1 they are a set of their own, which 4.0 has no name for.
bool is_fcomi(ZydisMnemonic mnemonic) {
  return mnemonic == ZYDIS_MNEMONIC_FCOMI || mnemonic == ZYDIS_MNEMONIC_FCOMIP || mnemonic == ZYDIS_MNEMONIC_FUCOMI ||
         mnemonic == ZYDIS_MNEMONIC_FUCOMIP;
}

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

}  // namespace

bool read_instruction(std::span<const std::byte> code, CodeMode mode, DecodedInstruction& to) {
  const ZyanStatus status =
      ZydisDecoderDecodeFull(&zydis_decoder(mode), code.data(), code.size(), &to.in, to.all_operands.data());
  if (!ZYAN_SUCCESS(status)) return false;
  to.code = code.first(to.in.length);
  return true;
}

BranchKind branch_kind(const DecodedInstruction& i) {
  const ZydisDecodedInstruction& in = i.in;
  if (in.mnemonic == ZYDIS_MNEMONIC_IRET || in.mnemonic == ZYDIS_MNEMONIC_IRETD || in.mnemonic == ZYDIS_MNEMONIC_IRETQ)
    return BranchKind::far;
  const bool far = in.meta.branch_type == ZYDIS_BRANCH_TYPE_FAR;
  const bool relative = i.at(0).type == ZYDIS_OPERAND_TYPE_IMMEDIATE;
  switch (in.meta.category) {
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

std::optional<CpuFeature> host_feature(const DecodedInstruction& i) {
  const ZydisDecodedInstruction& in = i.in;
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

std::optional<CpuFeature> feature_needed(const DecodedInstruction& i) {
  switch (i.in.meta.isa_set) {
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
    default: return host_feature(i);
  }
}

std::optional<CpuFeature> feature_needed(std::span<const std::byte> code, CodeMode mode) {
  DecodedInstruction i;
  return read_instruction(code, mode, i) ? feature_needed(i) : std::nullopt;
}

bool is_of_the_system(const DecodedInstruction& i) {
  switch (i.in.meta.category) {
    case ZYDIS_CATEGORY_SYSTEM:
    case ZYDIS_CATEGORY_SYSCALL:
    case ZYDIS_CATEGORY_SYSRET:
    case ZYDIS_CATEGORY_INTERRUPT:
    case ZYDIS_CATEGORY_IO:
    case ZYDIS_CATEGORY_IOSTRINGOP:
    case ZYDIS_CATEGORY_VTX: return true;
    default: return false;
  }
}

// SDM 2B NOP: 0F0DH and 0F18H to 0F1FH do nothing on a CPU that gives them no other meaning: ENDBR and RDSSP without
// CET, MPX, CLDEMOTE.
bool is_reserved_nop(const DecodedInstruction& i) {
  switch (i.in.mnemonic) {
    case ZYDIS_MNEMONIC_ENDBR32:
    case ZYDIS_MNEMONIC_ENDBR64:
    case ZYDIS_MNEMONIC_RDSSPD:  // unwinders look for shadow stacks with these
    case ZYDIS_MNEMONIC_RDSSPQ:
    case ZYDIS_MNEMONIC_CLDEMOTE:
    case ZYDIS_MNEMONIC_PREFETCH:
    case ZYDIS_MNEMONIC_PREFETCHWT1: return true;
    default: return i.in.meta.isa_set == ZYDIS_ISA_SET_MPX;
  }
}

VectorUnit unit_needed(std::span<const std::byte> code, CodeMode mode) {
  DecodedInstruction decoded;
  if (!read_instruction(code, mode, decoded)) return VectorUnit::none;
  if (const auto form = host_form(decoded)) return form->unit;
  const ZydisDecodedInstruction& in = decoded.in;
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
  if (in.mnemonic == ZYDIS_MNEMONIC_MASKMOVQ) return VectorUnit::x87;
  const bool control = in.mnemonic == ZYDIS_MNEMONIC_LDMXCSR || in.mnemonic == ZYDIS_MNEMONIC_STMXCSR;
  return control || in.mnemonic == ZYDIS_MNEMONIC_MASKMOVDQU ? VectorUnit::sse : VectorUnit::none;
}

}  // namespace vpmu::exec
