#include "sources/lockstep_source.hpp"

#include <gtest/gtest.h>

#include "fakes/fake_cpu.hpp"
#include "sources/instruction.hpp"

namespace vmm::test {
namespace {

constexpr std::uint64_t code = 0x40'0000, data = 0x50'0000;
constexpr std::uint64_t carry = vpmu::bit(0);

/// A CPU that does what each test says, held against the engine.
class Lockstep : public testing::Test {
 protected:
  Lockstep() {
    for (const std::uint64_t page : {code, data}) guest.map(page, vpmu::page_size);
    guest.port.registers.rip = code;
    guest.port.registers.rbx = data;
    guest.port.registers.rax = 7;
  }
  /// Places the instruction, and one to come back from behind it.
  void add(const std::vector<std::uint8_t>& bytes, FakeCpu::Effect effect) { cpu.add_jump(cpu.add(code, bytes, std::move(effect)), code); }
  Result<RunEnd> run() {
    EXPECT_TRUE(guest.breakpoints.apply());  // as the vCPU loop does
    return source.run(guest.port, std::nullopt);
  }
  std::uint64_t statistic(std::string_view wanted) {
    std::uint64_t found = 0;
    source.visit_statistics([&](std::string_view name, std::uint64_t value) { found += name == wanted ? value : 0; });
    return found;
  }
  void expect_difference(const std::string& text) {
    const auto end = run();
    ASSERT_FALSE(end);
    EXPECT_NE(end.error().what.find(text), std::string::npos) << end.error().what;
    EXPECT_EQ(statistic("pmu.lockstep.compared"), 0U);
  }

  FakeGuest guest;
  ScriptedTime time;
  FakeCpu cpu{guest, time};
  LockstepSource source{std::make_unique<FakeTimer>(time), guest.breakpoints, guest.view, guest.memory, 1};
};

const std::vector<std::uint8_t> inc_rax{0x48, 0xFF, 0xC0}, set_carry{0xF9}, store_rax{0x48, 0x89, 0x03}, load_rax{0x48, 0x8B, 0x03};

TEST_F(Lockstep, InstructionsDoneAlikeAreCounted) {
  add(store_rax, [&](FakePort& p) {
    std::uint64_t value = p.registers.rax;
    EXPECT_FALSE(guest.view.write_current(vpmu::GuestLinear{data}, std::as_bytes(std::span{&value, 1})));
    return std::nullopt;
  });
  for (unsigned n = 0; n < 10; ++n) ASSERT_TRUE(run());
  EXPECT_EQ(statistic("pmu.lockstep.compared"), 10U);
  EXPECT_EQ(statistic("pmu.lockstep.compared.mov"), 5U);
  EXPECT_EQ(guest.load_word(data), 7U) << "by the CPU: the engine worked on a copy";
}

TEST_F(Lockstep, ARegisterThatDiffersEndsTheRun) {
  add(load_rax, [](FakePort& p) {
    p.registers.rax = 8;
    return std::nullopt;
  });
  expect_difference("mov rax, [rbx] (488b03): RAX is 0x0 by the engine and 0x8 by KVM");
}

TEST_F(Lockstep, AFlagThatDiffersEndsTheRun) {
  add(set_carry, [](FakePort&) { return std::nullopt; });
  expect_difference("stc (f9): RFLAGS is 0x3 by the engine and 0x2 by KVM");
}

TEST_F(Lockstep, MemoryThatDiffersEndsTheRun) {
  add(store_rax, [&](FakePort&) {
    std::uint64_t value = 9;
    EXPECT_FALSE(guest.view.write_current(vpmu::GuestLinear{data}, std::as_bytes(std::span{&value, 1})));
    return std::nullopt;
  });
  expect_difference("is 0x7 by the engine and 0x9 by KVM");
}

TEST_F(Lockstep, RipThatDiffersEndsTheRun) {
  add(inc_rax, [](FakePort& p) {
    p.registers.rax = 8;
    p.registers.rip += 4;
    return std::nullopt;
  });
  expect_difference("RIP is");
}

TEST_F(Lockstep, WhatTheEngineLeavesIsNotCompared) {
  add({0x0F, 0xA2}, [](FakePort& p) {  // cpuid
    p.registers.rax = 0x55;
    return std::nullopt;
  });
  for (unsigned n = 0; n < 4; ++n) ASSERT_TRUE(run());
  EXPECT_EQ(statistic("pmu.lockstep.left"), 2U);
  EXPECT_EQ(statistic("pmu.lockstep.compared"), 2U);
}

// The guest gets time of its own between two windows.
TEST_F(Lockstep, WindowsEndAndComeAgain) {
  add(set_carry, [](FakePort& p) {
    p.registers.rflags |= carry;
    return std::nullopt;
  });
  for (unsigned n = 0; n < 5000; ++n) ASSERT_TRUE(run());
  EXPECT_GE(statistic("pmu.lockstep.windows"), 3U);
  EXPECT_LT(statistic("pmu.lockstep.compared"), cpu.retired);
}

TEST(UndefinedFlags, AreTheManuals) {
  constexpr std::uint64_t of = vpmu::bit(11), af = vpmu::bit(4);
  const auto of_code = [](std::initializer_list<unsigned> list) {
    std::vector<std::byte> bytes;
    for (const unsigned b : list) bytes.push_back(static_cast<std::byte>(b));
    return undefined_flags(bytes, CodeSize::bits64);
  };
  EXPECT_EQ(of_code({0x01, 0xD8}), 0U) << "add";
  EXPECT_EQ(of_code({0xD1, 0xE0}), af) << "shl eax, 1";
  EXPECT_EQ(of_code({0xC1, 0xE0, 5}), af | of) << "shl eax, 5";
  EXPECT_EQ(of_code({0xC0, 0xE0, 5}), af | of | carry) << "shl al, 5";
  EXPECT_EQ(of_code({0x21, 0xD8}), af) << "and";
}

}  // namespace
}  // namespace vmm::test
