#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>

#include "exec/engine.hpp"
#include "exec/tests/oracle/random_instruction.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::exec::test {
namespace {

constexpr std::size_t scratch_pages = 8;

/// Scratch memory first, then a page with the instruction.
class HostOracle : public testing::Test {
 protected:
  void fill(std::mt19937_64& random) {
    for (std::byte& b : scratch_) b = static_cast<std::byte>(random());
  }
  Stop run_engine(const Case& c, Registers& after) {
    std::memcpy(ram_.bytes().data() + scratch_.size(), c.code.data(), c.code.size());
    CpuState s;
    s.gpr = c.before.gpr;
    s.rflags = c.before.flags;
    s.rip = ram_.address() + scratch_.size();
    engine_.load(s);
    const Stop stop = engine_.run(1);
    const CpuState end = engine_.state();
    after = {end.gpr, end.rflags};
    if (stop == Stop::budget) {
      EXPECT_EQ(end.rip, s.rip + c.code.size()) << c.text;
      EXPECT_EQ(engine_.passed().instructions, 1U) << c.text;
    }
    return stop;
  }

  /// The same as compiled code, with a jump after it that ends the block.
  Registers run_compiled(const Case& c) {
    std::byte* const behind = ram_.bytes().data() + scratch_.size() + c.code.size();
    constexpr std::array jump{0xE9, 0, 0, 0, 0};
    for (std::size_t i = 0; i < jump.size(); ++i) behind[i] = static_cast<std::byte>(jump[i]);
    CpuState s;
    s.gpr = c.before.gpr;
    s.rflags = c.before.flags;
    s.rip = ram_.address() + scratch_.size();
    compiled_.load(s);
    EXPECT_EQ(compiled_.run(2), Stop::budget) << c.text;
    const CpuState end = compiled_.state();
    EXPECT_EQ(end.rip, s.rip + c.code.size() + jump.size()) << c.text;
    return {end.gpr, end.rflags};
  }

  FlatRam ram_{(scratch_pages + 1) * page_size};
  std::span<std::byte> scratch_{ram_.bytes().first(scratch_pages * page_size)};
  struct Alone final : NoPlatform {
    bool runs_alone() override { return true; }
  } platform_;
  Engine engine_{ram_, platform_};
  TestCode code_;
  Engine compiled_{ram_, platform_, &code_, Compiling{.after = 1}};
  HostCpu host_;
};

void expect_same(const Case& c, const Registers& before, const Registers& engine, const Registers& host) {
  for (unsigned n = 0; n < 16; ++n) {
    if ((c.undefined_registers >> n & 1) != 0 && engine.gpr[n] == before.gpr[n]) continue;
    ASSERT_EQ(engine.gpr[n], host.gpr[n]) << c.text << ", register " << n << ", before " << std::hex << before.gpr[n];
  }
  const std::uint64_t compared = x86::rflags::status & ~c.undefined;
  ASSERT_EQ(engine.flags & compared, host.flags & compared)
      << c.text << std::hex << ", RAX " << before.gpr[0] << ", RCX " << before.gpr[1] << ", flags before "
      << before.flags;
}

// Every instruction that the engine knows, with registers and flags of all kinds, does what this CPU does. Compiled
// code does exactly what the interpreter does, also for flags that the manual leaves undefined.
TEST_F(HostOracle, DoesWhatTheCpuDoes) {
  const char* const wanted = std::getenv("VPMU_ORACLE_CASES");
  const std::uint64_t cases = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 150'000;
  const char* const seed = std::getenv("VPMU_ORACLE_SEED");
  std::mt19937_64 random{seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1};
  RandomInstruction instructions{random(), ram_.address(), scratch_.size()};
  std::map<std::string, std::uint64_t> known;
  std::map<std::string, std::uint64_t> unknown;
  fill(random);
  for (std::uint64_t done = 0; done < cases;) {
    const auto c = instructions.next();
    if (!c) continue;
    const std::vector<std::byte> memory{scratch_.begin(), scratch_.end()};
    Registers engine;
    const Stop stop = run_engine(*c, engine);
    const std::string mnemonic = c->text.substr(0, c->text.find(' '));
    if (stop != Stop::budget) {
      ++unknown[mnemonic];
      ASSERT_TRUE(std::equal(memory.begin(), memory.end(), scratch_.begin()))
          << c->text << ": left alone, it must have changed nothing";
      for (unsigned n = 0; n < 16; ++n) ASSERT_EQ(engine.gpr[n], c->before.gpr[n]) << c->text;
      ASSERT_EQ(engine.flags, c->before.flags) << c->text;
      continue;
    }
    const std::vector<std::byte> after{scratch_.begin(), scratch_.end()};
    std::ranges::copy(memory, scratch_.begin());
    const auto host = host_.run(c->code, c->before);
    ASSERT_TRUE(host) << c->text << " faults";
    expect_same(*c, c->before, engine, *host);
    if (testing::Test::HasFatalFailure()) return;
    ASSERT_TRUE(std::equal(after.begin(), after.end(), scratch_.begin()))
        << c->text << " wrote other memory than the CPU";
    std::ranges::copy(memory, scratch_.begin());
    const Registers compiled = run_compiled(*c);
    ASSERT_EQ(compiled.gpr, engine.gpr) << c->text << ", compiled";
    ASSERT_EQ(compiled.flags, engine.flags) << c->text << ", compiled, flags before " << std::hex << c->before.flags;
    ASSERT_TRUE(std::equal(after.begin(), after.end(), scratch_.begin()))
        << c->text << ", compiled, wrote other memory";
    ++known[mnemonic];
    ++done;
  }
  EXPECT_GE(compiled_.compiled_blocks(), cases / 4);
  EXPECT_GE(known.size(), 90U) << "few mnemonics came up: the generator or the decoder lost some";
  for (const char* const name :
       {"add", "lock", "cmpxchg", "rcl", "shld", "div", "imul", "rep", "cmovz", "setnle", "popcnt", "push"})
    EXPECT_GT(known[name], 0U) << name;
  if (std::getenv("VPMU_ORACLE_VERBOSE") != nullptr) {
    for (const auto& [name, n] : known) std::printf("known %s %lu\n", name.c_str(), n);
    for (const auto& [name, n] : unknown) std::printf("unknown %s %lu\n", name.c_str(), n);
  }
}

}  // namespace
}  // namespace vpmu::exec::test
