#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "exec/tests/flat_ram.hpp"

namespace vpmu::exec::test {

/// General registers by number, and the status flags.
struct Registers {
  std::array<std::uint64_t, 16> gpr{};
  std::uint64_t flags{};
};

/// Runs single instructions on the CPU that runs the test.
class HostCpu {
 public:
  HostCpu();
  /// Executes `instruction`, which must neither branch nor fault, from `before`; every register is the instruction's own, RSP too.
  Registers run(std::span<const std::byte> instruction, const Registers& before);
  /// Where the instruction stood.
  [[nodiscard]] std::uint64_t rip() const { return rip_; }

 private:
  FlatRam memory_;
  std::uint64_t rip_{};
};

}  // namespace vpmu::exec::test
