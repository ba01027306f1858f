#pragma once
#include "exec/host/host_form.hpp"
#include "exec/state/core.hpp"
#include "exec/state/vector_state.hpp"

/// What instructions with vector registers check before they run.
namespace vpmu::exec {

/// The bits of MXCSR that can be set without #GP. SDM 1 11.6.6.
std::uint32_t writable_mxcsr();

/// Sets Core::vectors, unless it is set. False: the owner has no such state, or one that no CPU can have.
bool has_vectors(Core* c);

/// Whether the unit is there, enabled, and not lazily switched: else #UD or #NM, which the owner must raise. SDM 3A
/// 2.5.
bool is_enabled(Core* c, VectorUnit unit);

}  // namespace vpmu::exec
