#include "decode/instruction_class.hpp"

#include <algorithm>
#include <array>

namespace vmm {
namespace {

using vpmu::InstructionClass;

constexpr std::array<std::string_view, 47> x87_computations{
    "f2xm1",  "fabs",    "fadd",    "faddp",   "fchs",    "fcom",   "fcomi",  "fcomip", "fcomp", "fcompp",
    "fcos",   "fdiv",    "fdivp",   "fdivr",   "fdivrp",  "fiadd",  "ficom",  "ficomp", "fidiv", "fidivr",
    "fimul",  "fisub",   "fisubr",  "fmul",    "fmulp",   "fpatan", "fprem",  "fprem1", "fptan", "frndint",
    "fscale", "fsin",    "fsincos", "fsqrt",   "fsub",    "fsubp",  "fsubr",  "fsubrp", "ftst",  "fucom",
    "fucomi", "fucomip", "fucomp",  "fucompp", "fxtract", "fyl2x",  "fyl2xp1"};
static_assert(std::ranges::is_sorted(x87_computations));
/// Their names do not end in the type of their operands.
constexpr std::array<std::string_view, 2> packed_single{"movshdup", "movsldup"};

InstructionClass by_suffix(std::string_view type) {
  if (type == "ps") return InstructionClass::sse_packed_single;
  if (type == "ss") return InstructionClass::sse_scalar_single;
  if (type == "pd") return InstructionClass::sse_packed_double;
  if (type == "sd") return InstructionClass::sse_scalar_double;
  return InstructionClass::sse_integer;
}

InstructionClass sse_class(std::string_view name) {
  const auto to = name.find('2');
  if (name.starts_with("cvt") && to != std::string_view::npos && to >= 2) {
    const InstructionClass source = by_suffix(name.substr(to - 2, 2));
    return source != InstructionClass::sse_integer ? source : by_suffix(name.substr(to + 1));
  }
  if (std::ranges::find(packed_single, name) != packed_single.end()) return InstructionClass::sse_packed_single;
  if (name == "movddup") return InstructionClass::sse_packed_double;
  // PABSD, PMAXSD and the like.
  if (name.starts_with('p')) return InstructionClass::sse_integer;
  return by_suffix(name.substr(name.size() - std::min<std::size_t>(name.size(), 2)));
}

}  // namespace

InstructionClass instruction_class(std::string_view mnemonic, VectorOperands operands) {
  if (mnemonic == "nop") return InstructionClass::nop;
  if (mnemonic == "emms" || operands == VectorOperands::mmx) return InstructionClass::mmx;
  if (operands == VectorOperands::sse) return sse_class(mnemonic);
  return std::ranges::binary_search(x87_computations, mnemonic) ? InstructionClass::x87_operation
                                                                : InstructionClass::other;
}

FusionPart fusion_part(std::string_view mnemonic, bool compares_memory_with_immediate) {
  constexpr std::array<std::string_view, 10> both{"jb", "jbe", "jl", "jle", "jnb", "jnbe", "jnl", "jnle", "jnz", "jz"};
  constexpr std::array<std::string_view, 6> test_only{"jno", "jnp", "jns", "jo", "jp", "js"};
  if (mnemonic == "cmp" && !compares_memory_with_immediate) return FusionPart::compare;
  if (mnemonic == "test" && !compares_memory_with_immediate) return FusionPart::test;
  if (std::ranges::find(both, mnemonic) != both.end()) return FusionPart::branch;
  return std::ranges::find(test_only, mnemonic) != test_only.end() ? FusionPart::test_branch : FusionPart::none;
}

bool fuses(FusionPart first, FusionPart second, std::uint64_t boundary) {
  constexpr std::uint64_t line = 64;
  if (boundary % line == 0) return false;
  if (second == FusionPart::branch) return first == FusionPart::compare || first == FusionPart::test;
  return second == FusionPart::test_branch && first == FusionPart::test;
}

}  // namespace vmm
