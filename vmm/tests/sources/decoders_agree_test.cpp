// The exact source counts whole blocks by what the engine decodes, and single instructions by what the VMM decodes: both must say the same.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "exec/engine.hpp"
#include "exec/tests/flat_ram.hpp"
#include "sources/instruction.hpp"

namespace vmm::test {
namespace {

using vpmu::page_size;

class Decoders : public testing::Test {
 protected:
  /// Runs one instruction; what it counted, empty when it did not retire.
  std::optional<vpmu::exec::Passed> run(std::span<const std::byte> code, std::uint64_t rcx) {
    std::ranges::copy(code, ram_.bytes().begin() + page_size);
    vpmu::exec::CpuState state;
    for (auto& gpr : state.gpr) gpr = ram_.address() + 2 * page_size + 512;  // whatever the base register is
    state.gpr[vpmu::exec::rcx] = rcx;
    state.rip = ram_.address() + page_size;
    state.rflags = 2;
    engine_.load(state);
    engine_.run(1);
    const vpmu::exec::Passed passed = engine_.passed();
    return passed.instructions == 1 ? std::optional{passed} : std::nullopt;
  }

  vpmu::exec::test::FlatRam ram_{4 * page_size};
  vpmu::exec::NoPlatform nobody_;
  vpmu::exec::Engine engine_{ram_, nobody_};
};

TEST_F(Decoders, AgreeOnBranchesLoadsAndStores) {
  std::mt19937_64 random{1};
  std::map<std::string_view, unsigned> seen;
  for (unsigned n = 0; n < 300'000; ++n) {
    std::array<std::byte, 15> code{};
    for (std::byte& b : code) b = static_cast<std::byte>(random());
    if (n % 2 == 0) code[0] = std::byte{0x0F};
    const auto i = decode_instruction(code, CodeSize::bits64);
    if (!i) continue;
    const auto passed = run(std::span{code}.first(i->length), 3);
    if (!passed) continue;
    const std::string_view name = mnemonic_of(code, CodeSize::bits64);
    ++seen[name];
    EXPECT_EQ(passed->branches, i->branch != vpmu::BranchKind::none) << name;
    EXPECT_EQ(passed->loads, i->load.has_value()) << name;
    EXPECT_EQ(passed->stores, i->store.has_value()) << name;
    if (HasFailure()) break;
  }
  EXPECT_GE(seen.size(), 60U) << "mnemonics that came up";
}

TEST(MnemonicOf, NamesWhatTheBytesHold) {
  EXPECT_EQ(mnemonic_of(std::array{std::byte{0x48}, std::byte{0xCF}}, CodeSize::bits64), "iretq");
  EXPECT_EQ(mnemonic_of(std::array{std::byte{0x06}}, CodeSize::bits64), "invalid");
}

}  // namespace
}  // namespace vmm::test
