#pragma once
#include "exec/core.hpp"
#include "exec/host_form.hpp"
#include "exec/vector_state.hpp"

/// What instructions with vector registers ask before they run.
namespace vpmu::exec {

/// The bits of MXCSR that can be set without #GP. SDM 1 11.6.6.
std::uint32_t writable_mxcsr();

/// Core::vectors, asked for if need be. False: the owner has none, or no state that a CPU can have.
bool has_vectors(Core* c);

/// Whether the unit is there, enabled, and not lazily switched: else #UD or #NM, which are others' to raise. SDM
/// 3A 2.5.
bool is_enabled(Core* c, VectorUnit unit);

}  // namespace vpmu::exec
