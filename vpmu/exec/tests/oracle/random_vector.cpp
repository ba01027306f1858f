#include "exec/tests/oracle/random_vector.hpp"

#include <Zydis/Zydis.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "exec/host/host_form.hpp"
#include "exec/state/flags.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::exec::test {

struct RandomVector::Decoded {
  ZydisDecodedInstruction in;
  std::array<ZydisDecodedOperand, ZYDIS_MAX_OPERAND_COUNT> operands;
};

namespace {

using Decoded = RandomVector::Decoded;

std::optional<Decoded> decode(std::vector<std::byte> code) {
  static const ZydisDecoder decoder = [] {
    ZydisDecoder d;
    ZydisDecoderInit(&d, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
    return d;
  }();
  Decoded d;
  code.resize(ZYDIS_MAX_INSTRUCTION_LENGTH);
  if (!ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder, code.data(), code.size(), &d.in, d.operands.data())))
    return std::nullopt;
  return d;
}

/// Which variants of XSAVE this CPU has. SDM 2A CPUID, leaf DH.
std::uint32_t extended_state() {
  std::uint32_t a = 0xD, b{}, c = 1, d{};  // NOLINT(misc-const-correctness): the asm writes them
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  return a;
}
bool is_xsave(const ZydisDecodedInstruction& in) {
  return in.meta.category == ZYDIS_CATEGORY_XSAVE || in.meta.category == ZYDIS_CATEGORY_XSAVEOPT;
}

/// Whether the instruction belongs to one of these sets, and this CPU has it.
bool is_wanted(const ZydisDecodedInstruction& in) {
  if (in.meta.category == ZYDIS_CATEGORY_PREFETCH || (in.attributes & ZYDIS_ATTRIB_IS_PRIVILEGED) != 0) return false;
  if (in.encoding != ZYDIS_INSTRUCTION_ENCODING_LEGACY && in.encoding != ZYDIS_INSTRUCTION_ENCODING_VEX) return false;
  const auto set = in.meta.isa_set;
  if (in.mnemonic == ZYDIS_MNEMONIC_TZCNT) return false;  // tested with the integer instructions
  if (set == ZYDIS_ISA_SET_FXSAVE || set == ZYDIS_ISA_SET_FXSAVE64) return true;
  switch (in.meta.isa_ext) {
    case ZYDIS_ISA_EXT_X87:
    case ZYDIS_ISA_EXT_MMX:
    case ZYDIS_ISA_EXT_SSE:
    case ZYDIS_ISA_EXT_SSE2: return true;
    case ZYDIS_ISA_EXT_SSE3: return host_has(CpuFeature::sse3);
    case ZYDIS_ISA_EXT_SSSE3: return host_has(CpuFeature::ssse3);
    case ZYDIS_ISA_EXT_SSE4: return set != ZYDIS_ISA_SET_POPCNT && host_has(CpuFeature::sse42);
    case ZYDIS_ISA_EXT_AES: return host_has(CpuFeature::aes);
    case ZYDIS_ISA_EXT_PCLMULQDQ: return host_has(CpuFeature::pclmulqdq);
    case ZYDIS_ISA_EXT_AVX: return host_has(CpuFeature::vex_pclmulqdq);
    case ZYDIS_ISA_EXT_AVXAES: return host_has(CpuFeature::vex_aes);
    case ZYDIS_ISA_EXT_AVX2:
    case ZYDIS_ISA_EXT_AVX2GATHER: return host_has(CpuFeature::avx2);
    case ZYDIS_ISA_EXT_XSAVE: return in.mnemonic != ZYDIS_MNEMONIC_XGETBV && host_has(CpuFeature::avx);
    case ZYDIS_ISA_EXT_XSAVEOPT: return (extended_state() & 1U) != 0;
    case ZYDIS_ISA_EXT_XSAVEC: return (extended_state() & 2U) != 0;
    case ZYDIS_ISA_EXT_FMA: return host_has(CpuFeature::fma);
    case ZYDIS_ISA_EXT_F16C: return host_has(CpuFeature::f16c);
    case ZYDIS_ISA_EXT_BMI1: return host_has(CpuFeature::bmi1);
    case ZYDIS_ISA_EXT_BMI2: return host_has(CpuFeature::bmi2);
    case ZYDIS_ISA_EXT_ADOX_ADCX: return host_has(CpuFeature::adx);
    case ZYDIS_ISA_EXT_MOVBE: return host_has(CpuFeature::movbe);
    case ZYDIS_ISA_EXT_VAES: return host_has(CpuFeature::vaes);
    case ZYDIS_ISA_EXT_VPCLMULQDQ: return host_has(CpuFeature::vpclmulqdq);
    default: return false;
  }
}

