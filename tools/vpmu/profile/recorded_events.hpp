#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sources/time_model.hpp"
#include "support/result.hpp"
#include "vpmu/generation.hpp"

namespace vmm::tool {

/// What `vpmu profile` shows: where a program's time goes, where its loads come from, which branches are mispredicted.
enum class Aspect : std::uint8_t { cycles, loads, mispredictions };
inline constexpr std::size_t aspects = 3;

/// Its name in perf.data: "cycles", "loads" or "mispredictions".
std::string_view to_string(Aspect aspect);

/// An event that perf records in the guest.
struct RecordedEvent {
  Aspect aspect{};
  std::string name;        ///< As `vpmu events` has it.
  std::string perf;        ///< As `perf record -e` takes it.
  std::string quality;     ///< How the source delivers it, as `vpmu events` says.
  bool is_precise{};       ///< A sample names the very instruction that caused it.
  std::uint64_t period{};  ///< Events per sample; 0: by the frequency.
};

/// How often events are sampled.
struct SampleRate {
  /// Cycles per sample; loads and mispredictions have shorter periods. 0: by `frequency`.
  std::uint64_t period{};
  unsigned frequency{};  ///< Samples of each event per second of the guest's time.
};

/// What can be recorded at once on a model, and what cannot.
struct RecordingPlan {
  std::vector<RecordedEvent> events;
  std::vector<std::string> lacking;  ///< A sentence for each thing that this model or source lacks.
};

/// Fails where not even cycles can be sampled.
Result<RecordingPlan> plan_recording(const vpmu::GenerationDesc& generation, std::string_view source,
                                     const SampleRate& rate, TimeModel time = TimeModel::instructions);

}  // namespace vmm::tool
