#pragma once
#include "exec/state/core.hpp"

namespace vpmu::exec {

/// Whether the engine may load `value` as POPF does: in ring 0, without the trap flag before or after, and, if that
/// sets IF, only if the platform has no interrupt that could come.
bool can_set_flags(const Core& core, std::uint64_t value);
/// Loads RFLAGS as POPF does. SDM 2B POPF.
void set_flags(Core& core, std::uint64_t value);

}  // namespace vpmu::exec
