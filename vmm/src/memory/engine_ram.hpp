#pragma once
#include <vector>

#include "exec/state/platform.hpp"
#include "memory/linear.hpp"

namespace vmm {

/// Guest RAM as the instruction engine accesses it. For one vCPU, on its thread.
class EngineRam final : public vpmu::exec::Ram {
 public:
  /// `memory` must outlive it.
  explicit EngineRam(const LinearMemory& memory) : memory_{&memory} {}

  std::optional<std::uint64_t> read_word(vpmu::GuestPhysical at, unsigned bytes) override;
  bool exchange_word(vpmu::GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) override;
  std::byte* page(vpmu::GuestPhysical page) override { return memory_->physical().host_page(page); }
  void will_write(vpmu::GuestPhysical page) override { open_.push_back(page); }

  /// The engine has stopped: reports the pages that it has written to the dirty-page log. Its next write to any page
  /// must be reported again.
  void close();

 private:
  const LinearMemory* memory_;
  std::vector<vpmu::GuestPhysical> open_;
};

}  // namespace vmm