template <class T>
void put(std::span<std::byte> to, std::size_t at, T value) {
  std::memcpy(to.data() + at, &value, sizeof value);
}

}  // namespace

RandomVector::RandomVector(std::uint64_t seed, std::uint64_t scratch, std::size_t bytes)
    : random_{seed}, scratch_{scratch}, bytes_{bytes} {
  find_forms();
}

void RandomVector::find_forms() {
  const auto byte = [](unsigned b) { return static_cast<std::byte>(b); };
  for (const bool memory : {false, true}) {
    for (unsigned map = 1; map <= 3; ++map) {
      for (unsigned opcode = 0; opcode < 256; ++opcode) {
        for (unsigned variant = 0; variant < 8; ++variant) {
          const unsigned prefix = variant % 4;
          const unsigned w = variant / 4;
          Form legacy{.memory = memory};
          constexpr std::array prefixes{0U, 0x66U, 0xF3U, 0xF2U};
          if (prefix != 0) legacy.before.push_back(byte(prefixes[prefix]));
          legacy.rex = legacy.before.size();
          legacy.before.push_back(byte(0x40 | w << 3U));
          legacy.opcode.push_back(byte(0x0F));
          if (map == 2) legacy.opcode.push_back(byte(0x38));
          if (map == 3) legacy.opcode.push_back(byte(0x3A));
          legacy.opcode.push_back(byte(opcode));
          try_form(legacy);
          for (unsigned l = 0; l < 2; ++l)
            try_form({.before = {byte(0xC4), byte(0xE0 | map), byte(w << 7U | 0x78 | l << 2U | prefix)},
                      .vex = true,
                      .opcode = {byte(opcode)},
                      .memory = memory});
        }
      }
    }
    for (unsigned opcode = 0xD8; opcode < 0xE0; ++opcode)
      for (int reg = 0; reg < 8; ++reg)
        for (int rm = memory ? -1 : 0; rm < (memory ? 0 : 8); ++rm)
          try_form({.before = {byte(0x40)}, .opcode = {byte(opcode)}, .reg = reg, .rm = rm, .memory = memory});
  }
  try_form({.before = {byte(0x40)}, .opcode = {byte(0x9B)}, .modrm = false});  // FWAIT
}

// Tries each ModRM.reg, and VEX.vvvv with and without a register; keeps one form if all are the same instruction.
void RandomVector::try_form(const Form& form) {
  std::vector<Form> found;
  std::set<std::string> names;
  for (int reg = 0; reg < 8; ++reg) {
    Form one = form;
    if (one.reg < 0) one.reg = reg;
    auto decoded = decode(encode(one));
    for (unsigned tries = 0; tries < 4 && !decoded; ++tries) decoded = decode(encode(one));
    if (!decoded || !is_wanted(decoded->in)) continue;
    const char* const name = ZydisMnemonicGetString(decoded->in.mnemonic);
    names.insert(name);
    ++mnemonics_[name];
    found.push_back(one);
    if (form.reg >= 0) break;
  }
  if (found.size() == 8 && names.size() == 1 && form.reg < 0)
    forms_.push_back(form);
  else
    forms_.insert(forms_.end(), found.begin(), found.end());
}

