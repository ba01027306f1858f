#include "decode/macro_fusion.hpp"

#include <algorithm>
#include <array>

namespace vmm {

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
