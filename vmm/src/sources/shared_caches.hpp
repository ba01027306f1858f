#pragma once
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "uarch/processor_model.hpp"

namespace vmm {

/// The caches of a machine whose vCPUs run one at a time, shared by their processor models.
class SharedCaches {
 public:
  /// Lets `model` share the caches. Any thread: vCPUs that continue from a snapshot call this at the same time.
  void add(vpmu::uarch::ProcessorModel& model) {
    const std::scoped_lock lock{mutex_};
    model.share(sharing_);
  }
  /// Keeps the model of a vCPU that has ended, because other vCPUs may still look into its caches. Any thread.
  void keep(std::unique_ptr<vpmu::uarch::ProcessorModel> model) {
    const std::scoped_lock lock{mutex_};
    kept_.push_back(std::move(model));
  }

 private:
  vpmu::uarch::Sharing sharing_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<vpmu::uarch::ProcessorModel>> kept_;
};

}  // namespace vmm
