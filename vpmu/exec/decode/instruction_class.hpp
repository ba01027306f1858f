#pragma once
#include <cstddef>
#include <span>

#include "exec/state/code_mode.hpp"
#include "vpmu/retirement.hpp"

namespace vpmu::exec {

/// What the instruction in these bytes is for the events that count instructions of a class; `other` if they hold none.
///
/// x87 arithmetic, comparisons and transcendental functions are one computation each; loads, stores and control
/// instructions are none. The class of an SSE instruction is the type that it computes in; of a conversion, the type of
/// its source, or of its result if the source is an integer.
InstructionClass instruction_class(std::span<const std::byte> code, CodeMode mode);

}  // namespace vpmu::exec
