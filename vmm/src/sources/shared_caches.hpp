#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "uarch/processor_model.hpp"

namespace vmm {

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
    std::unique_ptr<vpmu::uarch::Hierarchy>& core = cores_[cpu / threads_];
    if (core == nullptr) {
      core = std::make_unique<vpmu::uarch::Hierarchy>(profile, threads_);
      core->slice(slices_);
      if (all_ > 1) core->share(sharing_);
    }
    return std::make_unique<vpmu::uarch::ProcessorModel>(*core, cpu % threads_);
  }
  /// What the requests of all cores came to, from the beginning on.
  [[nodiscard]] vpmu::LlcCounts llc() {
    const std::scoped_lock lock{mutex_};
    vpmu::LlcCounts sum;
    for (const auto& [number, core] : cores_)
      for (unsigned slice = 0; slice < slices_; ++slice)
        for (unsigned cell = 0; cell < vpmu::offcore_cell_count; ++cell)
          sum.slices[slice][cell] += core->llc().slices[slice][cell];
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
  std::map<unsigned, std::unique_ptr<vpmu::uarch::Hierarchy>> cores_;
};

}  // namespace vmm
