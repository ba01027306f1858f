#include <gtest/gtest.h>

#include <array>

#include "exec/engine.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"
#include "exec/tests/fixtures/page_tables.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::exec::test {
namespace {

/// Page tables with supervisor code at linear 0, user code at 1000H, and one page of data at 2000H for the supervisor
/// and at 3000H for all. The parameter: after how many runs a block is compiled.
class EngineResumes : public testing::TestWithParam<std::uint32_t> {
 protected:
  enum Page : std::uint64_t { pml4, pdpt, directory, table, kernel_code, user_code, data, count };

  EngineResumes() {
    link(pml4, 0, pdpt, user);
    link(pdpt, 0, directory, user);
    link(directory, 0, table, user);
    link(table, 0, kernel_code, 0);
    link(table, 1, user_code, user);
    link(table, 2, data, 0);
    link(table, 3, data, user);
    state_.paging = four_level_paging(at(pml4));
    state_.rflags = 2;
  }

  [[nodiscard]] std::uint64_t at(Page page) const { return ram_.address() + page * page_size; }
  void put(Page page, const std::vector<unsigned>& code) { put_code(ram_, page, 0, code); }
  void link(Page from, std::size_t entry, Page to, std::uint64_t rights) {
    link_page(ram_, from, entry, to, writable | rights);
  }
  void as(unsigned cpl, std::uint64_t rip) {
    state_.cpl = static_cast<std::uint8_t>(cpl);
    state_.rip = rip;
  }
  /// Runs from `rip` without telling the engine of any change outside.
  Stop resume(unsigned cpl, std::uint64_t rip) {
    as(cpl, rip);
    engine_.resume(state_);
    return engine_.run(100);
  }

  FlatRam ram_{count * page_size};
  CpuState state_;
  NoPlatform platform_;
  TestCode host_code_;
  Engine engine_{ram_, platform_, &host_code_, Compiling{.after = GetParam()}};
};
INSTANTIATE_TEST_SUITE_P(Interpreted, EngineResumes, testing::Values(0));
INSTANTIATE_TEST_SUITE_P(Compiled, EngineResumes, testing::Values(1));

/// Lets interrupts in, if none waits, and has the other base of GS.
class ConsentingPlatform : public NoPlatform {
 public:
  bool waits{};
  std::uint64_t other_base{};

 private:
  Answer enables_interrupts() override { return waits ? Answer::leave : Answer::done; }
  Answer swap_gs(std::uint64_t& base) override {
    std::swap(base, other_base);
    return Answer::done;
  }
};

// SDM 2B STI, POPF, SWAPGS.
TEST_P(EngineResumes, StiPopfAndSwapgsNeedTheOwnersConsent) {
  ConsentingPlatform platform;
  Engine engine{ram_, platform, &host_code_, Compiling{.after = GetParam()}};
  put(kernel_code, X86("cli; sti; pushf; pop %rbx; cli; push %rbx; popf; swapgs; mov %gs:0, %rax; ud2"));
  put(data, X86("xor %ebx, %ebx; ret"));
  state_.gpr[rsp] = 2 * page_size + 0x800;
  state_.gs_base = 77;
  const auto run = [&](bool waits, std::uint64_t rip, std::uint64_t flags) {
    platform.waits = waits;
    platform.other_base = 2 * page_size;
    as(0, rip);
    state_.rflags = flags;
    engine.resume(state_);
    return engine.run(100);
  };
  constexpr std::uint64_t interrupts = 0x202, sti_at = 1, pushf_at = 2, popf_at = 6, ud2_at = 19;
  for (unsigned n = 0; n < 4; ++n) {
    EXPECT_EQ(run(false, 0, interrupts), Stop::unsupported);
    const CpuState end = engine.state();
    EXPECT_EQ(end.rip, ud2_at);
    EXPECT_EQ(end.gpr[rbx] & interrupts, interrupts) << "pushed behind STI";
    EXPECT_EQ(end.rflags & interrupts, interrupts) << "popped";
    EXPECT_EQ(end.gs_base, 2 * page_size);
    EXPECT_EQ(platform.other_base, 77U);
    EXPECT_NE(end.gpr[rax], 0U);
    EXPECT_EQ(run(true, 0, interrupts), Stop::unsupported);
    EXPECT_EQ(engine.state().rip, sti_at);
    EXPECT_EQ(run(true, pushf_at, interrupts), Stop::unsupported);
    EXPECT_EQ(engine.state().rip, popf_at);
  }
  as(3, page_size + 7);
  put(user_code, X86("nop; nop; nop; nop; nop; nop; nop; swapgs"));
  engine.resume(state_);
  EXPECT_NE(engine.run(1), Stop::budget) << "in ring 0 only";
}

/// Is told where Linux goes from a task to another, and stops the engine there.
class SwitchingPlatform : public NoPlatform {
 public:
  Engine* engine{};
  std::vector<std::uint64_t> to, retired;

