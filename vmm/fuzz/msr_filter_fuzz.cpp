#include <linux/kvm.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "fuzz_input.hpp"
#include "kvm/msr_filter.hpp"

// Two MSR filters are merged into one: our own, and whatever another VMM gives KVM. The result must trap exactly what
// either of them traps, MSR by MSR; a filter that KVM would refuse must be refused, and nothing may be read beyond its
// bitmaps.

namespace {

using namespace vmm;
using vpmu::fuzz::Input;
using vpmu::fuzz::require;

std::uint64_t compared = 0;
constexpr std::uint32_t max_msrs = 0x600 * 8;
constexpr std::array accesses{MsrTrap::read, MsrTrap::write};

/// Another VMM's filter. Each bitmap has just the whole words that it needs.
struct Others {
  kvm_msr_filter filter{};
  std::vector<std::unique_ptr<std::vector<std::uint8_t>>> bitmaps;
  bool is_legal{true};
};

/// Ranges lie close to each other and to ours, so that they often overlap.
std::uint32_t take_msr(Input& in) {
  constexpr std::array<std::uint32_t, 4> around{0, 0x180, 0xC000'0000, 0xFFFF'FF00};
  const auto where = in.take<std::uint16_t>();
  return around[where % around.size()] + (where >> 2U) % 0x400;
}

std::vector<MsrRange> take_ours(Input& in) {
  std::vector<MsrRange> ranges(in.take<std::uint8_t>() % 6);
  for (MsrRange& r : ranges) {
    const auto what = in.take<std::uint8_t>();
    r = {.first = take_msr(in), .count = what % 80U, .trap = static_cast<MsrTrap>(1 + what % 3)};
    r.count = static_cast<std::uint32_t>(std::min<std::uint64_t>(r.count, (1ULL << 32U) - r.first));
  }
  return ranges;
}

Others take_others(Input& in) {
  Others o;
  o.filter.flags = in.take<std::uint8_t>() % 2;
  for (unsigned n = in.take<std::uint8_t>() % (KVM_MSR_FILTER_MAX_RANGES + 1); n > 0; --n) {
    auto& range = o.filter.ranges[n - 1];
    const auto what = in.take<std::uint8_t>();
    range.flags = 1 + what % 3U;
    range.base = take_msr(in);
    range.nmsrs = what >= 0xF8 ? in.take<std::uint32_t>() : what / 3U;
    if (what == 0xF7) range.flags = in.take<std::uint32_t>();
    const bool has_length = range.nmsrs <= max_msrs;
    const bool has_flags = range.flags != 0 && (range.flags & ~3U) == 0;
    if (range.nmsrs != 0) o.is_legal = o.is_legal && has_length && has_flags;
    auto& bitmap = o.bitmaps.emplace_back(
        std::make_unique<std::vector<std::uint8_t>>(has_length ? (range.nmsrs + 63) / 64 * 8 : 1));
    for (std::uint8_t& byte : *bitmap) byte = in.take<std::uint8_t>();
    range.bitmap = bitmap->data();
  }
  const bool is_empty =
      std::ranges::all_of(o.filter.ranges, [](const kvm_msr_filter_range& r) { return r.nmsrs == 0; });
  o.is_legal = o.is_legal && (!is_empty || o.filter.flags != KVM_MSR_FILTER_DEFAULT_DENY);
  return o;
}

/// KVM's rule: the first range that has the MSR decides.
bool denies(const kvm_msr_filter& filter, std::uint32_t msr, MsrTrap access) {
  for (const kvm_msr_filter_range& r : filter.ranges)
    if ((r.flags & static_cast<std::uint32_t>(access)) != 0 && msr >= r.base &&
        std::uint64_t{msr} < std::uint64_t{r.base} + r.nmsrs)
      return (r.bitmap[(msr - r.base) / 8] >> (msr - r.base) % 8 & 1) == 0;
  return filter.flags == KVM_MSR_FILTER_DEFAULT_DENY;
}

bool is_of(const std::vector<MsrRange>& ours, std::uint32_t msr, MsrTrap access) {
  return std::ranges::any_of(ours, [&](const MsrRange& r) {
    return (static_cast<unsigned>(r.trap) & static_cast<unsigned>(access)) != 0 && msr >= r.first &&
           std::uint64_t{msr} < std::uint64_t{r.first} + r.count;
  });
}

}  // namespace

extern "C" std::uint64_t fuzz_work() { return compared; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in{data, size};
  const auto ours = take_ours(in);
  const Others others = take_others(in);
  auto made = MsrFilter::create(ours);
  if (!made) return 0;
  const auto merged = made->add_others(others.filter);
  require(!merged || others.is_legal, "a filter that KVM refuses is refused");
  if (!merged) return 0;
  std::vector<std::uint32_t> msrs;
  const auto add = [&](std::uint32_t first, std::uint32_t count) {
    for (const std::uint32_t offset : {~0U, 0U, 1U, count / 2, count - 1, count, count + 1})
      msrs.push_back(first + offset);
  };
  for (const MsrRange& r : ours) add(r.first, r.count);
  for (const kvm_msr_filter_range& r : others.filter.ranges) add(r.base, r.nmsrs);
  for (unsigned n = 0; n < 16; ++n) msrs.push_back(take_msr(in));
  for (const std::uint32_t msr : msrs) {
    for (const MsrTrap access : accesses) {
      const bool either = is_of(ours, msr, access) || denies(others.filter, msr, access);
      require(made->traps(msr, access) == either, "what it traps is what either filter does");
      require(denies(made->native(), msr, access) == either, "and so it is for KVM");
      ++compared;
    }
  }
  return 0;
}
