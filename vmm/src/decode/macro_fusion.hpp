#pragma once
#include <cstdint>
#include <string_view>

namespace vmm {

/// An instruction's part in macro-fusion, by which a decoder makes one micro-operation of a pair of instructions.
enum class FusionPart : std::uint8_t {
  none,
  compare,     ///< CMP: fuses with branches that do not test SF, PF or OF alone.
  test,        ///< TEST: fuses with every conditional branch.
  branch,      ///< One that fuses with CMP and TEST.
  test_branch  ///< One that fuses with TEST only.
};

/// The part of the instruction of that name; `compares_memory_with_immediate` ones have none. Optimization Reference
/// Manual (248966), macro-fusion of Nehalem; later generations fuse these pairs and more.
FusionPart fusion_part(std::string_view mnemonic, bool compares_memory_with_immediate);

/// Whether `first`, which ends before `boundary`, fuses with `second` at `boundary`: not across cache lines.
bool fuses(FusionPart first, FusionPart second, std::uint64_t boundary);

}  // namespace vmm
