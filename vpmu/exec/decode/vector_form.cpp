#include "exec/decode/vector_form.hpp"

#include <algorithm>
#include <array>

namespace vpmu::exec {
namespace {

/// VEX.pp. SDM 2A table 2-9.
enum Prefix : std::uint8_t { no_prefix, prefix_66, prefix_f3, prefix_f2 };
constexpr std::uint8_t none = 1U << no_prefix, p66 = 1U << prefix_66, f3 = 1U << prefix_f3, f2 = 1U << prefix_f2;
constexpr std::uint8_t packed = none | p66, scalar = f3 | f2, all = packed | scalar;

/// What AVX's form of an SSE instruction has for the operand that is both source and destination.
enum class Shape : std::uint8_t {
  other,              ///< Not known here.
  destination,        ///< Nothing: SSE's destination is no source.
  both,               ///< VEX.vvvv is the source.
  both_of_registers,  ///< The same, unless the other operand is in memory.
};
struct Row {
  std::uint8_t map, prefixes;  ///< A bit for each Prefix.
  std::uint8_t first, last;    ///< Opcodes.
  Shape shape;
};
// SDM 2C appendix A, and each instruction's table of encodings. MMX's are no SSE.
constexpr std::array rows{
    Row{1, packed, 0x10, 0x11, Shape::destination},        // MOVUPS, MOVUPD
    Row{1, scalar, 0x10, 0x11, Shape::both_of_registers},  // MOVSS, MOVSD
    Row{1, packed, 0x12, 0x12, Shape::both},               // MOVLPS, MOVHLPS, MOVLPD
    Row{1, scalar, 0x12, 0x12, Shape::destination},        // MOVDDUP, MOVSLDUP
    Row{1, packed, 0x13, 0x13, Shape::destination},        // MOVLPS, MOVLPD
    Row{1, packed, 0x14, 0x16, Shape::both},               // UNPCKLPS to MOVHPS
    Row{1, f3, 0x16, 0x16, Shape::destination},            // MOVSHDUP
    Row{1, packed, 0x17, 0x17, Shape::destination},        // MOVHPS, MOVHPD
    Row{1, packed, 0x28, 0x29, Shape::destination},        // MOVAPS, MOVAPD
    Row{1, scalar, 0x2A, 0x2A, Shape::both},               // CVTSI2SS, CVTSI2SD
    Row{1, packed, 0x2B, 0x2B, Shape::destination},        // MOVNTPS, MOVNTPD
    Row{1, scalar, 0x2C, 0x2D, Shape::destination},        // CVTTSS2SI to CVTSD2SI
    Row{1, packed, 0x2E, 0x2F, Shape::destination},        // UCOMISS to COMISD
    Row{1, packed, 0x50, 0x51, Shape::destination},        // MOVMSKPS, SQRTPS, and of doubles
    Row{1, scalar, 0x51, 0x51, Shape::both},               // SQRTSS, SQRTSD
    Row{1, none, 0x52, 0x53, Shape::destination},          // RSQRTPS, RCPPS
    Row{1, f3, 0x52, 0x53, Shape::both},                   // RSQRTSS, RCPSS
    Row{1, packed, 0x54, 0x57, Shape::both},               // ANDPS to XORPD
    Row{1, all, 0x58, 0x59, Shape::both},                  // ADDPS to MULSD
    Row{1, packed, 0x5A, 0x5B, Shape::destination},        // CVTPS2PD, CVTDQ2PS
    Row{1, scalar, 0x5A, 0x5A, Shape::both},               // CVTSS2SD, CVTSD2SS
    Row{1, f3, 0x5B, 0x5B, Shape::destination},            // CVTTPS2DQ
    Row{1, all, 0x5C, 0x5F, Shape::both},                  // SUBPS to MAXSD
    Row{1, p66, 0x60, 0x6D, Shape::both},                  // PUNPCKLBW to PUNPCKHQDQ
    Row{1, p66, 0x6E, 0x6F, Shape::destination},           // MOVD, MOVQ, MOVDQA
    Row{1, f3, 0x6F, 0x6F, Shape::destination},            // MOVDQU
    Row{1, p66 | scalar, 0x70, 0x70, Shape::destination},  // PSHUFD, PSHUFHW, PSHUFLW
    Row{1, p66, 0x71, 0x76, Shape::both},                  // Shifts by a constant, PCMPEQB to PCMPEQD
    Row{1, p66 | f2, 0x7C, 0x7D, Shape::both},             // HADDPD to HSUBPS
    Row{1, p66 | f3, 0x7E, 0x7F, Shape::destination},      // MOVD, MOVQ, MOVDQA, MOVDQU
    Row{1, all, 0xC2, 0xC2, Shape::both},                  // CMPPS to CMPSD
    Row{1, p66, 0xC4, 0xC4, Shape::both},                  // PINSRW
    Row{1, p66, 0xC5, 0xC5, Shape::destination},           // PEXTRW
    Row{1, packed, 0xC6, 0xC6, Shape::both},               // SHUFPS, SHUFPD
    Row{1, p66 | f2, 0xD0, 0xD0, Shape::both},             // ADDSUBPD, ADDSUBPS
    Row{1, p66, 0xD1, 0xD5, Shape::both},                  // PSRLW to PMULLW
    Row{1, p66, 0xD6, 0xD7, Shape::destination},           // MOVQ, PMOVMSKB
    Row{1, p66, 0xD8, 0xE5, Shape::both},                  // PSUBUSB to PMULHW
    Row{1, p66 | scalar, 0xE6, 0xE6, Shape::destination},  // CVTTPD2DQ, CVTDQ2PD, CVTPD2DQ
    Row{1, p66, 0xE7, 0xE7, Shape::destination},           // MOVNTDQ
    Row{1, p66, 0xE8, 0xEF, Shape::both},                  // PSUBSB to PXOR
    Row{1, f2, 0xF0, 0xF0, Shape::destination},            // LDDQU
    Row{1, p66, 0xF1, 0xF6, Shape::both},                  // PSLLW to PSADBW
    Row{1, p66, 0xF8, 0xFE, Shape::both},                  // PSUBB to PADDD
    Row{2, p66, 0x00, 0x0B, Shape::both},                  // PSHUFB to PMULHRSW
    Row{2, p66, 0x17, 0x17, Shape::destination},           // PTEST
    Row{2, p66, 0x1C, 0x1E, Shape::destination},           // PABSB to PABSD
    Row{2, p66, 0x20, 0x25, Shape::destination},           // PMOVSXBW to PMOVSXDQ
    Row{2, p66, 0x28, 0x29, Shape::both},                  // PMULDQ, PCMPEQQ
    Row{2, p66, 0x2A, 0x2A, Shape::destination},           // MOVNTDQA
    Row{2, p66, 0x2B, 0x2B, Shape::both},                  // PACKUSDW
    Row{2, p66, 0x30, 0x35, Shape::destination},           // PMOVZXBW to PMOVZXDQ
    Row{2, p66, 0x37, 0x40, Shape::both},                  // PCMPGTQ to PMULLD
    Row{2, p66, 0x41, 0x41, Shape::destination},           // PHMINPOSUW
    Row{2, p66, 0xDB, 0xDB, Shape::destination},           // AESIMC
    Row{2, p66, 0xDC, 0xDF, Shape::both},                  // AESENC to AESDECLAST
    Row{3, p66, 0x08, 0x09, Shape::destination},           // ROUNDPS, ROUNDPD
    Row{3, p66, 0x0A, 0x0F, Shape::both},                  // ROUNDSS to PALIGNR
    Row{3, p66, 0x14, 0x17, Shape::destination},           // PEXTRB to EXTRACTPS
    Row{3, p66, 0x20, 0x22, Shape::both},                  // PINSRB to PINSRQ
    Row{3, p66, 0x40, 0x42, Shape::both},                  // DPPS to MPSADBW
    Row{3, p66, 0x44, 0x44, Shape::both},                  // PCLMULQDQ
    Row{3, p66, 0xDF, 0xDF, Shape::destination},           // AESKEYGENASSIST
};

Shape shape_of(const VectorForm& v) {
  const auto* const row = std::ranges::find_if(rows, [&](const Row& r) {
    return r.map == v.map && (r.prefixes >> v.prefix & 1) != 0 && v.opcode >= r.first && v.opcode <= r.last;
  });
  return row == rows.end() ? Shape::other : row->shape;
}

/// Where REX.W says something, AVX's form has it too; elsewhere SSE ignores it.
bool heeds_w(const VectorForm& v) {
  if (v.map == 3) return v.opcode == 0x16 || v.opcode == 0x22;  // PEXTRD and PEXTRQ, PINSRD and PINSRQ
  if (v.map != 1) return false;
  const bool converts = v.opcode == 0x2A || v.opcode == 0x2C || v.opcode == 0x2D;
  const bool moves = (v.opcode == 0x6E || v.opcode == 0x7E) && v.prefix == prefix_66;  // MOVD and MOVQ
  return converts || moves;
}

/// MOVSS and MOVSD to a register by their other opcode. And shifts by a constant: ModRM.reg is part of their opcode.
bool writes_rm(const VectorForm& v) { return v.map == 1 && (v.opcode == 0x11 || v.reg_is_opcode); }
bool shifts_by_constant(const VectorForm& v) { return v.map == 1 && v.opcode >= 0x71 && v.opcode <= 0x73; }

/// Whether the result is the same whatever is in the register, if both operands are one register.
bool gives_the_same_of_any(const VectorForm& v) {
  if (v.map != 1 || v.bytes != 0 || v.reg_is_gpr || v.rm_is_gpr || v.reg != v.rm) return false;
  const bool xors = v.opcode == 0x57 || v.opcode == 0xEF;
  const bool subtracts = v.opcode >= 0xF8 && v.opcode <= 0xFB;
  const bool compares = v.opcode >= 0x74 && v.opcode <= 0x76;
  return xors || subtracts || compares;
}

/// False: it names general registers that are not in ModRM.
bool name_gprs(const HostForm& form, VectorForm& v) {
  for (unsigned i = 0; i < form.gpr_count; ++i) {
    const HostGpr& g = form.gprs[i];
    if (g.scratch != HostForm::for_reg && g.scratch != HostForm::for_rm) return false;
    const bool is_reg = g.scratch == HostForm::for_reg;
    (is_reg ? v.reg : v.rm) = g.guest;
    (is_reg ? v.reg_is_gpr : v.rm_is_gpr) = true;
    v.writes_gpr = g.written;
  }
  return form.gpr_count <= 1;
}

/// For SSE: fills in what AVX's form needs besides. False: there is no such form.
bool become_avx(VectorForm& v) {
  const Shape shape = shape_of(v);
  if (shape == Shape::other) return false;
  // AVX's comparisons have more predicates.
  constexpr unsigned predicates = 8;
  if (v.map == 1 && v.opcode == 0xC2 && v.immediate.value_or(predicates) >= predicates) return false;
  const bool memory = v.bytes != 0;
  v.has_vvvv = shape == Shape::both || (shape == Shape::both_of_registers && !memory);
  v.vvvv = writes_rm(v) ? v.rm : v.reg;
  const bool one_register = !memory && !v.reg_is_gpr && !v.rm_is_gpr && v.reg == v.rm;
  if ((!v.has_vvvv && !one_register) || gives_the_same_of_any(v))
    v.read = static_cast<std::uint16_t>(v.read & ~v.written);
  return true;
}
/// The immediate of VBLENDVPS, VBLENDVPD and VPBLENDVB names a register. SDM 2C appendix A, table A-5.
bool has_register_in_immediate(const VectorForm& v) { return v.map == 3 && v.opcode >= 0x4A && v.opcode <= 0x4C; }

}  // namespace

std::optional<VectorForm> vector_form(const HostForm& form) {
  const bool is_avx = form.unit == VectorUnit::avx;
  if ((form.unit != VectorUnit::sse && !is_avx) || form.reads_flags || form.control_in_memory) return std::nullopt;
  const Encoding& e = form.encoding;
  if (e.map == 0 || !e.has_modrm) return std::nullopt;
  VectorForm v{.is_avx = is_avx,
               .wide = e.l,
               .prefix = e.pp(),
               .map = e.map,
               .opcode = e.opcode,
               .immediate = e.immediate,
               .reg = e.reg,
               .rm = e.rm,
               .vvvv = e.vvvv,
               .used = form.vectors,
               .read = form.vectors_read,
               .written = form.vectors_written,
               .uses_mxcsr = form.uses_mxcsr,
               .writes_flags = form.writes_flags,
               .stores = form.stores,
               .bytes = form.bytes,
               .alignment = form.alignment};
  v.w = e.w && (is_avx || heeds_w(v));
  if (!name_gprs(form, v)) return std::nullopt;
  v.reg_is_opcode = shifts_by_constant(v);
  if (!is_avx) return become_avx(v) ? std::optional{v} : std::nullopt;
  v.has_vvvv = true;  // where it names none, all its bits are set: register 0
  return has_register_in_immediate(v) ? std::nullopt : std::optional{v};
}

}  // namespace vpmu::exec
