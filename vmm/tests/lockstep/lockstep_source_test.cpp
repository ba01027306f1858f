#include "lockstep/lockstep_source.hpp"

#include <gtest/gtest.h>

#include "decode/instruction.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/fake_cpu.hpp"

namespace vmm::test::of_lockstep_source {
namespace {

constexpr std::uint64_t code = 0x40'0000, data = 0x50'0000;
constexpr std::uint64_t carry = vpmu::bit(0);

/// Compares the engine with a CPU whose instructions have the effects that a test gives them.
class Lockstep : public testing::Test {
 protected:
  Lockstep() {
    for (const std::uint64_t page : {code, data}) guest.map(page, vpmu::page_size);
    guest.backend.registers.rip = code;
    guest.backend.registers.rbx = data;
    guest.backend.registers.rax = 7;
  }
  /// Places the instruction, and after it a jump back to it.
  void add(const std::vector<std::uint8_t>& bytes, FakeCpu::Effect effect) {
    cpu.add_jump(cpu.add(code, bytes, std::move(effect)), code);
  }
  /// Places `count` of these instructions, the n-th with effect(n), then CPUID, at which the engine stops, and a jump
  /// back.
  void add_many(unsigned count, const std::vector<std::uint8_t>& bytes,
                const std::function<FakeCpu::Effect(unsigned)>& effect) {
    std::uint64_t at = code;
    for (unsigned n = 0; n < count; ++n) at = cpu.add(at, bytes, effect(n));
    cpu.add_jump(cpu.add(at, cpuid), code);
  }
  Result<RunEnd> run() {
    EXPECT_TRUE(guest.breakpoints.apply());  // as the vCPU loop does
    return source.run(guest.backend, std::nullopt);
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

  static const std::vector<std::uint8_t> cpuid;
  FakeGuest guest;
  ScriptedTime time;
  FakeCpu cpu{guest, time};
  LockstepSource source{std::make_unique<FakeTimer>(time),
                        guest.breakpoints,
                        guest.view,
                        guest.memory,
                        vpmu::describe(vpmu::Generation::skylake),
                        1};
};

const std::vector<std::uint8_t> Lockstep::cpuid = X86("cpuid");
const std::vector<std::uint8_t> inc_rax = X86("inc %rax"), lea_rax = X86("lea 1(%rax), %rax"), set_carry = X86("stc"),
                                store_rax = X86("mov %rax, (%rbx)"), load_rax = X86("mov (%rbx), %rax");

TEST_F(Lockstep, InstructionsDoneAlikeAreCounted) {
  add(store_rax, [&](FakeBackend& p) {
    std::uint64_t value = p.registers.rax;
    EXPECT_FALSE(guest.view.write_current(vpmu::GuestLinear{data}, std::as_bytes(std::span{&value, 1})));
    return std::nullopt;
  });
  for (unsigned n = 0; n < 10; ++n) ASSERT_TRUE(run());
  EXPECT_GE(statistic("pmu.lockstep.compared"), 4U);
  EXPECT_GE(statistic("pmu.lockstep.compared.mov"), 2U);
  EXPECT_EQ(guest.load_word(data), 7U) << "by the CPU: the engine worked on a copy";
}

TEST_F(Lockstep, ARegisterThatDiffersEndsTheRun) {
  add(load_rax, [](FakeBackend& p) {
    p.registers.rax = 8;
    return std::nullopt;
  });
  expect_difference("mov rax, [rbx] (488b03): RAX is 0x0 by the engine and 0x8 by KVM");
}

TEST_F(Lockstep, AFlagThatDiffersEndsTheRun) {
  add(set_carry, [](FakeBackend&) { return std::nullopt; });
  expect_difference("stc (f9): RFLAGS is 0x3 by the engine and 0x2 by KVM");
}

TEST_F(Lockstep, MemoryThatDiffersEndsTheRun) {
  add(store_rax, [&](FakeBackend&) {
    std::uint64_t value = 9;
    EXPECT_FALSE(guest.view.write_current(vpmu::GuestLinear{data}, std::as_bytes(std::span{&value, 1})));
    return std::nullopt;
  });
  expect_difference("is 0x7 by the engine and 0x9 by KVM");
}

TEST_F(Lockstep, RipThatDiffersEndsTheRun) {
  guest.backend.registers.rflags |= vpmu::bit(6);  // ZF
  cpu.add(code, X86("je .+18"), [](FakeBackend& p) {
    p.registers.rip = code + 2;
    return std::nullopt;
  });
  cpu.add(code + 2, cpuid, [](FakeBackend&) -> std::optional<Exit> { return Shutdown{}; });
  cpu.add_jump(code + 0x12, code);
  expect_difference("jz +0x12 (7410): RIP");
}

TEST_F(Lockstep, WhatTheEngineLeavesIsNotCompared) {
  add(X86("cpuid"), [](FakeBackend& p) {
    p.registers.rax = 0x55;
    return std::nullopt;
  });
  for (unsigned n = 0; n < 4; ++n) ASSERT_TRUE(run());
  EXPECT_EQ(statistic("pmu.lockstep.left"), 2U);
  EXPECT_EQ(statistic("pmu.lockstep.left.cpuid"), 2U);
  EXPECT_EQ(statistic("pmu.lockstep.compared"), 2U);
}

FakeCpu::Effect increment(std::uint64_t by = 1) {
  return [by](FakeBackend& p) {
    p.registers.rax += by;
    return std::nullopt;
  };
}

TEST_F(Lockstep, ARunIsComparedAtItsEnd) {
  add_many(40, lea_rax, [](unsigned) { return increment(); });
  ASSERT_TRUE(run());
  EXPECT_EQ(statistic("pmu.lockstep.compared"), 40U);
  EXPECT_EQ(statistic("pmu.lockstep.compared.lea"), 40U);
  EXPECT_EQ(statistic("pmu.lockstep.runs"), 1U);
  EXPECT_EQ(guest.backend.registers.rax, 47U);
  EXPECT_EQ(guest.backend.count("run"), 1U);
}

TEST_F(Lockstep, TheInstructionInTheMiddleOfARunIsFound) {
  add_many(40, lea_rax, [](unsigned n) { return increment(n == 16 ? 5 : 1); });
  expect_difference("at RIP 0x400040, lea rax, [rax+0x01] (488d4001): RAX is 0x18 by the engine and 0x1c by KVM");
}

TEST_F(Lockstep, AStoreInTheMiddleOfARunIsFound) {
  const auto store = [&](unsigned n) -> FakeCpu::Effect {
    return [this, n](FakeBackend& p) {
      std::uint64_t value = p.registers.rax + (n == 22 ? 1 : 0);
      if (n == 23) value = 0;  // hides the wrong store at the end of the run: the engine stores 7
      EXPECT_FALSE(guest.view.write_current(vpmu::GuestLinear{data}, std::as_bytes(std::span{&value, 1})));
      return std::nullopt;
    };
  };
  add_many(24, store_rax, store);
  expect_difference("by the engine and 0x8 by KVM");
}

TEST_F(Lockstep, AVectorRegisterInARunIsCompared) {
  add_many(3, X86("pxor %xmm0, %xmm0"), [](unsigned) -> FakeCpu::Effect {
    return [](FakeBackend& p) {
      p.vector_state.legacy[vpmu::exec::VectorState::xmm_at + 8] = std::byte{1};
      return std::nullopt;
    };
  });
  guest.backend.special.cr4 |= vpmu::bit(9);  // OSFXSR
  guest.backend.special.cr0 |= vpmu::bit(1);  // MP
  expect_difference("pxor xmm0, xmm0 (660fefc0): FXSAVE area + 168 is 0x0 by the engine and 0x1 by KVM");
}

// To stop KVM where the engine stopped, the loop's address alone is not enough: it is the n-th pass over it.
TEST_F(Lockstep, ALongLoopIsFollowedRoundByRound) {
  std::uint64_t at = code;
  for (unsigned n = 0; n < 900; ++n) at = cpu.add(at, X86("nop"));
  cpu.add(at, X86("jmp .-900"), [](FakeBackend& p) {
    p.registers.rip = code;
    return std::nullopt;
  });
  const auto end = run();
  ASSERT_TRUE(end) << end.error().what;
  EXPECT_GE(statistic("pmu.lockstep.compared"), 15'000U);
  EXPECT_EQ(statistic("pmu.lockstep.compared"), cpu.retired);
  EXPECT_EQ(statistic("pmu.lockstep.runs"), 1U);
}

// MUL leaves SF undefined, and PUSHF would store it.
TEST_F(Lockstep, ARunEndsBeforeUndefinedFlagsAreUsed) {
  constexpr std::uint64_t sf = vpmu::bit(7);
  std::uint64_t at = cpu.add(code, X86("mul %rbx"), [](FakeBackend& p) {
    p.registers.rax *= data;
    p.registers.rdx = 0;
    p.registers.rflags |= sf;
    return std::nullopt;
  });
  at = cpu.add(at, X86("nop"));
  at = cpu.add(at, X86("pushf"), [](FakeBackend&) -> std::optional<Exit> { return Shutdown{}; });
  ASSERT_TRUE(run());
  EXPECT_EQ(statistic("pmu.lockstep.compared"), 2U);
  EXPECT_EQ(guest.backend.registers.rip, at - 1);
}

TEST_F(Lockstep, AKickDuringARunComesBackWithItsEnd) {
  add_many(40, lea_rax, [](unsigned) { return increment(); });
  cpu.on_retired = [this](std::uint64_t) {
    if (cpu.retired == 20) cpu.kick();
  };
  const auto end = run();
  ASSERT_TRUE(end && end->exit);
  EXPECT_TRUE(std::holds_alternative<Interrupted>(*end->exit));
  EXPECT_EQ(statistic("pmu.lockstep.compared"), 40U);
}

// A single-step would leave TF in R11, and SYSRET would give it to the program.
TEST_F(Lockstep, SyscallAndSysretAreNotSingleStepped) {
  const auto goes_to = [](std::uint64_t to) {
    return [to](FakeBackend& p) {
      EXPECT_EQ(p.guest_debug.control & KVM_GUESTDBG_SINGLESTEP, 0U);
      p.registers.rip = to;
      return std::nullopt;
    };
  };
  guest.backend.special.efer |= 1;
  guest.backend.msrs[0xC000'0082] = data;
  guest.backend.registers.rcx = code + 2;
  guest.map(code, vpmu::page_size, {.is_user = true});
  cpu.add(code, X86("syscall"), goes_to(data));
  cpu.add(data, X86("sysretq"), goes_to(code + 2));
  cpu.add_jump(code + 2, code);
  for (unsigned n = 0; n < 2; ++n) ASSERT_TRUE(run());
  EXPECT_EQ(guest.backend.registers.rip, code + 2);
  EXPECT_EQ(statistic("pmu.step.run_over"), 2U);
}

// If a kick interrupted the delivery of an interrupt, the interrupt and its handler come first.
TEST_F(Lockstep, NothingIsComparedWhileAnInterruptIsDelivered) {
  add_many(40, lea_rax, [](unsigned) { return increment(); });
  ASSERT_TRUE(run());
  guest.backend.pending.interrupt.injected = 1;
  const std::uint64_t compared = statistic("pmu.lockstep.compared");
  ASSERT_TRUE(run());
  EXPECT_EQ(statistic("pmu.lockstep.compared"), compared);
  EXPECT_EQ(guest.backend.guest_debug.control & KVM_GUESTDBG_SINGLESTEP, 0U);
}

TEST_F(Lockstep, KvmThatNeverGetsThereIsADifference) {
  cpu.per_instruction = std::chrono::milliseconds{50};
  add_many(40, lea_rax, [](unsigned n) -> FakeCpu::Effect {
    if (n != 8) return increment();
    return [](FakeBackend& p) {
      p.registers.rip = data;
      return std::nullopt;
    };
  });
  cpu.add_jump(cpu.add(data, X86("nop")), data);
  expect_difference("at RIP 0x400020, lea rax, [rax+0x01] (488d4001): RIP where KVM comes to a stop");
}

TEST_F(Lockstep, KvmThatDoesNotBeginIsNotCompared) {
  bool is_stuck = true;
  cpu.on_entered = [&] {
    if (is_stuck) cpu.kick();
  };
  add_many(40, lea_rax, [](unsigned) { return increment(); });
  ASSERT_TRUE(run());
  EXPECT_EQ(statistic("pmu.lockstep.compared"), 0U);
  EXPECT_EQ(statistic("pmu.lockstep.not_begun"), 1U);
  is_stuck = false;
  ASSERT_TRUE(run());
  EXPECT_EQ(statistic("pmu.lockstep.compared"), 40U);
}

// Between two windows the guest runs without comparison.
TEST_F(Lockstep, WindowsEndAndComeAgain) {
  add(set_carry, [](FakeBackend& p) {
    p.registers.rflags |= carry;
    return std::nullopt;
  });
  for (unsigned n = 0; n < 20; ++n) ASSERT_TRUE(run());
  EXPECT_GE(statistic("pmu.lockstep.windows"), 3U);
  EXPECT_LT(statistic("pmu.lockstep.compared"), cpu.retired);
}

TEST(UndefinedFlags, AreTheManuals) {
  constexpr std::uint64_t of = vpmu::bit(11), af = vpmu::bit(4);
  const auto of_code = [](const std::vector<unsigned>& list) {
    std::vector<std::byte> bytes;
    for (const unsigned b : list) bytes.push_back(static_cast<std::byte>(b));
    return decode_instruction(bytes, CodeMode::bits64).value().flags.undefined;
  };
  EXPECT_EQ(of_code(X86("add %ebx, %eax")), 0U) << "add";
  EXPECT_EQ(of_code(X86("shl %eax")), af) << "shl eax, 1";
  EXPECT_EQ(of_code(X86("shl $5, %eax")), af | of) << "shl eax, 5";
  EXPECT_EQ(of_code(X86("shl $5, %al")), af | of | carry) << "shl al, 5";
  EXPECT_EQ(of_code(X86("and %ebx, %eax")), af) << "and";
}

}  // namespace
}  // namespace vmm::test::of_lockstep_source
