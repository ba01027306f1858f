#pragma once
#include "../table_memory.hpp"
#include "vpmu/paging.hpp"

namespace vpmu::test {

/// The manual's paging chapter written out naively: one function per mode, one `if` per sentence, no tables shared with
/// the walker under test. Reads and changes `memory` through peek and poke only. One CPU, so never `Contended`.
Walk model_translate(const PagingState& state, TableMemory& memory, std::uint64_t at, PagingAccess access,
                     PagingPrivilege privilege, AccessedDirty accessed_dirty);

}  // namespace vpmu::test
