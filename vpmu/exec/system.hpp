#pragma once
#include "exec/core.hpp"

namespace vpmu::exec {

/// Whether POPF may load `value` here: the trap flag is left to others, and so is what only ring 0 may change, and an
/// IF that comes on, for then someone must look whether an interrupt waits.
bool can_set_flags(const Core& core, std::uint64_t value);
/// Loads RFLAGS as POPF does. SDM 2B POPF.
void set_flags(Core& core, std::uint64_t value);

}  // namespace vpmu::exec
