#include "pmu/package_uncore.hpp"

#include <utility>

#include "vpmu/bits.hpp"

namespace vmm {

PackageUncore::PackageUncore(const vpmu::UncoreDesc& desc, unsigned threads_per_core, unsigned cpus,
                             std::function<void(unsigned)> kick, std::function<vpmu::LlcCounts()> llc)
    : uncore_{desc}, threads_per_core_{threads_per_core}, cpus_{cpus}, kick_{std::move(kick)}, llc_{std::move(llc)} {}

void PackageUncore::count_caches() {
  if (!counts_caches_) return;
  const vpmu::LlcCounts now = llc_();
  vpmu::LlcCounts passed = now;
  for (unsigned slice = 0; slice < vpmu::LlcCounts::max_slices; ++slice)
    for (unsigned cell = 0; cell < vpmu::offcore_cell_count; ++cell)
      passed.slices[slice][cell] -= seen_llc_.slices[slice][cell];
  seen_llc_ = now;
  uncore_.count(passed);
}

// The vCPUs' TSCs differ slightly: a time before the latest one that was seen has been counted already.
void PackageUncore::advance(std::uint64_t tsc) {
  count_caches();
  const std::uint64_t before = seen_tsc_.value_or(tsc);
  if (seen_tsc_ && tsc <= before) return;
  seen_tsc_ = tsc;
  const vpmu::CoreSet cores = uncore_.advance(tsc - before);
  for (unsigned id = 0; cores != 0 && id < cpus_; ++id)
    if ((cores >> (id / threads_per_core_) & 1) != 0) overflowed_ |= vpmu::bit(id);
}

void PackageUncore::look() {
  awaited_ = overflowed_ != 0 || uncore_.until_overflow().has_value();
  const bool counts = llc_ && uncore_.wants_caches();
  if (counts && !counts_caches_) seen_llc_ = llc_();
  counts_caches_ = counts;
}

vpmu::MsrReadResult PackageUncore::rdmsr(vpmu::MsrIndex index, std::uint64_t tsc) {
  const std::scoped_lock lock{mutex_};
  advance(tsc);
  look();
  return uncore_.rdmsr(index);
}

vpmu::MsrStatus PackageUncore::check_wrmsr(vpmu::MsrIndex index, std::uint64_t value) {
  const std::scoped_lock lock{mutex_};
  return uncore_.check_wrmsr(index, value);
}

// The other vCPUs may be running without a time limit, and must recompute when their next overflow is due.
vpmu::MsrStatus PackageUncore::wrmsr(unsigned id, vpmu::MsrIndex index, std::uint64_t value, std::uint64_t tsc) {
  const std::scoped_lock lock{mutex_};
  advance(tsc);
  const vpmu::MsrStatus status = uncore_.wrmsr(index, value);
  written_ = written_ || status == vpmu::MsrStatus::ok;
  const bool counted_caches = counts_caches_;
  look();
  const bool concerns_all = awaited_ || counts_caches_ != counted_caches;
  for (unsigned other = 0; concerns_all && other < cpus_; ++other)
    if (other != id) kick_(other);
  return status;
}

bool PackageUncore::take_overflow(unsigned id, std::uint64_t tsc) {
  const std::scoped_lock lock{mutex_};
  advance(tsc);
  const bool mine = (overflowed_ & vpmu::bit(id)) != 0;
  overflowed_ &= ~vpmu::bit(id);
  look();
  return mine;
}

std::optional<std::uint64_t> PackageUncore::until_overflow() {
  const std::scoped_lock lock{mutex_};
  return uncore_.until_overflow();
}

std::uint64_t PackageUncore::unserved_selects() {
  const std::scoped_lock lock{mutex_};
  return uncore_.unserved_selects();
}

}  // namespace vmm
