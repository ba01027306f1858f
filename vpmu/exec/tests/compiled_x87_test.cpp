// x87 and MMX in compiled code, whose registers stay in the host's from block to block: random programs, interpreted
// and compiled. oracle/vector_oracle_test.cpp tests the instructions themselves.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "exec/engine.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"
#include "exec/tests/fixtures/vector_platform.hpp"

namespace vpmu::exec::test {
namespace {

using Code = std::vector<unsigned>;

/// What the host's x87 unit holds while C++ code runs.
struct HostX87 {
  std::uint16_t control{}, status{}, tag{};
  bool operator==(const HostX87&) const = default;
};
HostX87 host_x87() {
  std::array<std::uint32_t, 7> environment{};
  __asm__ volatile("fnstenv %0; fldcw %0" : "+m"(environment));
  return {static_cast<std::uint16_t>(environment[0]), static_cast<std::uint16_t>(environment[1]),
          static_cast<std::uint16_t>(environment[2])};
}

class AnyInstruction {
 public:
  explicit AnyInstruction(std::uint64_t seed) : random_{seed} {}
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  Code operator()() {
    switch (below(10)) {
      case 0:
      case 1:
      case 2: return x87_registers();
      case 3:
      case 4: return x87_memory();
      case 5:
      case 6: return mmx();
      case 7: return below(8) == 0 ? control() : sse();
      default: return general();
    }
  }

