#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

namespace vpmu::exec::test {

/// Blocks of random instructions that lead to each other in every way: what compilers write, and what they do not. Most
/// memory operands are near RSP, RBP, RSI, RDI, R10 or R13, which hardly any instruction changes.
class RandomProgram {
 public:
  /// With SSE, AVX and BMI instructions among the others, or without.
  RandomProgram(std::uint64_t seed, std::uint64_t address, bool has_vectors)
      : random_{seed}, address_{address}, has_vectors_{has_vectors} {}

  static constexpr std::array<unsigned, 6> pointers{4, 5, 6, 7, 10, 13};

  /// Writes it, to stand at the address.
  void write();
  [[nodiscard]] const std::vector<std::uint8_t>& code() const { return code_; }
  /// Where blocks begin, from the beginning of the code.
  [[nodiscard]] const std::vector<std::size_t>& blocks() const { return blocks_; }

 private:
  struct Operand {
    unsigned bytes{};  ///< 1, 2, 4 or 8.
    std::vector<std::uint8_t> opcode;
    unsigned reg{};
    bool memory{};
    unsigned immediate{};   ///< Bytes of it.
    std::uint8_t prefix{};  ///< LOCK, or F2 or F3 as part of the opcode.
  };
  unsigned below(unsigned n) { return static_cast<unsigned>(random_() % n); }
  bool one_in(unsigned n) { return below(n) == 0; }
  unsigned any_register();
  unsigned any_size() { return 1U << below(4); }
  void put(std::initializer_list<unsigned> bytes) {
    for (const unsigned b : bytes) code_.push_back(static_cast<std::uint8_t>(b));
  }
  void put_random(unsigned bytes);
  void put_operand(const Operand& o);
  void put_memory(unsigned reg, unsigned immediate);
  void distance_to_a_block();

  void block();
  void instruction();
  void arithmetic();
  void move();
  void shift();
  void with_one_operand();
  void with_two_operands();
  void stack();
  void without_memory();
  void for_the_interpreter();
  void sse();
  void sse_move(bool memory);
  void sse_arithmetic(bool memory);
  void sse_with_general_register(bool memory);
  void avx();
  void bmi();
  void padding();
  void flow();

  std::mt19937_64 random_;
  std::uint64_t address_;
  bool has_vectors_;
  bool is_avx_{};  ///< Most vector instructions of the block are.
  std::vector<std::uint8_t> code_;
  std::vector<std::size_t> blocks_;
  std::vector<std::size_t> distances_;  ///< Places of four bytes, to be filled in with the way to a block.
};

}  // namespace vpmu::exec::test
