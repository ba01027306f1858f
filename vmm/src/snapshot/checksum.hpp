#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace vmm {

/// 64-bit XXH3 of bytes that come piece by piece: detects any accidental damage, at some ten GB/s.
class Checksum {
 public:
  Checksum();
  void add(std::span<const std::byte> bytes);
  [[nodiscard]] std::uint64_t value() const;

 private:
  struct State;
  struct Free {
    void operator()(State* state) const;
  };
  std::unique_ptr<State, Free> state_;
};

}  // namespace vmm
