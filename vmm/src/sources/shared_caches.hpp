#pragma once
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "uarch/processor_model.hpp"

namespace vmm {

/// The caches of a machine whose vCPUs run one at a time: what the models of its processors share.
class SharedCaches {
 public:
  /// A model of its own for whoever runs, or goes on from a snapshot: there all vCPUs do at once.
  void add(vpmu::uarch::ProcessorModel& model) {
    const std::scoped_lock lock{mutex_};
    model.share(sharing_);
  }
  /// The vCPU of that model has ended. Others, which may still run, look into its caches: they stay. Any thread.
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
