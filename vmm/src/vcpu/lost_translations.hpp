#pragma once
#include <cstddef>
#include <vector>

#include "exec/engine.hpp"

namespace vmm {

/// What a vCPU's TLBs have lost, in order, until an engine forgets it, too.
class LostTranslations {
 public:
  using One = vpmu::exec::LostByInstruction;
  void add(const One& one) {
    if (all_.size() == max) {
      One all = one;
      all.flush = {.of = vpmu::TlbFlush::Of::everything, .pcid = one.flush.pcid};
      all_ = {all};
    }
    all_.push_back(one);
  }
  void add(const LostTranslations& later) {
    for (const One& one : later.all_) add(one);
  }
  [[nodiscard]] bool empty() const { return all_.empty(); }
  void clear() { all_.clear(); }
  /// The engine forgets all of it.
  void take_from(vpmu::exec::Engine& engine) {
    for (const One& one : all_) engine.lose(one);
    all_.clear();
  }

 private:
  /// A guest that does not come back to the engine for long has lost most of what that knows.
  static constexpr std::size_t max = 64;
  std::vector<One> all_;
};

}  // namespace vmm
