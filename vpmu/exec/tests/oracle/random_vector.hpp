#pragma once
#include <map>
#include <random>
#include <string>
#include <vector>

#include "exec/tests/fixtures/host_cpu.hpp"

namespace vpmu::exec::test {

/// One x87, MMX, SSE, AVX or BMI instruction, and a state to run it from.
struct VectorCase {
  std::vector<std::byte> code;
  std::string text;
  std::string mnemonic;
  Registers before;
  VectorState vectors;
  std::uint64_t at{};  ///< The memory operand.
  unsigned bytes{};    ///< Its size; 0: none.
  bool masked{};       ///< No floating-point exception can trap.
  bool restores{};     ///< XRSTOR: its operand has a header.
};

/// Instructions of every encoding of these sets, found by trying them all.
class RandomVector {
 public:
  struct Decoded;
  enum class Prefixes : std::uint8_t {
    needed,
    padded,  ///< With others before them, up to the longest instruction. SDM 2A 2.1.1.
  };
  /// Memory operands lie in [scratch, scratch + bytes), some at its very end.
  RandomVector(std::uint64_t seed, std::uint64_t scratch, std::size_t bytes);
  VectorCase next(Prefixes prefixes = Prefixes::needed);
  /// The names of all instructions that next() can return.
  [[nodiscard]] const std::map<std::string, unsigned>& mnemonics() const { return mnemonics_; }
  /// Sixteen bytes of plausible data: floating-point numbers, integers, text.
  std::array<std::byte, 16> value();

 private:
  struct Form {
    std::vector<std::byte> before;  ///< Prefixes, with the place of REX or VEX.
    std::size_t rex{};              ///< Offset in `before` of REX, or of VEX, which has three bytes.
    bool vex{};
    std::vector<std::byte> opcode;
    int reg{-1};  ///< ModRM.reg if it is part of the opcode.
    int rm{-1};   ///< ModRM.rm if it is part of the opcode; the operand is then a register.
    bool memory{};
    bool modrm{true};
  };
  void find_forms();
  void try_form(const Form& form);
  std::vector<std::byte> encode(const Form& form);
  void pad(std::vector<std::byte>& code);
  void set_state(VectorCase& c);
  void shape_xsave(VectorCase& c, const Decoded& d);
  void shape_gather(VectorCase& c, const Decoded& d, unsigned operand);
  std::uint64_t number();

  std::mt19937_64 random_;
  std::uint64_t scratch_;
  std::size_t bytes_;
  std::vector<Form> forms_;
  std::map<std::string, unsigned> mnemonics_;
};

}  // namespace vpmu::exec::test
