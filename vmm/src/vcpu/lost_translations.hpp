#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/engine.hpp"

namespace vmm {

/// What a vCPU's TLBs have lost, in order, until an engine forgets it, too.
class LostTranslations {
 public:
  /// By an instruction after which CR3 is this.
  void add(const vpmu::TlbFlush& flush, std::uint64_t cr3) {
    using enum vpmu::TlbFlush::Of;
    if (all_.size() == max) all_ = {{.flush = {.of = everything, .pcid = flush.pcid}, .cr3 = cr3}};
    all_.push_back({.flush = flush, .cr3 = cr3});
  }
  void add(const LostTranslations& later) {
    for (const One& one : later.all_) add(one.flush, one.cr3);
  }
  [[nodiscard]] bool empty() const { return all_.empty(); }
  void clear() { all_.clear(); }
  void tell(vpmu::Observer& observer) const {
    for (const One& one : all_) observer.flushed(one.flush);
  }
  /// The engine forgets all of it.
  void take_from(vpmu::exec::Engine& engine) {
    for (const One& one : all_) engine.lose(one.flush, one.cr3);
    all_.clear();
  }

 private:
  /// A guest that does not come back to the engine for long has lost most of what that knows.
  static constexpr std::size_t max = 64;
  struct One {
    vpmu::TlbFlush flush;
    std::uint64_t cr3{};
  };
  std::vector<One> all_;
};

}  // namespace vmm
