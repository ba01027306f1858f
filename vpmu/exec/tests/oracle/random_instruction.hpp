#pragma once
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "exec/tests/fixtures/host_cpu.hpp"

namespace vpmu::exec::test {

/// An instruction for engine and CPU, and the registers before it.
struct Case {
  std::vector<std::byte> code;
  std::string text;
  Registers before;
  /// Status flags that the manual leaves undefined after the instruction, with these registers.
  std::uint64_t undefined{};
  /// Destination registers that the manual leaves undefined, as a bit mask.
  std::uint32_t undefined_registers{};
};

/// Instructions of all encodings that this process may execute and that stay within `scratch_bytes` from `scratch`.
class RandomInstruction {
 public:
  RandomInstruction(std::uint64_t seed, std::uint64_t scratch, std::uint64_t scratch_bytes)
      : random_{seed}, scratch_{scratch}, bytes_{scratch_bytes} {}
  /// Empty if the random bytes were no such instruction; call again.
  std::optional<Case> next() { return with(random_bytes()); }
  /// The same for the instruction that `code` begins with.
  std::optional<Case> with(std::vector<std::byte> code);

 private:
  std::vector<std::byte> random_bytes();
  std::uint64_t value();
  std::mt19937_64 random_;
  std::uint64_t scratch_, bytes_;
};

}  // namespace vpmu::exec::test
