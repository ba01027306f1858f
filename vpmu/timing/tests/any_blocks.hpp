#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "exec/tests/fixtures/assembled.hpp"
#include "timing/pipeline.hpp"

namespace vpmu::timing::test {

using exec::test::Assembled;

constexpr TimedAccess at(std::uint64_t physical, std::uint16_t bytes = 8, std::uint16_t late = 0) {
  return {.physical = physical, .bytes = bytes, .late = late};
}

/// Blocks of instructions in any order.
class AnyBlocks {
 public:
  explicit AnyBlocks(const Microarchitecture& on) : on_{on} {}

  [[nodiscard]] std::vector<TimedInstruction> code() {
    static const std::vector<std::byte> bytes = [] {
      const Assembled all = X86(
          "add %rax, %rbx; imul %rbx, %rcx; mov (%rcx), %rdx; mov %rdx, 8(%rsi); add %rdx, (%rdi); div %ecx; "
          "lock xadd %rax, (%rsi); mulps %xmm0, %xmm1; vaddps (%rax,%rcx,4), %ymm1, %ymm2; push %rax; pop %rbx; "
          "xor %eax, %eax; mov %rax, %rcx; cmp %rax, %rbx; 1: jne 1b; test %rcx, %rcx; 2: jz 2b; ret; "
          "add $0x1234, %ax; movabs $0x123456789abcdef0, %rax; cpuid; rep movsb; shl %cl, %rax; sqrtsd %xmm1, %xmm2");
      return std::vector(std::as_bytes(std::span{all}).begin(), std::as_bytes(std::span{all}).end());
    }();
    const auto all = timed_block(bytes, on_);
    if (!all) return {};
    std::vector<TimedInstruction> code(1 + random() % TimedBlock::max_instructions);
    for (TimedInstruction& one : code) {
      one = (*all)[random() % all->size()];
      one.fuses = false;
    }
    return code;
  }
  [[nodiscard]] std::vector<TimedAccess> accesses(std::size_t count) {
    std::vector<TimedAccess> made(count);
    for (TimedAccess& one : made) {
      one = at(random() % 512, static_cast<std::uint16_t>(1 << random() % 6),
               static_cast<std::uint16_t>(random() % 4 == 0 ? random() % 300 : 0));
      one.level = level();
    }
    return made;
  }
  /// Of a load that is late.
  [[nodiscard]] HitLevel level() { return std::array{HitLevel::lfb, HitLevel::l2, HitLevel::dram}.at(random() % 3); }
  [[nodiscard]] BlockRun run() {
    return {.mispredicted = random() % 8 == 0,
            .taken = random() % 4 == 0,
            .decoded = random() % 2 == 0,
            .fetch_wait = static_cast<std::uint16_t>(random() % 8 == 0 ? random() % 100 : 0)};
  }
  [[nodiscard]] std::uint64_t random() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return state_ >> 33;
  }

 private:
  const Microarchitecture& on_;
  std::uint64_t state_{42};
};

inline std::vector<std::byte> state_of(Pipeline& pipeline) {
  std::vector<std::byte> state;
  pipeline.visit_state([&](std::span<std::byte> part) { state.insert(state.end(), part.begin(), part.end()); });
  return state;
}

inline void set_state(Pipeline& pipeline, std::span<const std::byte> state) {
  pipeline.visit_state([&](std::span<std::byte> part) {
    std::ranges::copy(state.first(part.size()), part.begin());
    state = state.subspan(part.size());
  });
}

}  // namespace vpmu::timing::test
