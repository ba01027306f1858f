#include "exec/decode/instruction_class.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "exec/decode/instruction.hpp"

namespace vpmu::exec {
namespace {

using Class = InstructionClass;

/// The registers that an instruction works in.
enum class Unit : std::uint8_t { none, mmx, sse, avx, avx_256 };
constexpr std::size_t units = 5;

constexpr std::array<std::string_view, 34> x87_arithmetic{
    "fadd",  "faddp",  "fcom",  "fcomi",  "fcomip", "fcomp", "fcompp", "fdiv",    "fdivp",  "fdivr",  "fdivrp", "fiadd",
    "ficom", "ficomp", "fidiv", "fidivr", "fimul",  "fisub", "fisubr", "fmul",    "fmulp",  "fprem",  "fprem1", "fsqrt",
    "fsub",  "fsubp",  "fsubr", "fsubrp", "ftst",   "fucom", "fucomi", "fucomip", "fucomp", "fucompp"};
constexpr std::array<std::string_view, 8> x87_transcendental{"f2xm1",   "fcos", "fpatan", "fptan",
                                                             "fsincos", "fsin", "fyl2x",  "fyl2xp1"};
constexpr std::array<std::string_view, 5> x87_operations{"fabs", "fchs", "frndint", "fscale", "fxtract"};
constexpr std::array<std::string_view, 4> products{"div", "idiv", "imul", "mul"};

template <std::size_t n>
bool is_one_of(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}
template <std::size_t n>
bool begins_with_one_of(const std::array<std::string_view, n>& beginnings, std::string_view name) {
  return std::ranges::any_of(beginnings, [name](std::string_view b) { return name.starts_with(b); });
}

enum class Type : std::uint8_t { packed_single, scalar_single, packed_double, scalar_double, integer };

Type by_suffix(std::string_view type) {
  if (type == "ps") return Type::packed_single;
  if (type == "ss") return Type::scalar_single;
  if (type == "pd") return Type::packed_double;
  if (type == "sd") return Type::scalar_double;
  return Type::integer;
}

/// Of an SSE instruction, or of the one that an AVX instruction is like.
Type type_of(std::string_view name) {
  // PABSD, PMAXSD and the like.
  if (name.starts_with('p')) return Type::integer;
  const auto to = name.find('2');
  if (name.starts_with("cvt") && to != std::string_view::npos && to >= 2) {
    const Type source = by_suffix(name.substr(to - 2, 2));
    return source != Type::integer ? source : by_suffix(name.substr(to + 1));
  }
  // Their names do not end in the type of their operands.
  if (name == "movshdup" || name == "movsldup") return Type::packed_single;
  if (name == "movddup") return Type::packed_double;
  return by_suffix(name.substr(name.size() - std::min<std::size_t>(name.size(), 2)));
}

/// How many operations an instruction does in each element, as FP_ARITH_INST_RETIRED counts them: 0, 1 or 2. Intel's
/// event list of Broadwell and Skylake, and SDM 3B table 19-3.
unsigned operations(std::string_view name) {
  constexpr std::array<std::string_view, 12> once{"add",  "sub", "mul",   "div",  "min",  "max",
                                                  "sqrt", "rcp", "rsqrt", "hadd", "hsub", "addsub"};
  constexpr std::array<std::string_view, 4> fused{"fmadd", "fmsub", "fnmadd", "fnmsub"};
  if (begins_with_one_of(fused, name) || name == "dpps" || name == "dppd") return 2;
  return is_one_of(once, name.substr(0, name.size() - std::min<std::size_t>(name.size(), 2))) ? 1 : 0;
}

/// What an MMX or SSE instruction on integers does, as an offset from the first of its classes. SDM 1 5.4, 5.6.3.
unsigned integer_work(std::string_view name, bool from_memory) {
  enum : std::uint8_t { none, multiply, shift, pack, unpack, logical, arithmetic, shuffle };
  constexpr std::array<std::string_view, 2> multiplies{"pmul", "pmadd"};
  constexpr std::array<std::string_view, 3> shifts{"psll", "psrl", "psra"};
  constexpr std::array<std::string_view, 2> packs{"packs", "packu"};
  constexpr std::array<std::string_view, 5> logicals{"pand", "pandn", "por", "pxor", "ptest"};
  constexpr std::array<std::string_view, 13> computes{"padd", "psub",  "pcmp",  "pmin",  "pmax",       "pavg", "psad",
                                                      "pabs", "psign", "phadd", "phsub", "phminposuw", "mpsad"};
  constexpr std::array<std::string_view, 7> shuffles{"pshuf", "palignr", "pblend", "pinsr", "pextr", "pmov", "movmsk"};
  constexpr std::array<std::string_view, 6> moves{"movd", "movq", "movdqa", "movdqu", "movq2dq", "movdq2q"};
  if (begins_with_one_of(multiplies, name)) return multiply;
  if (begins_with_one_of(shifts, name)) return shift;
  if (begins_with_one_of(packs, name)) return pack;
  if (name.starts_with("punpck")) return unpack;
  if (is_one_of(logicals, name)) return logical;
  if (begins_with_one_of(computes, name)) return arithmetic;
  const bool moves_here = is_one_of(moves, name) && !from_memory;
  return begins_with_one_of(shuffles, name) || moves_here ? shuffle : none;
}

Class plus(Class first, unsigned offset) { return static_cast<Class>(static_cast<unsigned>(first) + offset); }

Class sse_class(std::string_view name, bool memory) {
  const Type type = type_of(name);
  if (type == Type::integer) return plus(Class::sse_integer, integer_work(name, memory));
  const unsigned n = operations(name);
  if (n == 2) return type == Type::packed_single ? Class::sse_packed_single_twice : Class::sse_packed_double_twice;
  return plus(n == 1 ? Class::sse_packed_single_arithmetic : Class::sse_packed_single, static_cast<unsigned>(type));
}

/// `name` is without its V.
Class avx_class(std::string_view name, bool wide) {
  const unsigned n = operations(name);
  const Type type = by_suffix(name.substr(name.size() - std::min<std::size_t>(name.size(), 2)));
  if (!wide) {
    if (n == 0 || type == Type::integer) return Class::other;
    return plus(n == 2 ? Class::avx_packed_single_twice : Class::avx_packed_single_arithmetic,
                static_cast<unsigned>(type));
  }
  if (n == 0 || (type != Type::packed_single && type != Type::packed_double)) return Class::avx_256;
  const bool twice = n == 2;
  if (type == Type::packed_single) return twice ? Class::avx_256_single_twice : Class::avx_256_single_arithmetic;
  return twice ? Class::avx_256_double_twice : Class::avx_256_double_arithmetic;
}

Class other_class(std::string_view name) {
  if (name == "nop") return Class::nop;
  if (name == "emms") return Class::mmx;
  if (name == "prefetchnta") return Class::prefetch_nta;
  if (name == "prefetcht0") return Class::prefetch_t0;
  if (name == "prefetcht1" || name == "prefetcht2") return Class::prefetch_t1_t2;
  if (name == "prefetchw") return Class::prefetch_w;
  if (is_one_of(products, name)) return Class::integer_product;
  if (is_one_of(x87_arithmetic, name)) return Class::x87_arithmetic;
  if (is_one_of(x87_transcendental, name)) return Class::x87_transcendental;
  return is_one_of(x87_operations, name) ? Class::x87_operation : Class::other;
}

Class class_of(std::string_view name, Unit unit, bool memory) {
  switch (unit) {
    case Unit::none: return other_class(name);
    case Unit::mmx: return plus(Class::mmx, integer_work(name, memory));
    case Unit::sse: return sse_class(name, memory);
    case Unit::avx:
    case Unit::avx_256: return name.starts_with('v') ? avx_class(name.substr(1), unit == Unit::avx_256) : Class::other;
  }
  return Class::other;
}

Unit unit_of(const ZydisDecodedInstruction& in, std::span<const ZydisDecodedOperand> operands) {
  Unit unit = Unit::none;
  for (const ZydisDecodedOperand& o : operands) {
    if (o.type != ZYDIS_OPERAND_TYPE_REGISTER) continue;
    const ZydisRegisterClass c = ZydisRegisterGetClass(o.reg.value);
    if (c == ZYDIS_REGCLASS_MMX) return Unit::mmx;
    if (c == ZYDIS_REGCLASS_YMM) return Unit::avx_256;
    if (c == ZYDIS_REGCLASS_XMM) unit = Unit::sse;
  }
  if (in.encoding == ZYDIS_INSTRUCTION_ENCODING_LEGACY) return unit;
  return unit == Unit::sse ? Unit::avx : Unit::none;
}

/// A table, because comparing names for each instruction would cost more than decoding it.
Class look_up(ZydisMnemonic mnemonic, Unit unit, bool memory) {
  using Forms = std::array<std::array<Class, 2>, units>;
  static const auto table = [] {
    std::array<Forms, ZYDIS_MNEMONIC_MAX_VALUE + 1> all{};
    for (std::size_t i = 0; i < all.size(); ++i) {
      const char* const text = ZydisMnemonicGetString(static_cast<ZydisMnemonic>(i));
      const std::string_view name = text != nullptr ? text : "";
      for (std::size_t u = 0; u < units; ++u)
        for (const bool m : {false, true}) all[i][u][m ? 1 : 0] = class_of(name, static_cast<Unit>(u), m);
    }
    return all;
  }();
  return table[static_cast<std::size_t>(mnemonic)][static_cast<std::size_t>(unit)][memory ? 1 : 0];
}

}  // namespace

InstructionClass instruction_class(const DecodedInstruction& i) {
  const bool memory = std::ranges::any_of(
      i.operands(), [](const ZydisDecodedOperand& o) { return o.type == ZYDIS_OPERAND_TYPE_MEMORY; });
  const Class found = look_up(i.in.mnemonic, unit_of(i.in, i.operands()), memory);
  const bool x87 = i.in.meta.isa_ext == ZYDIS_ISA_EXT_X87;
  return found == Class::other && x87 ? Class::x87_other : found;
}

InstructionClass instruction_class(std::span<const std::byte> code, CodeMode mode) {
  DecodedInstruction i;
  return read_instruction(code, mode, i) ? instruction_class(i) : InstructionClass::other;
}

}  // namespace vpmu::exec
