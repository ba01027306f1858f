#include <gtest/gtest.h>

#include <array>

#include "exec/engine.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"
#include "exec/tests/fixtures/page_tables.hpp"
#include "vpmu/bits.hpp"

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
  void put(Page page, std::initializer_list<unsigned> code) { put_code(ram_, page, 0, code); }
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

TEST_P(EngineResumes, AndGoesOnCounting) {
  put(kernel_code, {0x90, 0x90, 0x0F, 0x0B});  // nop; nop; ud2
  as(0, 0);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(resume(0, 1), Stop::unsupported);
  EXPECT_EQ(engine_.passed().instructions, 3U);
}

// The owner tells the engine which page was written to from outside; it keeps the code of all others.
TEST_P(EngineResumes, WithTheCodeThatItWasToldOf) {
  put(kernel_code, {0xB8, 1, 0, 0, 0, 0x0F, 0x0B});  // mov $1, %eax; ud2
  as(0, 0);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  put(kernel_code, {0xB8, 2, 0, 0, 0, 0x0F, 0x0B});
  const std::uint64_t decoded = engine_.decoded_blocks();
  engine_.written(GuestPhysical{at(data)});
  engine_.written(GuestPhysical{at(kernel_code)});
  EXPECT_EQ(resume(0, 0), Stop::unsupported);
  EXPECT_EQ(engine_.state().gpr[rax], 2U);
  EXPECT_EQ(engine_.decoded_blocks(), decoded + 1);
}

// SDM 2A CLI: it is privileged even if IF is clear already.
TEST_P(EngineResumes, AndLeavesCliOfAProgramToOthers) {
  put(user_code, {0xFA, 0x0F, 0x0B});
  as(3, 0x1000);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  EXPECT_EQ(engine_.passed().instructions, 0U);
}

// SDM 3A 4.6.1: a program must not execute and read pages just because the kernel has done so before.
TEST_P(EngineResumes, WithTheRightsOfItsNewPrivilegeLevel) {
  put(kernel_code, {0xA1, 0, 0x20, 0, 0, 0, 0, 0, 0, 0x0F, 0x0B});  // mov 0x2000, %eax; ud2
  put(user_code, {0xA1, 0, 0x20, 0, 0, 0, 0, 0, 0, 0x0F, 0x0B});
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
  put(kernel_code, {0x0F, 0x01, 0xCB, 0xA1, 0, 0x30, 0, 0, 0, 0, 0, 0, 0x0F, 0x01, 0xCA, 0x0F,
                    0x0B});  // stac; mov 0x3000, %eax; clac; ud2
  as(0, 0);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(100), Stop::unsupported);
  ASSERT_EQ(engine_.passed().instructions, 3U);
  EXPECT_EQ(resume(0, 3), Stop::fault) << "clac was the last";
  state_.rflags |= rflags::AC;
  EXPECT_EQ(resume(0, 3), Stop::unsupported);
}

// The same for jump targets: a program must not jump to the kernel's blocks, although they are decoded.
TEST_P(EngineResumes, AndAProgramDoesNotJumpIntoTheKernel) {
  put(kernel_code, {0x90, 0x0F, 0x0B});      // nop; ud2
  put(user_code, {0x31, 0xC0, 0xFF, 0xE0});  // xor %eax, %eax; jmp *%rax
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
  put(user_code, {0x8B, 0x04, 0x25, 0, 0x20, 0, 0, 0xEB, 0xF7});  // mov 0x2000, %eax; jmp to it
  as(0, 0x1000);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(20), Stop::budget);
  EXPECT_EQ(resume(3, 0x1000), Stop::fault);
  EXPECT_EQ(engine_.passed().instructions, 20U);
  EXPECT_EQ(resume(0, 0x1000), Stop::budget);
}

TEST_P(EngineResumes, WithOrWithoutAcInALoop) {
  state_.paging.cr4 |= bit(21);
  put(kernel_code, {0x8B, 0x04, 0x25, 0, 0x30, 0, 0, 0xEB, 0xF7});  // mov 0x3000, %eax; jmp to it
  state_.rflags |= rflags::AC;
  as(0, 0);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(20), Stop::budget);
  state_.rflags &= ~rflags::AC;
  EXPECT_EQ(resume(0, 0), Stop::fault);
  EXPECT_EQ(engine_.passed().instructions, 20U);
}