 private:
  void switches_stack(std::uint64_t stack) override {
    to.push_back(stack);
    retired.push_back(engine->passed().instructions);
    engine->stop_soon();
  }
};

// MOV RSP, [RSI + 32 bits] in ring 0, and no other.
TEST_P(EngineResumes, AndTellsWhereTheStackIsSwitched) {
  SwitchingPlatform platform;
  Engine engine{ram_, platform, &host_code_, Compiling{.after = GetParam()}};
  platform.engine = &engine;
  const std::vector<unsigned> code =
      X86("mov 8(%rsi), %rsp; mov 0x100(%rdi), %rsp; nop; mov 0x100(%rsi), %rsp; nop; ud2");
  put(kernel_code, code);
  put(user_code, code);
  constexpr std::uint64_t stack = 0xFFFF'C900'0000'1234;
  std::vector<unsigned> word;
  for (unsigned n = 0; n < 64; n += 8) word.push_back(static_cast<unsigned>(stack >> n) & 0xFFU);
  constexpr std::uint64_t at_data = 2 * page_size;  // and a page behind it, of programs
  put_code(ram_, data, 0x100, word);
  state_.gpr[rsi] = state_.gpr[rdi] = at_data;
  for (unsigned n = 1; n < 5; ++n) {
    as(0, 0);
    engine.load(state_);
    EXPECT_EQ(engine.run(100), Stop::budget);
    EXPECT_EQ(platform.to, std::vector(n, stack));
    EXPECT_EQ(platform.retired.back(), 4U) << "with itself";
    EXPECT_EQ(engine.passed().instructions, 4U) << "the engine stops behind it";
    EXPECT_EQ(engine.state().gpr[rsp], stack);
    EXPECT_EQ(engine.run(100), Stop::unsupported);
    EXPECT_EQ(engine.passed().instructions, 5U);
  }
  state_.gpr[rsi] = state_.gpr[rdi] = at_data + page_size;
  as(3, page_size);
  engine.load(state_);
  EXPECT_EQ(engine.run(100), Stop::unsupported);
  EXPECT_EQ(engine.passed().instructions, 5U);
  EXPECT_EQ(platform.to.size(), 4U) << "not of a program";
}

/// Is told of XCHG RBX, RBX.
class AskedPlatform : public NoPlatform {
 public:
  Engine* engine{};
  std::vector<std::uint64_t> behind;

