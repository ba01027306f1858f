#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace vmm {

/// XXH3 of 64 bits over bytes that come piece by piece: finds any damage that is not made on purpose, at some ten GB/s.
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