std::vector<std::byte> RandomVector::encode(const Form& form) {
  const auto byte = [](std::uint64_t b) { return static_cast<std::byte>(b); };
  std::vector<std::byte> code = form.before;
  const std::uint64_t r = random_();
  if (form.vex) {
    code[1] ^= byte((r & 7) << 5U);                            // R, X, B
    if ((r & 8) != 0) code[2] ^= byte((r >> 4U & 0xF) << 3U);  // vvvv: some instructions have none
  } else {
    code[form.rex] |= byte(r & 7);
  }
  code.insert(code.end(), form.opcode.begin(), form.opcode.end());
  if (!form.modrm) return code;
  const std::uint64_t reg = form.reg >= 0 ? static_cast<std::uint64_t>(form.reg) : r >> 8U & 7;
  if (!form.memory) {
    code.push_back(byte(0xC0 | reg << 3U | (form.rm >= 0 ? static_cast<std::uint64_t>(form.rm) : r >> 16U & 7)));
  } else {
    const std::uint64_t mod = 1 + (r >> 16U & 1);  // with displacement: no RIP-relative operand
    const std::uint64_t rm = r >> 20U & 7;
    code.push_back(byte(mod << 6U | reg << 3U | rm));
    if (rm == 4) code.push_back(byte(r >> 24U & 0xFF));
    for (unsigned i = 0; i < (mod == 1 ? 1U : 4U); ++i) code.push_back(byte(i == 3 ? 0 : r >> (32U + 8 * i) & 0xFF));
  }
  for (unsigned i = 0; i < 2; ++i) code.push_back(byte(random_() & 0xFF));  // an immediate, if there is one
  return code;
}

std::uint64_t RandomVector::number() {
  constexpr std::array<std::uint64_t, 8> edges{0, 1, 2, 16, 0x7FFF'FFFF, 0x8000'0000, ~0ULL, 1ULL << 63};
  const std::uint64_t r = random_();
  return r % 3 == 0 ? edges[r >> 8U & 7] : r % 3 == 1 ? r >> 56U : random_();
}

std::array<std::byte, 16> RandomVector::value() {
  std::array<std::byte, 16> out{};
  const auto any_float = [&](auto zero, auto bits) {
    using F = decltype(zero);
    using Limits = std::numeric_limits<F>;
    const std::array<F, 12> palette{F{0},
                                    -F{0},
                                    F{1},
                                    F{-1.5},
                                    Limits::infinity(),
                                    -Limits::infinity(),
                                    Limits::quiet_NaN(),
                                    Limits::denorm_min(),
                                    Limits::max(),
                                    Limits::min(),
                                    F{1} / F{3},
                                    F{2147483648.0}};
    const std::uint64_t r = random_();
    if (r % 8 == 0)
      return std::bit_cast<F>(static_cast<decltype(bits)>(
          (random_() & 0xF) | std::bit_cast<decltype(bits)>(Limits::infinity())));  // signalling NaNs
    return r % 8 < 5 ? palette[(r >> 8U) % 12] : static_cast<F>(static_cast<std::int64_t>(r) >> 40) / F{256};
  };
  switch (random_() % 6) {
    case 0:
      for (std::size_t i = 0; i < 4; ++i) put<float>(out, 4 * i, any_float(float{}, std::uint32_t{}));
      return out;
    case 1:
    case 2:
      for (std::size_t i = 0; i < 2; ++i) put<double>(out, 8 * i, any_float(double{}, std::uint64_t{}));
      return out;
    case 3: {
      const long double x = any_float(double{}, std::uint64_t{});
      std::memcpy(out.data(), &x, 10);
      return out;
    }
    case 4:
      for (std::byte& b : out) b = static_cast<std::byte>("ab\0c"[random_() & 3]);  // text with ends in it
      return out;
    default:
      for (std::size_t i = 0; i < 2; ++i) put(out, 8 * i, number());
      return out;
  }
}

