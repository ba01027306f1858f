#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "exec/tests/flat_ram.hpp"
#include "exec/vector_state.hpp"

namespace vpmu::exec::test {

/// General registers by number, and the status flags.
struct Registers {
  std::array<std::uint64_t, 16> gpr{};
  std::uint64_t flags{};
};

/// Runs single instructions on the CPU that runs the test. One at a time in a process.
class HostCpu {
 public:
  HostCpu();
  ~HostCpu();
  HostCpu(const HostCpu&) = delete;
  HostCpu& operator=(const HostCpu&) = delete;
  /// Executes `instruction`, which must not branch, from `before` and, if given, `vectors`; every register is the
  /// instruction's own, RSP too. Empty when it faults.
  std::optional<Registers> run(std::span<const std::byte> instruction, const Registers& before,
                               VectorState* vectors = nullptr);
  /// Where the instruction stood.
  [[nodiscard]] std::uint64_t rip() const { return rip_; }

 private:
  class Faults;
  FlatRam memory_;
  std::unique_ptr<Faults> faults_;
  std::uint64_t rip_{};
};

/// Executable memory for an engine under test.
class TestCode final : public HostCode {
 public:
  explicit TestCode(std::size_t bytes = 1 << 20) : memory_{bytes, PROT_READ | PROT_WRITE | PROT_EXEC} {}
  const std::byte* add(std::span<const std::byte> routine) override {
    const auto room = memory_.bytes().subspan(used_);
    if (room.size() < routine.size()) return nullptr;
    std::memcpy(room.data(), routine.data(), routine.size());
    used_ += routine.size();
    ++added;
    return room.data();
  }
  bool change(const std::byte* at, std::uint32_t to) override {
    if (changes_left == 0) return false;
    --changes_left;
    std::memcpy(memory_.bytes().data() + (at - memory_.bytes().data()), &to, sizeof to);
    return true;
  }
  void clear() override {
    used_ = 0;
    ++cleared;
  }
  unsigned added{}, cleared{};
  std::uint64_t changes_left{~0ULL};  ///< Before change() refuses.

 private:
  FlatRam memory_;
  std::size_t used_{};
};

}  // namespace vpmu::exec::test
