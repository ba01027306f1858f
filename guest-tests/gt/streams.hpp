#pragma once
#include <array>
#include <cstdint>

/// Instruction sequences of known content, in streams.S. Addresses of their instructions are known, so that records can
/// be judged.
namespace gt {

extern "C" {
/// Writes `global_ctrl` to IA32_PERF_GLOBAL_CTRL, runs load_stream_length times `mov (%rbx), %eax` with RBX =
/// `address`, and writes 0. Between the two WRMSRs: the loads, then two more instructions.
void gt_load_stream(std::uint64_t global_ctrl, std::uint64_t address);
extern const char gt_load_stream_first[];

/// As gt_load_stream, with a mix of instructions: see MixedStream.
void gt_mixed_stream(std::uint64_t global_ctrl, std::uint64_t address);

/// x87 and SSE instructions, started and stopped in the same way: see VectorStream. Needs CR4.OSFXSR.
void gt_vector_stream(std::uint64_t global_ctrl, std::uint64_t address);

/// Writes `global_ctrl` to IA32_PERF_GLOBAL_CTRL, runs `rounds` iterations of the counted loop, and writes 0.
void gt_counted_loop(std::uint64_t global_ctrl, std::uint64_t rounds);
extern const char gt_counted_loop_head[];

/// The marked loop, `iterations` times; see MarkedLoop. Changes no memory but `store_to`.
void gt_marked_loop(std::uint64_t iterations, const void* load_from, void* store_to);
extern const char gt_marked_loop_head[];
extern const char gt_marked_loop_end[];
}

inline constexpr unsigned load_stream_length = 40;
inline constexpr std::uint64_t load_stream_instruction_bytes = 2;
/// Address of the n-th load of the stream, counted from 1 as the rules' worked vectors do.
inline std::uint64_t load_stream_at(std::uint64_t n) {
  return reinterpret_cast<std::uint64_t>(gt_load_stream_first) + (n - 1) * load_stream_instruction_bytes;
}
/// Instructions that retire in gt_load_stream while counting is on: the loads, XOR, XOR, and the WRMSR that ends it.
inline constexpr std::uint64_t load_stream_instructions = load_stream_length + 3;

inline constexpr std::uint64_t counted_loop_length = 7;
/// Address of the n-th instruction that the counted loop retires, counted from 1.
inline std::uint64_t counted_loop_at(std::uint64_t n) {
  constexpr std::array<std::uint64_t, counted_loop_length> offsets{0, 3, 8, 13, 18, 23, 28};
  return reinterpret_cast<std::uint64_t>(gt_counted_loop_head) + offsets[(n - 1) % counted_loop_length];
}

/// What gt_mixed_stream retires while counting is on, its last WRMSR included.
struct MixedStream {
  static constexpr std::uint64_t instructions = 40;
  static constexpr std::uint64_t branches = 13;
  static constexpr std::uint64_t taken = 10;
  static constexpr std::uint64_t conditional = 8;
  static constexpr std::uint64_t calls = 2;
  static constexpr std::uint64_t returns = 2;
  static constexpr std::uint64_t loads = 6;
  static constexpr std::uint64_t stores = 6;
};

/// What gt_vector_stream retires while counting is on, its last WRMSR included. Takes two 32-bit integers at `address`,
/// and stores at `address` + 16 four times the square of twice their sum, followed by MXCSR.
struct VectorStream {
  static constexpr std::uint64_t instructions = 20;
  static constexpr std::uint64_t loads = 3;
  static constexpr std::uint64_t stores = 3;
};

/// The marked loop: eight five-byte moves that write their own number to EBX, DEC, a load, a store, and the branch,
/// which is fused with none of them. The registers have the values that a record must show: see marked_loop_constants,
/// CF = 1.
struct MarkedLoop {
  static constexpr unsigned marks = 8;
  static constexpr std::uint64_t mark_bytes = 5;
  static constexpr std::uint64_t decrement_offset = marks * mark_bytes;  ///< dec %rdi
  static constexpr std::uint64_t load_offset = decrement_offset + 3;     ///< mov (%rsi), %rax
  static constexpr std::uint64_t store_offset = load_offset + 3;         ///< mov %rax, (%rdx)
  static constexpr std::uint64_t branch_offset = store_offset + 3;       ///< jnz head
  static constexpr std::uint64_t end_offset = branch_offset + 2;
  static constexpr std::uint64_t instructions = marks + 4;

  static std::uint64_t head() { return reinterpret_cast<std::uint64_t>(gt_marked_loop_head); }
  /// Length of the instruction at `offset`, 0 when none starts there.
  static constexpr std::uint64_t length_at(std::uint64_t offset) {
    if (offset < decrement_offset) return offset % mark_bytes == 0 ? mark_bytes : 0;
    if (offset == load_offset || offset == store_offset || offset == decrement_offset) return 3;
    return offset == branch_offset ? 2 : 0;
  }
};
/// The instruction of one of the streams that retired before `rip`; 0 if `rip` does not follow one of them. The marked
/// loop's head follows its taken branch, and also the code before the loop.
std::uint64_t instruction_before(std::uint64_t rip);

/// The values of RBP, then R8 to R15, in the marked loop.
inline constexpr std::array<std::uint64_t, 9> marked_loop_constants{
    0x0B0B'1111'2222'3333, 0x0808'0808'0000'0008, 0x0909'0909'0000'0009, 0x1010'1010'0000'0010, 0x1111'1111'0000'0011,
    0x1212'1212'0000'0012, 0x1313'1313'0000'0013, 0x1414'1414'0000'0014, 0x1515'1515'0000'0015};

}  // namespace gt
