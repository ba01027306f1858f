#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "exec/compiling.hpp"
#include "perf/cpu_timer.hpp"
#include "perf/perf_host.hpp"
#include "sources/model_log.hpp"
#include "sources/others_msrs.hpp"
#include "sources/shared_caches.hpp"
#include "sources/source.hpp"
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
  const ModelLog& model_log;
  const OthersMsrs& others_msr;
  const TimerFactory& make_timer;
  vpmu::exec::Compiling compiling;
  const PerfHostFactory& make_perf_host;
  StorableBranches storable;
  SharedCaches* caches{};  ///< May be null.
  Log& log;
  bool or_clock{};  ///< Where the source cannot be had, the clock counts, with a warning.
};

/// One counting source that users can name.
struct SourceRow {
  SourceTraits traits;
  std::string_view summary;  ///< One line for help and `vpmu doctor`.
  Result<std::unique_ptr<CountSource>> (*make)(const SourceParts& parts);
};

/// All sources that count. source_choice.hpp tells which to prefer.
std::span<const SourceRow> all_sources();

/// The row of a name, or null. Also knows `lockstep` (lockstep_source.hpp).
const SourceRow* find_source(std::string_view name);

/// Builds a source on the vCPU's thread. Fails (usage) for an unknown name, listing the known ones; (host) when it
/// cannot be had, and neither can the clock.
Result<std::unique_ptr<CountSource>> make_source(std::string_view name, const SourceParts& parts);

}  // namespace vmm
