#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "timing/microarchitecture.hpp"

namespace vpmu::silicon {

/// Cycles of one instruction of many that are all the same. `operands` as InstLatX64 writes them: registers by their
/// class
/// ("r32", "xmm"), one register for all of them unless they are numbered ("r1_32, r2_32", "xmm1, xmm2"). Empty: it has
/// other operands, no result that it needs itself could be in one, or it has no row.
std::optional<double> chained_latency(std::string_view instruction, std::string_view operands,
                                      const timing::Microarchitecture& on);

}  // namespace vpmu::silicon
