#pragma once
#include <cstdint>

namespace vpmu::exec {

struct DecodedInstruction;

/// With which conditional branches a compare fuses. 248966, macro-fusion.
enum class Fusion : std::uint8_t { none, with_zero_and_signed, with_carry_too, with_all };

/// An instruction's part in macro-fusion, by which a decoder makes one micro-operation of a pair of instructions.
struct FusionPart {
  Fusion first{};      ///< As the first of two.
  Fusion condition{};  ///< As a conditional branch: the least that the compare must be.
  bool compares{};     ///< CMP or TEST, which alone fuse before Sandy Bridge.
};

FusionPart fusion_part(const DecodedInstruction& i);

/// Whether `first`, which ends before `boundary`, fuses with `second` at `boundary`: not across cache lines.
constexpr bool fuses(const FusionPart& first, const FusionPart& second, std::uint64_t boundary) {
  constexpr std::uint64_t line = 64;
  return second.condition != Fusion::none && first.first >= second.condition && boundary % line != 0;
}

}  // namespace vpmu::exec
