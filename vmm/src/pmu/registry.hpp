#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "sources/foreign_msrs.hpp"
#include "sources/source.hpp"
#include "sources/source_options.hpp"
#include "support/log.hpp"
#include "vcpu/breakpoints.hpp"
#include "vcpu/guest_view.hpp"
#include "vpmu/generation.hpp"

namespace vmm {

/// What a source is built from.
struct SourceParts {
  Breakpoints& breakpoints;
  GuestView& view;
  const LinearMemory& memory;
  const vpmu::GenerationDesc& generation;
  std::uint64_t seed;
  const SourceOptions& options;
  const SourceServices& services;
  const ForeignMsrs& foreign_msr;
  StorableBranches storable;
  Log& log;
};

/// One counting source that users can name.
struct SourceRow {
  SourceTraits traits;
  std::string_view summary;  ///< One line for help and `vpmu doctor`.
  Result<std::unique_ptr<CountSource>> (*make)(const SourceParts& parts);
};

/// All sources that count. source_choice.hpp chooses among them.
std::span<const SourceRow> all_sources();

/// The row of that name, or null.
const SourceRow* find_source(std::string_view name);

/// Builds a source on the vCPU's thread. Fails (usage) for an unknown name, listing the known ones; (host) if neither
/// the source nor the clock as its substitute is available.
Result<std::unique_ptr<CountSource>> make_source(std::string_view name, const SourceParts& parts);

}  // namespace vmm