 private:
  unsigned pick(std::initializer_list<unsigned> of) { return *(of.begin() + below(of.size())); }
  unsigned any(unsigned n) { return static_cast<unsigned>(below(n)); }
  /// ModRM and displacement of memory at RBX.
  Code with_memory(Code code, unsigned reg) {
    code.insert(code.end(), {0x43U | reg << 3U, any(16) * 8});
    return code;
  }
  Code x87_registers() {
    switch (below(8)) {
      case 0: return {0xD8, 0xC0 + any(64)};
      case 1: return {0xD9, 0xC0 + any(16)};  // fld, fxch
      case 2: return {0xD9, pick({0xE0, 0xE1, 0xE4, 0xE5, 0xE8, 0xE9, 0xEB, 0xEE, 0xF6, 0xF7, 0xFA, 0xFC, 0xFD})};
      case 3: return {pick({0xDA, 0xDB}), 0xC0 + any(32)};  // fcmov
      case 4: return {0xDB, 0xE8 + any(16)};                // fucomi, fcomi
      case 5: return {0xDC, 0xC0 + any(16)};
      case 6: return {0xDD, pick({0xC0, 0xC3, 0xD1, 0xD8, 0xDA, 0xE1, 0xE9})};
      default: return {0xDE, pick({0xC1, 0xC9, 0xD9, 0xE1, 0xE9, 0xF1, 0xF9})};
    }
  }
  Code x87_memory() {
    const unsigned opcode = 0xD8 + any(8);
    unsigned reg = any(8);
    if (opcode == 0xD9 && (reg == 1 || reg >= 4)) reg = 0;
    if (opcode == 0xDD && (reg == 5 || reg == 4 || reg == 6)) reg = 0;
    if (opcode == 0xDB && (reg == 4 || reg == 6)) reg = 5;
    return with_memory({opcode}, reg);
  }
  Code environment() {
    switch (below(4)) {
      case 0: return {0xDB, 0xE3};             // fninit
      case 1: return with_memory({0xD9}, 4);   // fldenv
      case 2: return with_memory({0xDD}, 4);   // frstor
      default: return with_memory({0xDD}, 6);  // fnsave
    }
  }
  Code control() {
    switch (below(8)) {
      case 0: return X86("fnclex");
      case 1: return environment();
      case 2: return with_memory({0xD9}, 7);  // fnstcw
      case 3: return with_memory({0xD9}, 5);  // fldcw
      case 4: return with_memory({0xDD}, 7);  // fnstsw
      case 5: return with_memory({0xD9}, 6);  // fnstenv
      case 6: return X86("fnstsw %ax");
      default: return X86("fwait");
    }
  }
  Code mmx() {
    const unsigned opcode = pick({0x60, 0x63, 0x69, 0x6F, 0x74, 0x7F, 0xD2, 0xD4, 0xDB, 0xEF, 0xF5, 0xFA, 0xFE, 0x6E});
    if (below(12) == 0) return X86("emms");
    if (below(2) == 0) return with_memory({0x0F, opcode}, any(8));
    if (opcode == 0x6E) return {0x0F, opcode, 0xC0 + any(8) * 8 + any(3)};  // RAX to RDX: others hold addresses
    return {0x0F, opcode, 0xC0 + any(64)};
  }
  Code sse() {
    const unsigned opcode = pick({0x58, 0x59, 0x5C, 0x57, 0x14, 0x28});
    if (opcode != 0x28 && below(2) == 0) return {0x0F, opcode, 0xC0 + any(64)};
    return with_memory({0x0F, 0x10 + any(2)}, any(8));  // movups
  }
  Code general() {
    switch (below(4)) {
      case 0: return with_memory({0x48, 0x03}, pick({0, 1, 2}));  // add
      case 1: return {0x48, 0x01, 0xC0 | pick({0, 1, 2}) << 3U | pick({0, 1, 2})};
      case 2: return {0xA4 + any(2)};  // movs: the interpreter runs it
      default: return with_memory({0x48, 0x89}, pick({0, 1, 2}));
    }
  }
  std::mt19937_64 random_;
};

/// Code on the first page, then data, and then no memory.
struct X87Machine {
  explicit X87Machine(Compiling compiling) : engine{ram, platform, &code, compiling} {}
  FlatRam ram{2 * page_size};
  VectorPlatform platform;
  TestCode code;
  Engine engine;
};

class CompiledX87 : public testing::Test {
 protected:
  /// Straight-line blocks, the last of which goes back to the first.
  void put_program(AnyInstruction& any) {
    std::vector<std::byte> program;
    for (unsigned n = 0, count = 10 + static_cast<unsigned>(any.below(40)); n < count; ++n) {
      for (const unsigned b : any()) program.push_back(static_cast<std::byte>(b));
      if (any.below(12) == 0) program.insert(program.end(), {std::byte{0xEB}, std::byte{0}});
    }
    program.push_back(std::byte{0xE9});
    const auto back = static_cast<std::int32_t>(-static_cast<std::int64_t>(program.size()) - 4);
    const auto bytes = std::as_bytes(std::span{&back, 1});
    program.insert(program.end(), bytes.begin(), bytes.end());
    for (X87Machine* m : {&interpreted_, &compiled_}) std::ranges::copy(program, m->ram.bytes().begin());
  }
  void put_data(AnyInstruction& any) {
    for (std::size_t i = 0; i < page_size; ++i) {
      const auto b = static_cast<std::byte>(any.below(256));
      for (X87Machine* m : {&interpreted_, &compiled_}) m->ram.bytes()[page_size + i] = b;
    }
  }
  static CpuState state_of(X87Machine& m, std::uint64_t data) {
    CpuState s;
    s.paging.cr4 = 1U << 9;
    s.rip = m.ram.address();
    s.rflags = 2;
    s.gpr[rbx] = m.ram.address() + page_size + data;
    s.gpr[rsi] = m.ram.address() + page_size + 512;
    s.gpr[rdi] = m.ram.address() + page_size + 2048;
    return s;
  }
  void expect_same() {
    const CpuState a = interpreted_.engine.state(), b = compiled_.engine.state();
    ASSERT_EQ(a.rip - interpreted_.ram.address(), b.rip - compiled_.ram.address());
    ASSERT_EQ(a.rflags, b.rflags);
    for (const unsigned reg : {rax, rcx, rdx}) ASSERT_EQ(a.gpr[reg], b.gpr[reg]) << reg;
    const auto& x = interpreted_.platform.state.legacy;
    const auto& y = compiled_.platform.state.legacy;
    ASSERT_EQ(std::ranges::mismatch(x, y).in1 - x.begin(), x.end() - x.begin()) << "the first byte that differs";
    ASSERT_TRUE(std::ranges::equal(interpreted_.ram.bytes(), compiled_.ram.bytes()));
  }
  /// Masks some exceptions or all, as a program may, in both.
  void mask(AnyInstruction& any) {
    const auto masks = [&] { return any.below(2) == 0 ? VectorState::exceptions : any.below(0x40); };
    const std::uint64_t x87 = masks(), sse = masks();
    for (X87Machine* m : {&interpreted_, &compiled_}) {
      VectorState& v = m->platform.state;
      v.set_fcw(static_cast<std::uint16_t>((v.fcw() & ~0x3FU) | x87));
      v.set_mxcsr(static_cast<std::uint32_t>((v.mxcsr() & ~0x1F80U) | sse << 7));
    }
  }
  /// What a handler does that goes on: clears the flags of x87, or masks the exceptions.
  void handle(AnyInstruction& any) {
    for (X87Machine* m : {&interpreted_, &compiled_}) {
      VectorState& v = m->platform.state;
      v.set_fsw(v.fsw() & 0x7F00U);
      if (m->engine.raised() != 0) v.set_mxcsr(v.mxcsr() | 0x1F80);
    }
    if (any.below(3) == 0) mask(any);
    for (X87Machine* m : {&interpreted_, &compiled_}) m->engine.resume(m->engine.state());
  }
  /// Runs both in pieces. Returns how many instructions ran.
  std::uint64_t run(AnyInstruction& any, std::uint64_t data) {
    interpreted_.platform.state = compiled_.platform.state = {};
    if (any.below(3) == 0) mask(any);
    interpreted_.engine.load(state_of(interpreted_, data));
    compiled_.engine.load(state_of(compiled_, data));
    for (unsigned piece = 0; piece < 20; ++piece) {
      const std::uint64_t instructions = 1 + any.below(200);
      const Stop stop = interpreted_.engine.run(instructions);
      EXPECT_EQ(compiled_.engine.run(instructions), stop);
      expect_same();
      EXPECT_EQ(host_x87(), host_);
      EXPECT_EQ(interpreted_.engine.raised(), compiled_.engine.raised());
      if (stop == Stop::float_error) {
        ++(interpreted_.engine.raised() == 0 ? x87_errors_ : sse_errors_);
        handle(any);
      } else if (stop != Stop::budget) {
        break;
      }
      if (HasFailure()) break;
    }
    EXPECT_EQ(interpreted_.engine.passed().instructions, compiled_.engine.passed().instructions);
    return compiled_.engine.passed().instructions;
  }

