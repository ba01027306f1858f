#pragma once
#include <cstdint>
#include <string_view>

#include "vpmu/retirement.hpp"

namespace vmm {

/// Which vector registers an instruction's operands are in.
enum class VectorOperands : std::uint8_t { none, mmx, sse };

/// The class of the instruction of that name, in lower case. SDM 1 5.2 to 5.11.
///
/// x87 arithmetic, comparisons and transcendental functions are one computation each; loads, stores and control
/// instructions are none. The class of an SSE instruction is the type that it computes in; of a conversion, the type of
/// its source, or of its result if the source is an integer.
vpmu::InstructionClass instruction_class(std::string_view mnemonic, VectorOperands operands);

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
