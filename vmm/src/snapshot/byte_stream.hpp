#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "support/result.hpp"

namespace vmm {

using Bytes = std::vector<std::byte>;

/// What to do about a snapshot that is not one of ours.
inline constexpr auto snapshot_advice = "restore a file that `vpmu ctl SOCKET snapshot` or `vpmu run --save` wrote";
/// And about one of ours that this version cannot read.
inline constexpr auto version_advice = "restore it with the version that wrote it";
/// Of a vCPU's state that ends too early, or that has more or other things in it.
inline Failure unreadable_vcpu() {
  return usage_error("the snapshot's state of a vCPU is cut short, or has another format than this version's",
                     snapshot_advice);
}

/// Appends plain structures and runs of bytes.
class ByteWriter {
 public:
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto raw = std::as_bytes(std::span{&value, 1});
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
  }
  /// A run of bytes, with its length.
  void put_run(std::span<const std::byte> run) {
    put(std::uint64_t{run.size()});
    bytes_.insert(bytes_.end(), run.begin(), run.end());
  }
  [[nodiscard]] Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

/// Reads them back. If bytes are missing, returns zeros and empty runs, and is no longer good().
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_{bytes} {}

  template <class T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const auto raw = next(sizeof value);
    if (!raw.empty()) std::memcpy(static_cast<void*>(&value), raw.data(), sizeof value);
    return value;
  }
  std::span<const std::byte> get_run() { return next(get<std::uint64_t>()); }

  /// Whether nothing was missing.
  [[nodiscard]] bool good() const { return good_; }
  /// Whether nothing was missing, and nothing is left.
  [[nodiscard]] bool done() const { return good_ && rest_.empty(); }

 private:
  std::span<const std::byte> next(std::uint64_t size) {
    if (size > rest_.size()) {
      good_ = false;
      rest_ = {};
      return {};
    }
    const auto taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }

  std::span<const std::byte> rest_;
  bool good_{true};
};

}  // namespace vmm
