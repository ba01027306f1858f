#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "exec/decode/macro_fusion.hpp"
#include "timing/microarchitecture.hpp"

namespace vpmu::exec {
struct DecodedInstruction;
}  // namespace vpmu::exec

namespace vpmu::timing {

/// Cycles are counted in 64ths, as integers, so that they are the same on each host.
using Time = std::int64_t;
/// The same since some moment that is not long ago.
using Tick = std::int32_t;
inline constexpr Tick cycle = 64;

/// What one instruction makes another wait for: a register, or flags that are renamed together.
using Node = std::uint8_t;
inline constexpr Node first_vector_node = 16, first_stack_node = 32, carry_node = 40, flags_node = 41;
inline constexpr Node vector_registers = first_stack_node - first_vector_node;
inline constexpr std::size_t node_count = 42;

/// At most so many nodes.
template <std::size_t max>
class Nodes {
 public:
  void add(Node node) {
    if (count_ < max) nodes_[count_++] = node;
  }
  void clear() { count_ = 0; }
  [[nodiscard]] const Node* begin() const { return nodes_.data(); }
  [[nodiscard]] const Node* end() const { return nodes_.data() + count_; }
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] bool has(Node node) const {
    for (const Node one : *this)
      if (one == node) return true;
    return false;
  }

 private:
  std::array<Node, max> nodes_{};
  std::uint8_t count_{};
};

using exec::Fusion;

/// What an instruction takes of a pipeline, wherever it stands.
/// What an instruction keeps from happening before it has retired. SDM 2A LFENCE, MFENCE.
enum class Barrier : std::uint8_t {
  none,
  dispatch,  ///< Of what comes after it (LFENCE).
  loads,     ///< Those after it: they wait until all stores before it have left the store buffer (MFENCE).
};

struct TimedInstruction {
  std::uint8_t length{};
  std::uint8_t opcode_at{};  ///< Of its bytes: where the last one of the opcode is.
  Nodes<8> sources;          ///< Besides addresses.
  Nodes<4> addresses;
  Nodes<6> results;
  std::uint16_t latency{};      ///< Cycles, from sources and loaded data.
  std::uint8_t load_latency{};  ///< Cycles, of an L1 hit.
  std::uint8_t loads{}, stores{};
  std::uint16_t slots{};  ///< Fused micro-ops: those that the back end takes, `issue_width` of them a cycle.
  std::uint16_t micro_ops{};
  std::uint16_t decoded{};  ///< Fused micro-ops that decoders make of it: an indexed address has not split them yet.
  std::uint16_t divider{};  ///< Cycles.
  std::array<std::uint16_t, max_port_sets> ports{};       ///< By port set: 64ths of a cycle.
  std::array<std::uint8_t, max_port_sets> by_port_set{};  ///< Micro-ops that go to the ports of this set.
  bool has_row{};                                         ///< False: its class's micro-op and latency were taken.
  bool is_vector{};                                       ///< It works on vector registers.
  bool is_locked{};                                       ///< An atomic read and write of memory.
  bool is_free{};                                         ///< A zeroing idiom: its results wait for nothing.
  bool needs_first_decoder{};
  bool is_microcode{};
  bool has_length_prefix{};  ///< A prefix changes its length. 248966, legacy decode pipeline.
  bool takes_two_places{};   ///< In the micro-op cache: its last micro-op has a constant that is too wide for one.
  bool is_branch{};
  Barrier barrier{};
  bool fuses{};              ///< With the instruction before it.
  Fusion fusion{};           ///< As the first of two.
  Fusion condition{};        ///< As a conditional branch: the least that the compare must be.
  bool uses_stack_engine{};  ///< PUSH, POP, CALL, RET: their RSP is tracked before the back end. 248966, stack pointer
                             ///< tracker.
  bool reads_stack_pointer{};  ///< After one of these: a micro-op that brings RSP up to date.
};

TimedInstruction timed_instruction(const exec::DecodedInstruction& i, const Microarchitecture& on);

/// The instructions of this code of so many bits, each by itself, up to the first bytes that are none.
std::vector<TimedInstruction> timed_code(std::span<const std::byte> code, unsigned bits, const Microarchitecture& on);

/// Joins the pairs that fuse, and adds the stack engine's micro-ops.
void join(std::span<TimedInstruction> block, const Microarchitecture& on);

/// These bytes of 64-bit code, joined. Empty: not all of it is instructions.
std::optional<std::vector<TimedInstruction>> timed_block(std::span<const std::byte> code, const Microarchitecture& on);

}  // namespace vpmu::timing