  std::uint64_t x87_errors_{}, sse_errors_{};
  HostX87 host_{host_x87()};
  X87Machine interpreted_{Compiling{.after = 0}}, compiled_{Compiling{.after = 1}};
};

TEST_F(CompiledX87, DoesTheSameAsTheInterpreter) {
  std::uint64_t ran = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(seed);
    AnyInstruction any{seed};
    put_program(any);
    put_data(any);
    ran += run(any, any.below(20) == 0 ? page_size - any.below(150) : any.below(page_size / 2));
    if (HasFailure()) return;
  }
  EXPECT_GT(ran, 500'000U);
  EXPECT_GT(x87_errors_, 1'000U);
  EXPECT_GT(sse_errors_, 5U);
  EXPECT_GT(compiled_.engine.compiled_blocks(), 2'000U);
  EXPECT_GT(compiled_.engine.entered_compiled(), 10'000U);
}

// SDM 1 8.7: behind an instruction that unmasks an exception no x87 instruction runs as the host's own, also when one
// that does not wait has run before. The one that waits gets #MF.
TEST_F(CompiledX87, WaitsForWhatFldcwHasUnmasked) {
  const Code program =
      X86("1: fld1; fnstcw 8(%rbx); .byte 0xD9, 0x6B, 0; "  // fldcw 0(%rbx)
          "fnstcw 16(%rbx); nop; nop; nop; nop; nop; nop; fdivl 24(%rbx); fnstsw %ax; fldz; jmp 1b");
  constexpr std::uint16_t zero_divide = 4, pending = 0x8080;
  for (X87Machine* m : {&interpreted_, &compiled_}) {
    for (std::size_t i = 0; i < program.size(); ++i) m->ram.bytes()[i] = static_cast<std::byte>(program[i]);
    const auto put = [&](std::uint16_t control) { std::memcpy(m->ram.bytes().data() + page_size, &control, 2); };
    put(0x37F);
    m->engine.load(state_of(*m, 0));
    EXPECT_EQ(m->engine.run(200), Stop::budget);
    m->platform.state = {};
    m->engine.load(state_of(*m, 0));
    std::memset(m->ram.bytes().data() + page_size + 0x18, 0, sizeof(double));
    put(0x37F & ~zero_divide);
    EXPECT_EQ(m->engine.run(200), Stop::float_error);
    EXPECT_EQ(m->engine.state().rip, m->ram.address() + 22) << "fldz";
    EXPECT_EQ(m->engine.state().gpr[rax] & 0x80FF, pending | zero_divide);
  }
  expect_same();
  EXPECT_EQ(host_x87(), host_);
  EXPECT_GE(compiled_.engine.compiled_blocks(), 1U);
}

// The same where the last instruction of a block is the one that raises it.
TEST_F(CompiledX87, WaitsForWhatTheBlockBeforeHasRaised) {
  std::vector<unsigned> program(Block::max_ops - 1, 0x90);
  append(program, X86("fdivl 24(%rbx); fld1"));
  program.insert(program.end(), 12, 0x90);
  append(program, X86("jmp 1f; 1:"));
  const std::uint64_t waits_at = Block::max_ops - 1 + 3;
  for (X87Machine* m : {&interpreted_, &compiled_}) {
    for (std::size_t i = 0; i < program.size(); ++i) m->ram.bytes()[i] = static_cast<std::byte>(program[i]);
    for (unsigned n = 0; n < 3; ++n) {
      m->platform.state = {};
      m->engine.load(state_of(*m, 0));
      EXPECT_EQ(m->engine.run(Block::max_ops + 14), Stop::budget);
    }
    m->platform.state.set_fcw(0);
    m->platform.state.set_fsw(0);
    m->engine.load(state_of(*m, 0));
    EXPECT_EQ(m->engine.run(Block::max_ops + 14), Stop::float_error);
    EXPECT_EQ(m->engine.state().rip - m->ram.address(), waits_at);
  }
  EXPECT_EQ(compiled_.engine.compiled_blocks(), 2U);
  EXPECT_EQ(host_x87(), host_);
}

// SDM 1 8.1.5: FLDCW takes effect at once, and the host's word is back when C++ code runs.
TEST_F(CompiledX87, RoundsAsTheControlWordSays) {
  const Code program = X86("1: fldl 16(%rbx); fldcw (%rbx); fistl 32(%rbx); fldcw 2(%rbx); fistpl 36(%rbx); jmp 1b");
  constexpr std::uint16_t up = 0xB7F, down = 0x77F;
  constexpr double value = 2.5;
  X87Machine& m = compiled_;
  for (std::size_t i = 0; i < program.size(); ++i) m.ram.bytes()[i] = static_cast<std::byte>(program[i]);
  std::byte* const data = m.ram.bytes().data() + page_size;
  std::memcpy(data, &up, sizeof up);
  std::memcpy(data + 2, &down, sizeof down);
  std::memcpy(data + 16, &value, sizeof value);
  m.engine.load(state_of(m, 0));
  EXPECT_EQ(m.engine.run(1000), Stop::budget);
  std::array<std::int32_t, 2> rounded{};
  std::memcpy(rounded.data(), data + 32, sizeof rounded);
  EXPECT_EQ(rounded, (std::array{3, 2}));
  EXPECT_EQ(host_x87(), host_);
  EXPECT_LT(m.engine.entered_compiled(), 10U) << "it stays in compiled code";
}

}  // namespace
}  // namespace vpmu::exec::test