 private:
  void exchanges_rbx(std::uint64_t rip) override {
    behind.push_back(rip);
    engine->stop_soon();
  }
};

// In ring 3: Valgrind's client requests end with it.
TEST_P(EngineResumes, AndTellsOfWhatEndsAClientRequest) {
  AskedPlatform platform;
  Engine engine{ram_, platform, &host_code_, Compiling{.after = GetParam()}};
  platform.engine = &engine;
  const std::vector<unsigned> code =
      X86("xchg %rbx, %rcx; xchg %rcx, %rbx; xchg %ebx, %ebx; nop; xchg %rbx, %rbx; nop; ud2");
  put(kernel_code, code);
  put(user_code, code);
  state_.gpr[rbx] = 0x1234'5678'9ABCU & 0xFFFF'FFFFU;
  for (unsigned n = 1; n < 5; ++n) {
    as(3, page_size);
    engine.load(state_);
    EXPECT_EQ(engine.run(100), Stop::budget);
    EXPECT_EQ(platform.behind, std::vector<std::uint64_t>(n, page_size + 12));
    EXPECT_EQ(engine.passed().instructions, 5U) << "the engine stops behind it";
    EXPECT_EQ(engine.state().gpr[rbx], state_.gpr[rbx]);
    EXPECT_EQ(engine.run(100), Stop::unsupported);
    EXPECT_EQ(engine.passed().instructions, 6U);
  }
  as(0, 0);
  engine.load(state_);
  EXPECT_EQ(engine.run(100), Stop::unsupported);
  EXPECT_EQ(engine.passed().instructions, 6U);
  EXPECT_EQ(platform.behind.size(), 4U) << "not of a kernel";
}

TEST_P(EngineResumes, AndGoesOnCounting) {
  put(kernel_code, X86("nop; nop; ud2"));
  as(0, 0);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(resume(0, 1), Stop::unsupported);
  EXPECT_EQ(engine_.passed().instructions, 3U);
}

// The owner tells the engine which page was written to from outside; it keeps the code of all others.
TEST_P(EngineResumes, WithTheCodeThatItWasToldOf) {
  put(kernel_code, X86("mov $1, %eax; ud2"));
  as(0, 0);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  put(kernel_code, X86("mov $2, %eax; ud2"));
  const std::uint64_t decoded = engine_.decoded_blocks();
  engine_.written(GuestPhysical{at(data)});
  engine_.written(GuestPhysical{at(kernel_code)});
  EXPECT_EQ(resume(0, 0), Stop::unsupported);
  EXPECT_EQ(engine_.state().gpr[rax], 2U);
  EXPECT_EQ(engine_.decoded_blocks(), decoded + 1);
}

// SDM 2A CLI: it is privileged even if IF is clear already.
TEST_P(EngineResumes, AndLeavesCliOfAProgramToOthers) {
  put(user_code, X86("cli; ud2"));
  as(3, 0x1000);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(engine_.passed().instructions, 0U);
}

// SDM 3A 4.6.1: a program must not execute and read pages just because the kernel has done so before.
TEST_P(EngineResumes, WithTheRightsOfItsNewPrivilegeLevel) {
  put(kernel_code, X86("movabs 0x2000, %eax; ud2"));
  put(user_code, X86("movabs 0x2000, %eax; ud2"));
  as(0, 0);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(resume(0, 0x1000), Stop::unsupported);
  ASSERT_EQ(engine_.passed().instructions, 2U);
  EXPECT_EQ(resume(3, 0), Stop::fault) << "the kernel's code";
  EXPECT_EQ(resume(3, 0x1000), Stop::fault) << "the kernel's data";
  EXPECT_EQ(engine_.passed().instructions, 2U);
  EXPECT_EQ(resume(0, 0), Stop::unsupported);
  EXPECT_EQ(engine_.passed().instructions, 3U);
}

// Under SMAP the kernel reads user pages only with RFLAGS.AC, even if it has read them before.
TEST_P(EngineResumes, WithOrWithoutAc) {
  state_.paging.cr4 |= bit(21);
  put(kernel_code, X86("stac; movabs 0x3000, %eax; clac; ud2"));
  as(0, 0);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  ASSERT_EQ(engine_.passed().instructions, 3U);
  EXPECT_EQ(resume(0, 3), Stop::fault) << "clac was the last";
  state_.rflags |= x86::rflags::AC::mask;
  EXPECT_EQ(resume(0, 3), Stop::unsupported);
}

// The same for jump targets: a program must not jump to the kernel's blocks, although they are decoded.
TEST_P(EngineResumes, AndAProgramDoesNotJumpIntoTheKernel) {
  put(kernel_code, X86("nop; ud2"));
  put(user_code, X86("xor %eax, %eax; jmp *%rax"));
  as(0, 0x1000);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  ASSERT_EQ(engine_.passed().instructions, 3U) << "the kernel may";
  EXPECT_EQ(resume(3, 0x1000), Stop::fault);
  EXPECT_EQ(engine_.passed().instructions, 5U);
  EXPECT_EQ(engine_.state().rip, 0U);
}

// The same in a loop, which may have been compiled for the kernel.
TEST_P(EngineResumes, WithTheRightsOfItsNewPrivilegeLevelInALoop) {
  put(user_code, X86("1: mov 0x2000, %eax; jmp 1b"));
  as(0, 0x1000);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(20), Stop::budget);
  EXPECT_EQ(resume(3, 0x1000), Stop::fault);
  EXPECT_EQ(engine_.passed().instructions, 20U);
  EXPECT_EQ(resume(0, 0x1000), Stop::budget);
}

