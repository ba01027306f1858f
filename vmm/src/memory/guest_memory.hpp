#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kvm/fd.hpp"
#include "kvm/vm.hpp"
#include "support/result.hpp"
#include "vpmu/address.hpp"

namespace vmm {

/// One contiguous piece of guest RAM.
struct MemoryRange {
  vpmu::GuestPhysical first;
  std::uint64_t bytes;
};

/// Who can map the guest's RAM.
enum class GuestBacking {
  own,     ///< This process alone: anonymous memory, in huge pages where the host has them.
  shared,  ///< Also processes that get its descriptor, such as devices outside of this one: a memfd of fixed size.
};

/// The guest's RAM, at guest address 0 and, beyond the 3 to 4 GiB hole that belongs to the chips, at 4 GiB.
///
/// Every access is checked against the ranges; one that leaves them does nothing and says so. The guest runs meanwhile
/// and may change any byte at any time: read once into a local, validate, then use. Safe on any thread.
class GuestMemory {
 public:
  /// Where RAM below 4 GiB ends.
  static constexpr std::uint64_t hole_first = 3ULL << 30U;
  static constexpr std::uint64_t hole_end = 4ULL << 30U;
  static constexpr std::uint64_t min_bytes = 16ULL << 20U;
  static constexpr std::uint64_t max_bytes = 1ULL << 38U;

  /// Reserves `bytes` of RAM, a multiple of 4 KiB in least .. most. Pages take host memory when first touched.
  /// Fails with kind usage on a bad size, kind host when the host refuses.
  static Result<GuestMemory> create(std::uint64_t bytes, GuestBacking backing = GuestBacking::own);

  /// Makes the RAM visible to the guest; this object must outlive the VM.
  Result<void> attach(Vm& vm) const;

  [[nodiscard]] std::span<const MemoryRange> ranges() const { return std::span{ranges_}.first(range_count_); }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  /// The descriptor of shared memory, for others to map: the ranges lie in it one after the other. Null with
  /// GuestBacking::own.
  [[nodiscard]] const Fd* descriptor() const { return file_.valid() ? &file_ : nullptr; }

  /// Copies guest RAM out; false, and `out` unspecified, when not all of it is RAM of one range.
  [[nodiscard]] bool read(vpmu::GuestPhysical at, std::span<std::byte> out) const;
  /// Copies into guest RAM; false, and nothing written, when not all of it is RAM of one range.
  [[nodiscard]] bool write(vpmu::GuestPhysical at, std::span<const std::byte> in) const;

  /// Copies into RAM of one range that is still untouched; without a fault for each page, if it is shared. Fails with
  /// kind host if the host has no memory for it.
  [[nodiscard]] Result<void> fill(vpmu::GuestPhysical at, std::span<const std::byte> in) const;

  /// One aligned word, read whole. Empty when misaligned or not RAM.
  template <class Word>
  [[nodiscard]] std::optional<Word> load(vpmu::GuestPhysical at) const {
    const auto bytes_there = bytes_at(at, sizeof(Word));
    if (bytes_there.empty() || at.value() % sizeof(Word) != 0) {
      return std::nullopt;
    }
    return __atomic_load_n(reinterpret_cast<const Word*>(bytes_there.data()), __ATOMIC_ACQUIRE);
  }
  /// Writes one aligned word whole. False when misaligned or not RAM.
  template <class Word>
  [[nodiscard]] bool store(vpmu::GuestPhysical at, Word value) const {
    const auto bytes_there = bytes_at(at, sizeof(Word));
    if (bytes_there.empty() || at.value() % sizeof(Word) != 0) {
      return false;
    }
    __atomic_store_n(reinterpret_cast<Word*>(bytes_there.data()), value, __ATOMIC_RELEASE);
    return true;
  }
  /// Atomically replaces `expected` by `desired`. False when misaligned, not RAM, or the word holds something else.
  template <class Word>
  [[nodiscard]] bool exchange(vpmu::GuestPhysical at, Word expected, Word desired) const {
    const auto bytes_there = bytes_at(at, sizeof(Word));
    if (bytes_there.empty() || at.value() % sizeof(Word) != 0) {
      return false;
    }
    return __atomic_compare_exchange_n(reinterpret_cast<Word*>(bytes_there.data()), &expected, desired, false,
                                       __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  }

  /// Direct access to the bytes, for loaders and hot paths; empty unless all of them are RAM of one range. Treat the
  /// contents as volatile: the guest may write them at any time.
  [[nodiscard]] std::span<std::byte> bytes_at(vpmu::GuestPhysical at, std::uint64_t size) const;

 private:
  GuestMemory() = default;
  Result<void> map_file();

  Mapping mapping_;
  Fd file_;
  std::byte* base_{};
  std::uint64_t bytes_{};
  std::array<MemoryRange, 2> ranges_{};
  std::size_t range_count_{};
};

}  // namespace vmm
