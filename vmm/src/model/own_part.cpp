#include "model/own_part.hpp"

#include "support/assert.hpp"

namespace vmm {
namespace {

Failure failure_of(const vpmu::uarch::ChangeRefusal& refusal) {
  return usage_error(refusal.what, refusal.advice + " with --set");
}

}  // namespace

Result<void> add_changes(std::string_view text, vpmu::uarch::ProfileChanges& changes) {
  if (const auto refusal = changes.add(text)) return failure_of(*refusal);
  return {};
}

Result<vpmu::uarch::Profile> changed_profile(const vpmu::GenerationDesc& generation,
                                             const vpmu::uarch::ProfileChanges& changes) {
  const vpmu::uarch::Profile* const known = vpmu::uarch::find_profile(generation.name);
  VMM_ASSERT(known != nullptr);  // each generation has one
  vpmu::uarch::Profile profile = *known;
  if (const auto refusal = changes.apply(profile)) return failure_of(*refusal);
  return profile;
}

std::array<CacheShape, 4> changed_caches(const MachineModel& model, const vpmu::uarch::ProfileChanges& changes) {
  using vpmu::uarch::Parameter;
  auto caches = model.caches;
  if (changes.empty()) return caches;
  const auto profile = changed_profile(vpmu::describe(model.generation), changes);
  VMM_ASSERT(profile.has_value());
  const auto take = [&changes](Parameter parameter, const vpmu::uarch::Shape& shape, CacheShape& cache) {
    if (!changes.of(parameter)) return;
    cache.bytes = static_cast<std::uint32_t>(shape.entries() * vpmu::uarch::line_bytes);
    cache.ways = shape.ways;
  };
  take(Parameter::l1d, profile->l1d, caches[0]);
  take(Parameter::l2, profile->l2, caches[2]);
  take(Parameter::l3, profile->l3, caches[3]);
  return caches;
}

}  // namespace vmm
