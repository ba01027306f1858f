#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "model/model.hpp"
#include "support/result.hpp"
#include "uarch/profile_changes.hpp"
#include "vpmu/generation.hpp"

namespace vmm {

/// The changes of a list, as --set has it: "l3=16M,dram=240", added to `changes`. Fails with kind usage, without
/// effect.
Result<void> add_changes(std::string_view text, vpmu::uarch::ProfileChanges& changes);

/// The generation's profile with these changes. Fails with kind usage if they do not fit it.
Result<vpmu::uarch::Profile> changed_profile(const vpmu::GenerationDesc& generation,
                                             const vpmu::uarch::ProfileChanges& changes);

/// The model's caches, those that are changed with the sizes that changed_profile() has, which must succeed.
std::array<CacheShape, 4> changed_caches(const MachineModel& model, const vpmu::uarch::ProfileChanges& changes);

}  // namespace vmm
