// The exact source counts whole blocks by what the engine decodes, and single instructions by what the VMM decodes:
// both must say the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "decode/instruction.hpp"
#include "exec/engine.hpp"
#include "exec/state/vector_state.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "exec/tests/fixtures/flat_ram.hpp"
#include "memory/host_code.hpp"
#include "sources/retired_instruction.hpp"
#include "support/x86.hpp"
#include "vpmu/bits.hpp"

namespace vmm::test {
namespace {

using vpmu::page_size;

class WithVectors final : public vpmu::exec::NoPlatform {
 public:
  vpmu::exec::VectorState* vectors() override { return &state; }
  vpmu::exec::VectorState state;
};

class Decoders : public testing::Test {
 protected:
  /// Runs one instruction; returns what the engine counted, nothing if it did not retire.
  std::optional<vpmu::exec::Passed> run(std::span<const std::byte> code, std::uint64_t rcx) {
    std::ranges::copy(code, ram_.bytes().begin() + page_size);
    vpmu::exec::CpuState state;
    for (auto& gpr : state.gpr) gpr = ram_.address() + 2 * page_size + 512;  // for any base register
    state.gpr[vpmu::exec::rcx] = rcx;
    state.rip = ram_.address() + page_size;
    state.rflags = 2;
    state.paging.cr4 = vpmu::bit(9) | vpmu::bit(18);  // OSFXSR, OSXSAVE
    platform_.state = {};
    platform_.state.xcr0 = 7;
    engine_.load(state);
    engine_.run(1);
    const vpmu::exec::Passed passed = engine_.passed();
    return passed.instructions == 1 ? std::optional{passed} : std::nullopt;
  }

  /// Elements of string instructions, and what makes several accesses by its kind.
  void expect_same_accesses(const Instruction& i, const vpmu::exec::Passed& passed, std::string_view name) {
    kvm_regs before{}, after{};
    before.rcx = 3;
    after.rcx = engine_.state().gpr[vpmu::exec::rcx];
    const vpmu::Retirement retired = retired_instruction(i, before, {}, after, {}).what;
    EXPECT_EQ(passed.more_loads, retired.more_loads) << name;
    EXPECT_EQ(passed.more_stores, retired.more_stores) << name;
  }