// A loop of two linked blocks, one of them in the kernel's page.
TEST_P(EngineResumes, WithoutAWayThatOnlyTheKernelMayGo) {
  put(user_code, {0xE9, 0xFB, 0xEF, 0xFF, 0xFF});    // jmp 0
  put(kernel_code, {0x90, 0xE9, 0xFA, 0x0F, 0, 0});  // nop; jmp 0x1000
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
  put(kernel_code, {0xE9, 0xFB, 0x1F, 0, 0});                        // jmp 0x2000
  put(data, {0xB8, 1, 0, 0, 0, 0xE9, 0xF6, 0xDF, 0xFF, 0xFF});       // mov $1, %eax; jmp 0
  put(user_code, {0xB8, 2, 0, 0, 0, 0xE9, 0xF6, 0xDF, 0xFF, 0xFF});  // mov $2, %eax; jmp 0
  as(0, 0);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(30), Stop::budget);
  EXPECT_EQ(engine_.state().gpr[rax], 1U);
  link(table, 2, user_code, 0);
  engine_.forget_translations();
  EXPECT_EQ(resume(0, 0), Stop::budget);
  EXPECT_EQ(engine_.state().gpr[rax], 2U);
  EXPECT_EQ(engine_.passed().instructions, 130U);
}

// A change of CR3 invalidates translations.
TEST_P(EngineResumes, WithNewTranslationsWhereCr3Changed) {
  put(kernel_code, {0x8B, 0x04, 0x25, 0, 0x20, 0, 0, 0x0F, 0x0B});  // mov 0x2000, %eax; ud2
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
  put(kernel_code, {0x8B, 0x04, 0x25, 0,    0x20, 0,    0,  // mov 0x2000, %eax
                    0x8B, 0x0C, 0x25, 0,    0x20, 0x10, 0,  // mov 0x102000, %ecx
                    0x89, 0x04, 0x25, 0x08, 0x20, 0,    0,  // mov %eax, 0x2008
                    0x89, 0x0C, 0x25, 0x08, 0x20, 0x10, 0,  // mov %ecx, 0x102008
                    0xEB, 0xE2});                           // jmp to it
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
  engine_.forget_translations();
  EXPECT_EQ(resume(0, 0), Stop::budget);
  EXPECT_GT(ram_.words_read, before);
  EXPECT_EQ(engine_.state().gpr[rax], 0x42U);
}

// A translation that was found for reading must not be used for writing.
TEST_P(EngineResumes, WithPagesThatMayOnlyBeRead) {
  state_.paging.cr0 |= bit(16);
  const std::uint64_t read_only = at(data) | present;
  std::memcpy(&ram_.bytes()[table * page_size + 2 * sizeof read_only], &read_only, sizeof read_only);
  put(kernel_code, {0x8B, 0x04, 0x25, 0, 0x20, 0, 0,    // mov 0x2000, %eax
                    0x89, 0x04, 0x25, 0, 0x20, 0, 0});  // mov %eax, 0x2000
  as(0, 0);
  engine_.load(state_);
  EXPECT_EQ(engine_.run(100), Stop::fault);
  EXPECT_EQ(engine_.passed().instructions, 1U);
}

// If code is decoded from a page that was open for writing, later writes to it must be noticed again.
TEST_P(EngineResumes, WithWhatItWroteIntoCode) {
  link(table, 3 + tlb_entries, user_code, 0);
  put(kernel_code, {0xC7, 0x04, 0x25, 0,    0x30, 0,    0, 1,    0, 0, 0,  // movl $1, 0x3000
                    0x8B, 0x0C, 0x25, 0,    0x30, 0x10, 0,                 // mov 0x103000, %ecx: of the same place
                    0xE8, 0xF9, 0x2F, 0,    0,                             // call 0x3010
                    0x8B, 0x0C, 0x25, 0,    0x30, 0x10, 0,                 // mov 0x103000, %ecx
                    0xC6, 0x04, 0x25, 0x11, 0x30, 0,    0, 0xCB,           // movb $0xCB, 0x3011: dec %ebx
                    0xE8, 0xE5, 0x2F, 0,    0,                             // call 0x3010
                    0x0F, 0x0B});                                          // ud2
  constexpr std::array code{0xFFU, 0xC3U, 0xC3U};                          // inc %ebx; ret
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
