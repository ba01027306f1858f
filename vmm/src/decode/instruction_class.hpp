#pragma once
#include <cstdint>
#include <string_view>

#include "vpmu/retirement.hpp"

namespace vmm {

/// Which vector registers an instruction's operands are in.
enum class VectorOperands : std::uint8_t { none, mmx, sse };

/// The class of the instruction of that name, in lower case. SDM 1 5.2 to 5.11.
///
/// x87 computations are arithmetic, comparisons and transcendental functions, one each; loads, stores and control are
/// none. SSE instructions are named by what they compute in; conversions by their source, or by what they make of an
/// integer.
vpmu::InstructionClass instruction_class(std::string_view mnemonic, VectorOperands operands);

/// An instruction's part in a pair that a decoder makes one micro-operation of.
enum class FusionPart : std::uint8_t {
  none,
  compare,     ///< CMP: fuses with what does not look at SF, PF or OF alone.
  test,        ///< TEST: fuses with every conditional branch.
  branch,      ///< One that fuses with CMP and TEST.
  test_branch  ///< One that fuses with TEST only.
};

/// The part of the instruction of that name; `compares_memory_with_immediate` ones have none. Optimization Reference
/// Manual (248966), macro-fusion of Nehalem; later generations fuse these pairs and more.
FusionPart fusion_part(std::string_view mnemonic, bool compares_memory_with_immediate);

/// Whether `first`, whose last byte is before `boundary`, fuses with `second` that begins there: not across lines.
bool fuses(FusionPart first, FusionPart second, std::uint64_t boundary);

}  // namespace vmm
