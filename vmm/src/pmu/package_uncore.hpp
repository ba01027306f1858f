#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>

#include "vpmu/uncore.hpp"

namespace vmm {

/// The uncore that the vCPUs of a machine share, in the time of their TSC. Every member may be called from any vCPU's
/// thread.
class PackageUncore {
 public:
  /// `kick(id)` makes a vCPU leave its guest; it is called on the threads of others.
  /// `llc`: what the last level cache has done so far, as the holder of the turn sees it; empty where nobody knows.
  PackageUncore(const vpmu::UncoreDesc& desc, unsigned threads_per_core, unsigned cpus,
                std::function<void(unsigned)> kick, std::function<vpmu::LlcCounts()> llc = {});

  /// Accesses of vCPU `id`, whose TSC is `tsc`.
  vpmu::MsrReadResult rdmsr(vpmu::MsrIndex index, std::uint64_t tsc);
  vpmu::MsrStatus wrmsr(unsigned id, vpmu::MsrIndex index, std::uint64_t value, std::uint64_t tsc);
  [[nodiscard]] vpmu::MsrStatus check_wrmsr(vpmu::MsrIndex index, std::uint64_t value);

  /// Whether take_overflow() may return true, now or later. Costs one load.
  [[nodiscard]] bool is_awaited() const { return awaited_; }
  /// Whether an overflow must be reported to the PMU of vCPU `id`; true once for each.
  bool take_overflow(unsigned id, std::uint64_t tsc);
  /// Ticks of the TSC from the last call of another member until an overflow; empty: never, as things are.
  [[nodiscard]] std::optional<std::uint64_t> until_overflow();

  /// Whether it counts what the cores' caches do: then their sources must run a model of them. Costs one load.
  [[nodiscard]] bool counts_caches() const { return counts_caches_; }

  /// Whether a guest has ever written to it.
  [[nodiscard]] bool was_written() const { return written_; }

  /// Event selects that nobody counts.
  [[nodiscard]] std::uint64_t unserved_selects();

 private:
  void advance(std::uint64_t tsc);
  void look();
  void count_caches();

  std::mutex mutex_;
  vpmu::Uncore uncore_;
  unsigned threads_per_core_, cpus_;
  std::function<void(unsigned)> kick_;
  std::function<vpmu::LlcCounts()> llc_;
  vpmu::LlcCounts seen_llc_{};             ///< What has been counted of it.
  std::optional<std::uint64_t> seen_tsc_;  ///< The latest TSC that any vCPU has reported.
  std::uint64_t overflowed_{};             ///< A bit for each vCPU that has not taken its overflow yet.
  std::atomic<bool> awaited_{};
  std::atomic<bool> counts_caches_{};
  std::atomic<bool> written_{};
};

}  // namespace vmm