TEST_P(EngineResumes, WithOrWithoutAcInALoop) {
  state_.paging.cr4 |= bit(21);
  put(kernel_code, X86("1: mov 0x3000, %eax; jmp 1b"));
  state_.rflags |= x86::rflags::AC::mask;
  as(0, 0);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(20), Stop::budget);
  state_.rflags &= ~x86::rflags::AC::mask;
  EXPECT_EQ(resume(0, 0), Stop::fault);
  EXPECT_EQ(engine_.passed().instructions, 20U);
}

// A loop of two linked blocks, one of them in the kernel's page.
TEST_P(EngineResumes, WithoutAWayThatOnlyTheKernelMayGo) {
  put(user_code, X86("jmp .-0x1000"));        // to 0
  put(kernel_code, X86("nop; jmp .+0xFFF"));  // to 0x1000
  as(0, 0x1000);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(30), Stop::budget);
  EXPECT_EQ(resume(3, 0x1000), Stop::fault);
  EXPECT_EQ(engine_.passed().instructions, 31U);
  EXPECT_EQ(engine_.state().rip, 0U);
}

// A loop of two linked blocks, of which the second has changed.
TEST_P(EngineResumes, WithWhatStandsWhereALoopLeads) {
  const auto run = [&](unsigned value, bool told) {
    put(kernel_code,
        {0xEB, 0x06, 0, 0, 0, 0, 0, 0, 0xB8, value, 0, 0, 0, 0xEB, 0xF1});  // jmp 8; at 8: mov $value, %eax; jmp 0
    as(0, 0);
    if (told) engine_.written(GuestPhysical{at(kernel_code)});
    told ? engine_.resume(state_) : engine_.load(state_);
    EXPECT_EQ(engine_.run(30), Stop::budget);
    EXPECT_EQ(engine_.state().gpr[rax], value);
  };
  run(1, false);
  run(2, false);
  run(3, true);
}

// A loop of two blocks in two pages, the second of which is now mapped to another frame.
TEST_P(EngineResumes, WithThePageWhereALoopLeadsAfterAnInvlpg) {
  put(kernel_code, X86("jmp .+0x2000"));              // to 0x2000
  put(data, X86("mov $1, %eax; jmp .-0x2005"));       // to 0
  put(user_code, X86("mov $2, %eax; jmp .-0x2005"));  // to 0
  as(0, 0);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(30), Stop::budget);
  EXPECT_EQ(engine_.state().gpr[rax], 1U);
  link(table, 2, user_code, 0);
  engine_.resume(engine_.state(), TlbFlush{});
  EXPECT_EQ(resume(0, 0), Stop::budget);
  EXPECT_EQ(engine_.state().gpr[rax], 2U);
  EXPECT_EQ(engine_.passed().instructions, 130U);
}