void RandomVector::set_state(VectorCase& c) {
  const std::uint64_t r = random_();
  c.masked = r % 4 != 0;
  for (auto& g : c.before.gpr) g = number();
  c.before.flags = 0x202 | (random_() & x86::rflags::status);
  const std::uint32_t mxcsr_masks = c.masked ? 0x1F80 : static_cast<std::uint32_t>(r >> 8U) & 0x1F80;
  c.vectors.set_mxcsr(mxcsr_masks |
                      (static_cast<std::uint32_t>(r >> 16U) & 0xE07F));  // rounding, FTZ, DAZ and sticky flags
  const std::uint32_t fcw_masks = c.masked ? 0x3F : static_cast<std::uint32_t>(r >> 8U) & 0x3F;
  constexpr std::array<std::uint32_t, 3> precisions{0, 0x200, 0x300};
  c.vectors.set_fcw(static_cast<std::uint16_t>(0x40U | fcw_masks | precisions[r % 3] | (r >> 32U & 0xC00U)));
  // Where none is masked, a flag that is set makes an exception pending.
  const bool has_flags = c.masked || random_() % 4 == 0;
  c.vectors.set_fsw(static_cast<std::uint16_t>(r >> 40U & (has_flags ? 0x7F7FU : 0x7F00U)));
  c.vectors.find_pending_x87();
  put(c.vectors.legacy, 4, static_cast<std::uint8_t>(r % 5 == 0 ? 0xFF : random_()));
  for (unsigned n = 0; n < 8; ++n) {
    const auto v = value();
    std::copy_n(v.begin(), 10, c.vectors.legacy.begin() + 32 + 16 * n);
  }
  for (unsigned n = 0; n < 16; ++n) {
    const auto v = value();
    std::ranges::copy(v, c.vectors.legacy.begin() + static_cast<std::ptrdiff_t>(VectorState::xmm_at + 16 * n));
    if (host_has(CpuFeature::avx)) c.vectors.upper[n] = value();
  }
  c.vectors.xcr0 = host_has(CpuFeature::avx) ? 7 : 3;
}

// Often one prefix over and over, as code that wants long instructions has it. FS and GS are in use by the test itself.
void RandomVector::pad(std::vector<std::byte>& code) {
  constexpr std::array prefixes{0x66U, 0xF2U, 0xF3U, 0x2EU, 0x36U, 0x3EU, 0x26U, 0x48U};
  const auto d = decode(code);
  if (!d) return;
  code.resize(d->in.length);
  const std::uint64_t count = random_() % (ZYDIS_MAX_INSTRUCTION_LENGTH - code.size() + 1);
  const std::uint64_t one = random_();
  for (std::uint64_t n = 0; n < count; ++n) {
    const std::uint64_t which = one % 2 == 0 ? one >> 8U : random_();
    code.insert(code.begin(), static_cast<std::byte>(prefixes[which % prefixes.size()]));
  }
}

// Requests components that VectorState has, with an operand of the size that AVX needs.
void RandomVector::shape_xsave(VectorCase& c, const Decoded& d) {
  constexpr std::uint64_t alignment = 63;
  const std::uint64_t r = random_();
  c.bytes = 832;
  // All of it is in memory: which parts an instruction reaches is the CPU's choice.
  c.at = std::min(c.at, scratch_ + bytes_ - c.bytes);
  if (r % 16 != 0) c.at &= ~alignment;
  c.before.gpr[0] = r >> 8U & 7;
  c.before.gpr[2] = 0;
  c.restores = d.in.mnemonic == ZYDIS_MNEMONIC_XRSTOR || d.in.mnemonic == ZYDIS_MNEMONIC_XRSTOR64;
}

