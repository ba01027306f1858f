#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "timing/pipeline.hpp"
#include "uarch/processor_model.hpp"

namespace vmm {

/// How much of a core each of its threads used when it ran last.
struct CoreUses {
  std::array<vpmu::timing::CoreUse, vpmu::uarch::Hierarchy::max_threads> of{};
  std::uint8_t last{vpmu::uarch::Hierarchy::max_threads};  ///< The thread that ran last, if one has.
};

/// The caches of a machine whose vCPUs run one at a time: those of each core, which its threads share, and what the
/// cores have in common. The last level cache has a slice for each core, as far as the package has boxes for them.
class SharedCaches {
 public:
  SharedCaches(unsigned cpus, unsigned threads_per_core, unsigned boxes)
      : threads_{std::min(threads_per_core, cpus)},
        all_{(cpus + threads_ - 1) / threads_},
        slices_{std::clamp(boxes, 1U, all_)} {}
  /// The model of a vCPU, which must not outlive this object. Any thread: vCPUs that continue from a snapshot call this
  /// at the same time.
  std::unique_ptr<vpmu::uarch::ProcessorModel> make_model(const vpmu::uarch::Profile& profile, unsigned cpu) {
    const std::scoped_lock lock{mutex_};
    std::unique_ptr<vpmu::uarch::Hierarchy>& core = cores_[cpu / threads_].caches;
    if (core == nullptr) {
      core = std::make_unique<vpmu::uarch::Hierarchy>(profile, threads_);
      core->slice(slices_);
      if (all_ > 1) core->share(sharing_);
    }
    return std::make_unique<vpmu::uarch::ProcessorModel>(*core, thread_of(cpu));
  }
  /// Of a vCPU's core, for the holder of the turn; null if its threads run alone. Must not outlive this object.
  [[nodiscard]] CoreUses* uses(unsigned cpu) {
    const std::scoped_lock lock{mutex_};
    return threads_ == 1 ? nullptr : &cores_[cpu / threads_].uses;
  }
  /// Which of its core's threads a vCPU is.
  [[nodiscard]] unsigned thread_of(unsigned cpu) const { return cpu % threads_; }
  /// What the requests of all cores came to, from the beginning on.
  [[nodiscard]] vpmu::LlcCounts llc() {
    const std::scoped_lock lock{mutex_};
    vpmu::LlcCounts sum;
    for (const auto& [number, core] : cores_)
      for (unsigned slice = 0; slice < slices_; ++slice)
        for (unsigned cell = 0; cell < vpmu::offcore_cell_count; ++cell)
          sum.slices[slice][cell] += core.caches->llc().slices[slice][cell];
    return sum;
  }
  /// For what touches a core's caches while its vCPU does not hold the turn.
  [[nodiscard]] std::unique_lock<std::mutex> alone() { return std::unique_lock{mutex_}; }

 private:
  unsigned threads_;
  unsigned all_;  ///< Cores of the machine.
  unsigned slices_;
  vpmu::uarch::Sharing sharing_;
  std::mutex mutex_;
  struct Core {
    std::unique_ptr<vpmu::uarch::Hierarchy> caches;
    CoreUses uses;
  };
  std::map<unsigned, Core> cores_;
};

}  // namespace vmm