// A change of CR3 invalidates translations.
TEST_P(EngineResumes, WithNewTranslationsWhereCr3Changed) {
  put(kernel_code, X86("mov 0x2000, %eax; ud2"));
  put(user_code, {0x42});
  put(data, {0x41});
  as(0, 0);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  link(table, 2, user_code, 0);
  EXPECT_EQ(resume(0, 0), Stop::unsupported);
  EXPECT_EQ(engine_.state().gpr[rax], 0x41U) << "nobody has said that it changed";
  state_.paging.cr3 |= bit(3);
  EXPECT_EQ(resume(0, 0), Stop::unsupported);
  EXPECT_EQ(engine_.state().gpr[rax], 0x42U);
}

// Two pages that share an entry of the software TLB: after one walk for reading and one for writing, neither needs
// more.
TEST_P(EngineResumes, WithPagesThatItsTlbHasNoRoomFor) {
  link(table, 2 + tlb_entries, user_code, 0);
  put(kernel_code, X86("1: mov 0x2000, %eax; "
                       "mov 0x102000, %ecx; "
                       "mov %eax, 0x2008; "
                       "mov %ecx, 0x102008; "
                       "jmp 1b"));
  put(data, {0x41});
  put(user_code, {0x42});
  as(0, 0);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(100), Stop::budget);
  const unsigned before = ram_.words_read;
  EXPECT_EQ(engine_.run(1000), Stop::budget);
  EXPECT_EQ(ram_.words_read, before);
  EXPECT_EQ(std::to_integer<unsigned>(ram_.bytes()[data * page_size + 8]), 0x41U);
  EXPECT_EQ(std::to_integer<unsigned>(ram_.bytes()[user_code * page_size + 8]), 0x42U);
  link(table, 2, user_code, 0);
  engine_.resume(engine_.state(), TlbFlush{});
  EXPECT_EQ(resume(0, 0), Stop::budget);
  EXPECT_GT(ram_.words_read, before);
  EXPECT_EQ(engine_.state().gpr[rax], 0x42U);
}

// A translation that was found for reading must not be used for writing.
TEST_P(EngineResumes, WithPagesThatMayOnlyBeRead) {
  state_.paging.cr0 |= bit(16);
  const std::uint64_t read_only = at(data) | present;
  std::memcpy(&ram_.bytes()[table * page_size + 2 * sizeof read_only], &read_only, sizeof read_only);
  put(kernel_code, X86("mov 0x2000, %eax; mov %eax, 0x2000"));
  as(0, 0);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(100), Stop::fault);
  EXPECT_EQ(engine_.passed().instructions, 1U);
}

// If code is decoded from a page that was open for writing, later writes to it must be noticed again.
TEST_P(EngineResumes, WithWhatItWroteIntoCode) {
  link(table, 3 + tlb_entries, user_code, 0);
  put(kernel_code, X86("movl $1, 0x3000; "
                       "mov 0x103000, %ecx; "  // of the same place
                       "call .+0x2FFE; "       // to 0x3010
                       "mov 0x103000, %ecx; "
                       "movb $0xCB, 0x3011; "  // dec %ebx
                       "call .+0x2FEA; "       // to 0x3010
                       "ud2"));
  const Assembled code = X86("inc %ebx; ret");
  for (std::size_t i = 0; i < code.size(); ++i)
    ram_.bytes()[data * page_size + 0x10 + i] = static_cast<std::byte>(code[i]);
  state_.gpr[rsp] = 0x3800;
  state_.gpr[rbx] = 5;
  as(0, 0);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(engine_.passed().instructions, 10U);
  EXPECT_EQ(engine_.state().gpr[rbx], 5U);
}

}  // namespace
}  // namespace vpmu::exec::test