// Elements near the base, some far away; half of them masked.
void RandomVector::shape_gather(VectorCase& c, const Decoded& d, unsigned operand) {
  const auto put_vector = [&](ZydisRegister reg, auto make) {
    const auto n = static_cast<std::uint8_t>(ZydisRegisterGetId(reg));
    for (std::size_t i = 0; i < 8; ++i) {
      const std::uint32_t word = make(i);
      std::byte* const to = i < 4 ? c.vectors.legacy.data() + VectorState::xmm_at + 16 * n + 4 * i
                                  : c.vectors.upper[n].data() + 4 * (i - 4);
      std::memcpy(to, &word, sizeof word);
    }
  };
  const bool wide = d.in.mnemonic == ZYDIS_MNEMONIC_VGATHERQPS || d.in.mnemonic == ZYDIS_MNEMONIC_VGATHERQPD ||
                    d.in.mnemonic == ZYDIS_MNEMONIC_VPGATHERQD || d.in.mnemonic == ZYDIS_MNEMONIC_VPGATHERQQ;
  put_vector(d.operands[operand].mem.index, [&](std::size_t i) -> std::uint32_t {
    constexpr std::uint32_t far = 0x0FFF'FFFF;  // but not beyond 4 GiB
    const std::uint64_t r = random_();
    if (wide && i % 2 == 1) return 0;
    if (r % 64 == 0) return far;
    const auto near = static_cast<std::uint32_t>(r >> 8U & 0x3FF);
    return wide ? near : near - 0x1FF;
  });
  put_vector(d.operands[2].reg.value, [&](std::size_t) { return static_cast<std::uint32_t>(random_()); });
  c.at = scratch_ + bytes_ / 2;
  c.bytes = 1024;
}

VectorCase RandomVector::next(Prefixes prefixes) {
  for (;;) {
    VectorCase c;
    c.code = encode(forms_[random_() % forms_.size()]);
    if (prefixes == Prefixes::padded) pad(c.code);
    const auto d = decode(c.code);
    if (!d || !is_wanted(d->in)) continue;
    c.code.resize(d->in.length);
    c.mnemonic = ZydisMnemonicGetString(d->in.mnemonic);
    set_state(c);
    c.before.gpr[4] = scratch_ + bytes_ / 2;
    bool fits = true;
    for (unsigned i = 0; i < d->in.operand_count; ++i) {
      const auto& o = d->operands[i];
      if (o.type != ZYDIS_OPERAND_TYPE_MEMORY) continue;
      const auto number_of = [](ZydisRegister reg) { return reg - ZYDIS_REGISTER_RAX; };
      const bool gathers = o.mem.type == ZYDIS_MEMOP_TYPE_VSIB;
      c.bytes = o.size / 8;
      const int base = number_of(o.mem.base);
      const int index = gathers || o.mem.index == ZYDIS_REGISTER_NONE ? -1 : number_of(o.mem.index);
      if ((o.mem.type != ZYDIS_MEMOP_TYPE_MEM && !gathers) || base < 0 || base > 15 || base == index || index > 15) {
        fits = false;
        break;
      }
      // EDX:EAX name components, of which this CPU may have more than VectorState.
      fits = !is_xsave(d->in) || (base != 0 && base != 2);
      if (!fits) break;
      const std::uint64_t where = random_();
      c.at = scratch_ + bytes_ - c.bytes;  // the end of memory
      if (where % 8 != 0)
        c.at = scratch_ + page_size * (1 + (where >> 8U & 3)) -
               (c.bytes != 0 ? (where >> 16U) % (c.bytes + 1) : 0);  // around a page's end
      if (where % 8 > 1) c.at = scratch_ + (where >> 8U) % (bytes_ - 1024);
      if (where % 8 > 2) c.at &= ~31ULL;
      if (is_xsave(d->in)) shape_xsave(c, *d);
      if (gathers) shape_gather(c, *d, i);
      const std::uint64_t scaled = index < 0 ? 0 : c.before.gpr[static_cast<unsigned>(index)] * o.mem.scale;
      c.before.gpr[static_cast<unsigned>(base)] = c.at - static_cast<std::uint64_t>(o.mem.disp.value) - scaled;
    }
    if (!fits) continue;
    ZydisFormatter formatter;
    ZydisFormatterInit(&formatter, ZYDIS_FORMATTER_STYLE_INTEL);
    std::array<char, 128> text{};
    ZydisFormatterFormatInstruction(&formatter, &d->in, d->operands.data(), d->in.operand_count_visible, text.data(),
                                    text.size(), 0, nullptr);
    c.text = text.data();
    return c;
  }
}

}  // namespace vpmu::exec::test
