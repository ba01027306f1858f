#include "kvm/msr_filter.hpp"

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

namespace vmm {
namespace {

/// KVM_MSR_FILTER_MAX_BITMAP_SIZE (0x600 bytes) in MSRs.
constexpr std::uint64_t max_range_msrs = 0x600 * 8;
constexpr std::uint32_t both = KVM_MSR_FILTER_READ | KVM_MSR_FILTER_WRITE;

/// KVM reads whole words of 64 bits.
std::size_t bitmap_bytes(std::uint64_t msrs) { return static_cast<std::size_t>((msrs + 63) / 64 * 8); }

std::uint64_t end_of(const MsrRange& range) { return std::uint64_t{range.first} + range.count; }

bool includes(MsrTrap trap, std::uint32_t flags) { return (static_cast<std::uint32_t>(trap) & flags) == flags; }

std::vector<MsrRange> sorted_for(std::span<const MsrRange> ranges, std::uint32_t flags) {
  std::vector<MsrRange> out;
  for (const auto& range : ranges) {
    if (includes(range.trap, flags) && range.count != 0) {
      out.push_back({.first = range.first, .count = range.count, .trap = static_cast<MsrTrap>(flags)});
    }
  }
  std::ranges::sort(out, {}, &MsrRange::first);
  return out;
}

bool same_msrs(const std::vector<MsrRange>& a, const std::vector<MsrRange>& b) {
  return std::ranges::equal(
      a, b, [](const MsrRange& x, const MsrRange& y) { return x.first == y.first && x.count == y.count; });
}

}  // namespace

Result<MsrFilter> MsrFilter::create(std::span<const MsrRange> ranges) {
  MsrFilter filter;
  filter.filter_.flags = KVM_MSR_FILTER_DEFAULT_ALLOW;
  const auto reads = sorted_for(ranges, KVM_MSR_FILTER_READ);
  const auto writes = sorted_for(ranges, KVM_MSR_FILTER_WRITE);
  if (same_msrs(reads, writes)) {
    VMM_TRY(filter.add(reads, both));
  } else {
    VMM_TRY(filter.add(reads, KVM_MSR_FILTER_READ));
    VMM_TRY(filter.add(writes, KVM_MSR_FILTER_WRITE));
  }
  return filter;
}

Result<void> MsrFilter::add(std::span<const MsrRange> sorted, std::uint32_t flags) {
  std::size_t i = 0;
  while (i < sorted.size()) {
    const std::uint64_t base = sorted[i].first;
    std::uint64_t end = end_of(sorted[i]);
    std::size_t next = i + 1;
    while (next < sorted.size() && end_of(sorted[next]) - base <= max_range_msrs) {
      end = std::max(end, end_of(sorted[next]));
      ++next;
    }
    if (end - base > max_range_msrs) {
      return host_error(
          fmt::format("the MSR range {:#x} to {:#x} is larger than a range of KVM's MSR filter can be", base, end - 1));
    }
    if (used_ == KVM_MSR_FILTER_MAX_RANGES) {
      return host_error(
          fmt::format("the MSRs to trap need more than KVM's {} filter ranges", KVM_MSR_FILTER_MAX_RANGES));
    }
    auto bitmap = std::make_unique<std::vector<std::uint8_t>>(bitmap_bytes(end - base), std::uint8_t{0xFF});
    for (; i < next; ++i) {
      for (std::uint64_t msr = sorted[i].first; msr < end_of(sorted[i]); ++msr) {
        auto& byte = (*bitmap)[(msr - base) / 8];
        byte = static_cast<std::uint8_t>(byte & ~(1U << ((msr - base) % 8)));
      }
    }
    filter_.ranges[used_++] = {.flags = flags,
                               .nmsrs = static_cast<std::uint32_t>(end - base),
                               .base = static_cast<std::uint32_t>(base),
                               .bitmap = bitmap->data()};
    bitmaps_.push_back(std::move(bitmap));
  }
  return {};
}

namespace {

bool is_allowed(const kvm_msr_filter_range& range, std::uint32_t offset) {
  return (range.bitmap[offset / 8] >> (offset % 8) & 1U) != 0;
}

/// KVM's rule: the first range with the MSR decides, else the filter's default.
bool denies(std::span<const kvm_msr_filter_range> ranges, std::uint32_t flags, std::uint32_t msr,
            std::uint32_t access) {
  for (const kvm_msr_filter_range& range : ranges) {
    if ((range.flags & access) != access || msr < range.base || msr - range.base >= range.nmsrs) continue;
    return !is_allowed(range, msr - range.base);
  }
  return (flags & KVM_MSR_FILTER_DEFAULT_DENY) != 0;
}

/// Denies in one of our ranges what the others deny there. The range is for one kind of access, or for both kinds if
/// the others treat them alike (split_for()).
void deny_in(kvm_msr_filter_range& range, const kvm_msr_filter& others) {
  for (std::uint32_t n = 0; n < range.nmsrs; ++n)
    for (const std::uint32_t access : {std::uint32_t{KVM_MSR_FILTER_READ}, std::uint32_t{KVM_MSR_FILTER_WRITE}})
      if ((range.flags & access) != 0 && denies(others.ranges, others.flags, range.base + n, access))
        range.bitmap[n / 8] = static_cast<std::uint8_t>(range.bitmap[n / 8] & ~(1U << (n % 8)));
}

}  // namespace

/// A range has one bitmap for reads and writes. It is split into two ranges if the others deny only one kind of access
/// to an MSR that lies between ours.
void MsrFilter::split_for(const kvm_msr_filter& others) {
  const auto denies_one = [&](const kvm_msr_filter_range& range) {
    for (std::uint32_t n = 0; n < range.nmsrs; ++n)
      if (is_allowed(range, n) && denies(others.ranges, others.flags, range.base + n, KVM_MSR_FILTER_READ) !=
                                      denies(others.ranges, others.flags, range.base + n, KVM_MSR_FILTER_WRITE))
        return true;
    return false;
  };
  for (std::size_t i = used_; i-- > 0 && used_ < KVM_MSR_FILTER_MAX_RANGES;) {
    kvm_msr_filter_range& range = filter_.ranges[i];
    if (range.flags != both || !denies_one(range)) continue;
    bitmaps_.push_back(
        std::make_unique<std::vector<std::uint8_t>>(range.bitmap, range.bitmap + bitmap_bytes(range.nmsrs)));
    range.flags = KVM_MSR_FILTER_READ;
    filter_.ranges[used_++] = {
        .flags = KVM_MSR_FILTER_WRITE, .nmsrs = range.nmsrs, .base = range.base, .bitmap = bitmaps_.back()->data()};
  }
}

Result<void> MsrFilter::add_others(const kvm_msr_filter& others) {
  const std::span<const kvm_msr_filter_range> given{others.ranges};
  const auto count = static_cast<std::size_t>(
      std::ranges::count_if(given, [](const kvm_msr_filter_range& r) { return r.nmsrs != 0; }));
  const bool denies_all = (others.flags & KVM_MSR_FILTER_DEFAULT_DENY) != 0 && count == 0;
  if ((others.flags & ~std::uint32_t{KVM_MSR_FILTER_DEFAULT_DENY}) != 0 || denies_all)
    return host_error(
        fmt::format("KVM refuses an MSR filter with flags {:#x} and {} ranges", others.flags, count), EINVAL,
        "set the flags to 0 (allow MSRs outside the ranges), or to 1 (deny them) with at least one range");
  for (const kvm_msr_filter_range& r : given)
    if (r.nmsrs != 0 && (r.nmsrs > max_range_msrs || r.flags == 0 || (r.flags & ~both) != 0))
      return host_error(
          fmt::format("KVM refuses an MSR filter range of {} MSRs from {:#x} on with flags {:#x}", r.nmsrs, r.base,
                      r.flags),
          EINVAL, fmt::format("give at most {} MSRs a range, for reads (1), writes (2) or both (3)", max_range_msrs));
  split_for(others);
  if (used_ + count > KVM_MSR_FILTER_MAX_RANGES)
    return host_error(fmt::format("the VMM's {} MSR filter ranges and the {} of the virtual PMU are more than KVM's {}",
                                  count, used_, KVM_MSR_FILTER_MAX_RANGES));
  for (std::size_t i = 0; i < used_; ++i) deny_in(filter_.ranges[i], others);
  for (const kvm_msr_filter_range& range : given) {
    if (range.nmsrs == 0) continue;
    bitmaps_.push_back(
        std::make_unique<std::vector<std::uint8_t>>(range.bitmap, range.bitmap + bitmap_bytes(range.nmsrs)));
    filter_.ranges[used_] = range;
    filter_.ranges[used_++].bitmap = bitmaps_.back()->data();
  }
  filter_.flags = others.flags;
  return {};
}

bool MsrFilter::traps(std::uint32_t msr, MsrTrap access) const {
  return denies(std::span{filter_.ranges}.first(used_), filter_.flags, msr, static_cast<std::uint32_t>(access));
}

}  // namespace vmm