  vpmu::exec::test::FlatRam ram_{4 * page_size};
  WithVectors platform_;
  MappedHostCode host_code_;
  vpmu::exec::Engine engine_{ram_, platform_, &host_code_};
};

/// Random bytes that begin as one-byte or two-byte opcodes, with a VEX prefix, or as x87 opcodes.
std::array<std::byte, 15> random_code(std::mt19937_64& random) {
  std::array<std::byte, 15> code{};
  for (std::byte& b : code) b = static_cast<std::byte>(random());
  const std::uint64_t kind = random();
  std::size_t at = 0;
  constexpr std::array prefixes{std::byte{0x66}, std::byte{0xF2}, std::byte{0xF3}};
  switch (kind % 7) {
    case 0: break;
    case 1: code[at] = std::byte{0xC5}; break;
    case 2:
      code[at++] = std::byte{0xC4};
      code[at] = (code[at] & std::byte{0xE0}) | static_cast<std::byte>(1 + kind / 8 % 3);
      break;
    case 3: code[at] = static_cast<std::byte>(0xD8 + kind / 8 % 8); break;
    case 4:  // FXSAVE and its neighbours
      code[at++] = std::byte{0x0F};
      code[at] = std::byte{0xAE};
      break;
    default:
      if (kind / 8 % 4 != 3) code[at++] = prefixes[kind / 8 % 4];
      code[at++] = std::byte{0x0F};
      if (kind / 64 % 3 == 0) code[at] = kind / 256 % 2 == 0 ? std::byte{0x38} : std::byte{0x3A};
  }
  return code;
}

TEST_F(Decoders, AgreeOnBranchesLoadsAndStores) {
  std::mt19937_64 random{1};
  std::map<std::string_view, unsigned> seen;
  for (unsigned n = 0; n < 300'000; ++n) {
    const auto code = random_code(random);
    const auto i = decode_instruction(code, CodeMode::bits64);
    if (!i) continue;
    const auto passed = run(std::span{code}.first(i->length), 3);
    if (!passed) continue;
    const std::string_view name = mnemonic_of(code, CodeMode::bits64);
    ++seen[name];
    EXPECT_EQ(passed->branches, i->branch != vpmu::BranchKind::none) << name;
    EXPECT_EQ(passed->loads, i->load || i->prefetched) << name;
    EXPECT_EQ(passed->stores, i->store.has_value()) << name;
    if (!i->gather) expect_same_accesses(*i, *passed, name);
    if (HasFailure()) break;
  }
  EXPECT_GE(seen.size(), 300U) << "mnemonics that came up";
  for (const std::string_view name :
       {"add", "call", "movaps", "movss", "paddd", "pextrd", "fld", "fstp", "fnstenv", "fxsave", "ldmxcsr", "stmxcsr"})
    EXPECT_TRUE(seen.contains(name)) << name;
}

// Rule S4. RSI and RDI are behind the last element that was done, or before it with DF.
TEST(RetiredInstruction, ARepeatedStringHasItsLastElement) {
  const auto at = [](const std::vector<std::uint8_t>& code, bool down, unsigned elements) {
    const auto i = decode_instruction(std::as_bytes(std::span{code}), CodeMode::bits64);
    const unsigned bytes = i.value().store ? i->store->bytes : i->load->bytes;
    kvm_regs before{.rcx = 10, .rflags = down ? x86::rflags::DF::mask : 0};
    before.rsi = 0x2000;
    before.rdi = 0x3000;
    kvm_regs after = before;
    after.rcx -= elements;
    after.rsi += down ? 0ULL - elements * bytes : elements * bytes;
    after.rdi += down ? 0ULL - elements * bytes : elements * bytes;
    const vpmu::Retirement what = retired_instruction(*i, before, kvm_sregs{}, after, {.cycles = 1}).what;
    return std::pair{what.load.address.value(), what.store.address.value()};
  };
  EXPECT_EQ(at(X86("rep movsq"), false, 4), (std::pair{0x2018UL, 0x3018UL}));
  EXPECT_EQ(at(X86("rep movsq"), true, 4), (std::pair{0x1FE8UL, 0x2FE8UL}));
  EXPECT_EQ(at(X86("rep movsq"), false, 1), (std::pair{0x2000UL, 0x3000UL})) << "one at a time, by single-steps";
  EXPECT_EQ(at(X86("rep movsq"), false, 0), (std::pair{0UL, 0UL})) << "it has made no access";
  EXPECT_EQ(at(X86("rep lodsw"), false, 3).first, 0x2004U);
  EXPECT_EQ(at(X86("rep stosb"), true, 10).second, 0x2FF7U);
  EXPECT_EQ(at(X86("movsq"), false, 0), (std::pair{0x2000UL, 0x3000UL})) << "RCX does not count";
}

// A gather loads from many places, which its general registers alone do not tell.
TEST(RetiredInstruction, AGatherLoadsAndHasNoAddress) {
  const auto load_of = [](const std::vector<unsigned>& bytes) {
    std::vector<std::byte> code;
    for (const unsigned b : bytes) code.push_back(static_cast<std::byte>(b));
    kvm_regs regs{};
    regs.rbx = 0x2000;
    const auto i = decode_instruction(code, CodeMode::bits64);
    const Retired retired = retired_instruction(i.value(), regs, kvm_sregs{}, regs, {.cycles = 1});
    EXPECT_TRUE(retired.what.has_load);
    return retired.what.load.address.value();
  };
  EXPECT_EQ(load_of(X86("mov 8(%rbx), %eax")), 0x2008U);
  EXPECT_EQ(load_of(X86("vpgatherdd %xmm1, 8(%rbx,%xmm2,4), %xmm0")), 0U);
}

// A software prefetch retires as a load of its address.
TEST(RetiredInstruction, APrefetchLoads) {
  constexpr std::array code{std::byte{0x0F}, std::byte{0x18}, std::byte{0x4B}, std::byte{0x08}};  // prefetcht0 8(%rbx)
  kvm_regs regs{};
  regs.rbx = 0x2000;
  const auto i = decode_instruction(code, CodeMode::bits64);
  ASSERT_TRUE(i);
  EXPECT_FALSE(i->read()) << "nothing has to be readable";
  const Retired retired = retired_instruction(*i, regs, kvm_sregs{}, regs, {.cycles = 1});
  EXPECT_TRUE(retired.what.has_load);
  EXPECT_FALSE(retired.what.has_store);
  EXPECT_EQ(retired.what.load.address.value(), 0x2008U);
}

TEST(MnemonicOf, NamesWhatTheBytesHold) {
  EXPECT_EQ(mnemonic_of(std::array{std::byte{0x48}, std::byte{0xCF}}, CodeMode::bits64), "iretq");
  EXPECT_EQ(mnemonic_of(std::array{std::byte{0x06}}, CodeMode::bits64), "invalid");
}

}  // namespace
}  // namespace vmm::test
