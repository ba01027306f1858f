#pragma once
#include <cstddef>
#include <cstdint>

// known.S: code of which every instruction is known. Each function enables the events of a group by its first system
// call and disables them by its last.
extern "C" {
void vpmu_known_loop(int group_leader, unsigned rounds, std::uint64_t* memory);
std::uint64_t vpmu_known_walk(int group_leader, const void* memory, unsigned lines, unsigned step);
void vpmu_known_lines(int group_leader, unsigned rounds);
void vpmu_known_calls(int group_leader, unsigned rounds);
void vpmu_known_frames(int group_leader, unsigned rounds);
// NOLINTBEGIN(bugprone-dynamic-static-initializers): places in known.S, which nothing initialises.
extern const char vpmu_known_outer_call[], vpmu_known_outer[], vpmu_known_inner_call[], vpmu_known_inner[],
    vpmu_known_inner_end[];
extern const char vpmu_known_first[], vpmu_known_load[], vpmu_known_store[], vpmu_known_jump[], vpmu_known_last[];
extern const char vpmu_known_frame_call[], vpmu_known_frame_return[], vpmu_known_framed[], vpmu_known_framed_end[];
extern const char vpmu_known_lines_begin[], vpmu_known_lines_end[];
// NOLINTEND(bugprone-dynamic-static-initializers)
}

namespace vmm::tool::checker {

inline std::uint64_t address_of(const void* place) { return reinterpret_cast<std::uintptr_t>(place); }

/// The memory that vpmu_known_walk() reads: 8 MiB, more than any L2 has.
constexpr unsigned line_bytes = 64;
constexpr unsigned walked_lines = 1U << 17;
constexpr std::size_t walked_bytes = std::size_t{walked_lines} * line_bytes;

/// What the loop executes in user mode, from vpmu_known_first on.
struct KnownLoop {
  static constexpr unsigned instructions_of_round = 5;
  static constexpr unsigned instructions_outside = 4;
  unsigned rounds;

  [[nodiscard]] std::uint64_t instructions() const {
    return std::uint64_t{instructions_of_round} * rounds + instructions_outside;
  }
  /// The last branch of each iteration, and the far branch of the system call that ends the loop.
  [[nodiscard]] std::uint64_t branches() const { return std::uint64_t{rounds} + 1; }
  /// Where instruction `number` is, counted from 0; 0 for one after the last round.
  [[nodiscard]] std::uint64_t address(std::uint64_t number) const;
  /// Whether it is an address of the loop, or of the code around it.
  static bool has(std::uint64_t address) {
    return address >= address_of(vpmu_known_first) && address <= address_of(vpmu_known_last);
  }
};

/// What most checks run, and the period of their samples: a multiple of 64, because Broadwell accepts no other period
/// for instructions. Neither the period nor period + 1 is a multiple of a round's length, so the samples are spread
/// over all of its instructions.
inline constexpr KnownLoop usual_loop{.rounds = 20'000};
inline constexpr std::uint64_t loop_period = 1088;

}  // namespace vmm::tool::checker
