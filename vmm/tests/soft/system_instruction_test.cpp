// System instructions of a kernel and its programs, on a vCPU without KVM.
#include "soft/system_fixture.hpp"

namespace vmm::test {
namespace {

// SDM 2B SYSCALL, SYSRET.
TEST_F(SystemInstructions, AProgramCallsTheKernelAndComesBack) {
  in_ring_3({0x0F, 0x05, 0xCC});  // syscall; int3
  guest_.store_code(code_at,
                    {0x48, 0x89, 0xE3, 0x9C, 0x5A, 0x48, 0x0F, 0x07});  // mov %rsp, %rbx; pushf; pop %rdx; sysretq
  guest_.port.special.efer |= efer_sce;
  guest_.port.registers.rflags = 2 | rflags_if | rflags_df;
  SoftPort& port = begin();
  ASSERT_TRUE(port.set_msr(0xC000'0081, 0x0020'0010ULL << 32));
  ASSERT_TRUE(port.set_msr(0xC000'0082, code_at));
  ASSERT_TRUE(port.set_msr(0xC000'0084, rflags_if | rflags_df));
  guest_.port.registers.rsp = 0;
  finish(port);
  expect_stopped_in_handler(port, 3);
  EXPECT_EQ(port.regs()->rcx, user_at + 2) << "where it came from";
  EXPECT_EQ(port.regs()->r11, 2 | rflags_if | rflags_df) << "its flags";
  EXPECT_EQ(port.regs()->rdx & (rflags_if | rflags_df), 0U) << "masked in the kernel";
  EXPECT_EQ(port.regs()->rbx, user_at + 0x800) << "the stack is the program's";
  EXPECT_EQ(pushed(0), 0x2BU) << "SS of the program when INT3 left it";
  EXPECT_EQ(pushed(3), 0x33U) << "and CS";
  EXPECT_EQ(pushed(2), 2 | rflags_if | rflags_df);
  EXPECT_EQ(pushed(4), user_at + 3);
}

TEST_F(SystemInstructions, SyscallIsUdUntilItIsSwitchedOn) {
  in_ring_3({0x0F, 0x05});
  SoftPort& port = begin();
  finish(port);
  expect_stopped_in_handler(port, vector_ud);
  EXPECT_EQ(pushed(4), user_at);
}

TEST_F(SystemInstructions, SysretToWhereNothingCanBeIsGpInTheKernel) {
  guest_.port.special.efer |= efer_sce;
  guest_.port.registers.rcx = 0x8000'0000'0000;
  SoftPort& port = run({0x48, 0x0F, 0x07});
  expect_stopped_in_handler(port, vector_gp);
  EXPECT_EQ(pushed(3), 0x10U) << "CS is still the kernel's";
}

TEST_F(SystemInstructions, SwapgsExchangesTheBases) {
  guest_.port.special.gs.base = 0x1234;
  guest_.store_code(code_at, {0x0F, 0x01, 0xF8, 0xF4});
  SoftPort& port = begin();
  ASSERT_TRUE(port.set_msr(0xC000'0102, 0xFFFF'8000'0000'0000));
  finish(port);
  EXPECT_EQ(port.sregs()->gs.base, 0xFFFF'8000'0000'0000U);
  EXPECT_EQ(*port.msr(0xC000'0102), 0x1234U);
}

TEST_F(SystemInstructions, WhatIsTheKernelsIsGpInAProgram) {
  const std::vector<std::vector<std::uint8_t>> all{{0x0F, 0x01, 0xF8},
                                                   {0x0F, 0x06},
                                                   {0x48, 0x0F, 0x07},
                                                   {0x0F, 0x00, 0xD0},
                                                   {0x0F, 0x01, 0xF0},
                                                   {0x0F, 0x22, 0xD8},
                                                   {0x0F, 0x01, 0x38},
                                                   {0xF4},
                                                   {0xFA},
                                                   {0xE4, 0x60}};
  for (const auto& code : all) {
    in_ring_3(code);
    SoftPort& port = begin();
    finish(port);
    expect_stopped_in_handler(port, vector_gp);
    EXPECT_EQ(pushed(3), 0x33U) << std::hex << int{code[0]} << (code.size() > 1 ? code[1] : 0);
  }
}

TEST_F(SystemInstructions, TheTaskSwitchedFlag) {
  guest_.port.special.cr0 |= cr0_ts;
  EXPECT_EQ(run({0x0F, 0x06, 0xF4}).sregs()->cr0 & cr0_ts, 0U);  // clts
  guest_.port.registers.rax = 0xA;
  SoftPort& port = run({0x0F, 0x01, 0xF0, 0x0F, 0x01, 0xE3, 0xF4});  // lmsw %ax; smsw %ebx
  EXPECT_EQ(port.sregs()->cr0 & 0xF, 0xBU) << "PE is not cleared";
  EXPECT_EQ(port.regs()->rbx, port.sregs()->cr0 & 0xFFFF'FFFF);
}

// SDM 2A LSL, LAR; 2B VERW.
TEST_F(SystemInstructions, SegmentsAreExamined) {
  guest_.port.registers.rax = 0x3B;
  SoftPort& port = run({0x0F, 0x03, 0xD8, 0x0F, 0x02, 0xC8, 0xF4});  // lsl %eax, %ebx; lar %eax, %ecx
  EXPECT_EQ(port.regs()->rbx, 0x123U);
  EXPECT_EQ(port.regs()->rcx, 0x0040'F300U);
  EXPECT_NE(port.regs()->rflags & rflags_zf, 0U);
  EXPECT_EQ(run({0x0F, 0x00, 0xE8, 0xF4}).regs()->rflags & rflags_zf, rflags_zf) << "VERW of data";
  guest_.port.registers.rax = 0x10;
  EXPECT_EQ(run({0x0F, 0x00, 0xE8, 0xF4}).regs()->rflags & rflags_zf, 0U) << "VERW of code";
  EXPECT_EQ(run({0x0F, 0x00, 0xE0, 0xF4}).regs()->rflags & rflags_zf, rflags_zf) << "VERR of readable code";
  guest_.port.registers.rax = 0x1000;
  guest_.port.registers.rbx = 7;
  EXPECT_EQ(run({0x0F, 0x03, 0xD8, 0xF4}).regs()->rbx, 7U) << "beyond the table: nothing is loaded";
}

TEST_F(SystemInstructions, TheLocalDescriptorTable) {
  SoftPort& none = run({0x31, 0xC0, 0x0F, 0x00, 0xD0, 0x0F, 0x00, 0xC3, 0xF4});  // xor %eax, %eax; lldt %ax; sldt %ebx
  EXPECT_EQ(none.sregs()->ldt.unusable, 1);
  EXPECT_EQ(none.regs()->rbx, 0U);
  guest_.port.registers.rax = 0x18;
  SoftPort& port = run({0x0F, 0x00, 0xD0});
  expect_stopped_in_handler(port, vector_gp);
  EXPECT_EQ(pushed(5), 0x18U) << "a data segment is none";
}

TEST_F(SystemInstructions, AStackThatIsNowhereIsSs) {
  guest_.port.registers.rbp = 0x8000'0000'0000;
  SoftPort& stack = run({0x48, 0x8B, 0x45, 0x00});  // mov (%rbp), %rax
  expect_stopped_in_handler(stack, vector_ss);
  guest_.port.registers.rbx = 0x8000'0000'0000;
  SoftPort& data = run({0x48, 0x8B, 0x03});  // mov (%rbx), %rax
  expect_stopped_in_handler(data, vector_gp);
}

TEST_F(SystemInstructions, WhatCpuidHidesIsUd) {
  for (const std::vector<std::uint8_t>& code :
       {std::vector<std::uint8_t>{0x0F, 0xC7, 0xF0}, {0x0F, 0x01, 0xC8}, {0xF3, 0x48, 0x0F, 0xAE, 0xC0}}) {
    SoftPort& port = run(code);  // rdrand %eax; monitor; rdfsbase %rax
    expect_stopped_in_handler(port, vector_ud);
  }
}

// The kernel maps another page at an address that it has used, and invalidates the translation by INVLPG or MOV CR3.
// SDM 3A 4.10.4.1.
TEST_F(SystemInstructions, TranslationsEndWhenTheKernelSaysSo) {
  const std::uint64_t other = data_at + vpmu::page_size;
  guest_.map(other, vpmu::page_size);
  // mov (data), %rbx; mov %rcx, (entry); INVALIDATE; mov (data), %rdx; hlt, with the page table mapped at `table`.
  const std::uint64_t table = 0xA0'0000, entry = table + (data_at >> 12 & 0x1FF) * 8;
  const std::uint64_t pml4 = guest_.port.special.cr3;
  const auto next = [&](std::uint64_t at, unsigned shift) {
    return guest_.ram.read_word(vpmu::GuestPhysical{at + (data_at >> shift & 0x1FF) * 8}, 8).value() & ~0xFFFULL;
  };
  guest_.map_to(table, next(next(next(pml4, 39), 30), 21));
  guest_.store_word(data_at, 1);
  guest_.store_word(other, 2);
  const std::uint64_t first = guest_.entry(data_at);
  for (const std::vector<std::uint8_t>& invalidate :
       {std::vector<std::uint8_t>{0x0F, 0x01, 0x3E},
        {0x0F, 0x20, 0xD8, 0x0F, 0x22, 0xD8}}) {  // invlpg (%rsi); mov %cr3, %rax, and back
    std::vector<std::uint8_t> code{0x48, 0x8B, 0x1E, 0x48, 0x89, 0x0F};
    code.insert(code.end(), invalidate.begin(), invalidate.end());
    code.insert(code.end(), {0x48, 0x8B, 0x16, 0xF4});
    guest_.store_word(entry, first);
    guest_.port.registers.rsi = data_at;
    guest_.port.registers.rdi = entry;
    guest_.port.registers.rcx = guest_.entry(other);
    SoftPort& port = run(code);
    EXPECT_EQ(port.regs()->rbx, 1U);
    EXPECT_EQ(port.regs()->rdx, 2U);
  }
}

// An instruction that we do not implement cannot end the machine. Each use is counted; each is logged once.
TEST_F(SystemInstructions, WhatNobodyKnowsIsUd) {
  const std::vector<std::uint8_t> lss{0x0F, 0xB2, 0x03}, push_16{0x66, 0x50};
  guest_.port.registers.rbx = user_at;
  for (const auto& code : {lss, push_16}) {
    in_ring_3(code);
    SoftPort& port = begin();
    finish(port);
    expect_stopped_in_handler(port, 6);
    EXPECT_EQ(pushed(4), user_at);
  }
  ASSERT_EQ(lines_.size(), 2U);
  EXPECT_NE(lines_[0].find("lss"), std::string::npos) << lines_[0];
  lines_.clear();
  guest_.store_code(user_at, {0x66, 0x50, 0x66, 0x50});
  guest_.store_code(handler_of(6), {0x48, 0x83, 0x04, 0x24, 0x02, 0xFF, 0xC1, 0x83, 0xF9, 0x02, 0x74, 0x02, 0x48, 0xCF,
                                    0xF4});  // addq $2, (%rsp); inc %ecx; at 2: hlt; iretq
  SoftPort& port = begin();
  finish(port);
  EXPECT_EQ(statistic(port, "soft.unknown.push"), 2U);
  EXPECT_EQ(statistic(port, "soft.unknown.lss"), 0U);
  EXPECT_EQ(lines_.size(), 1U) << "the second time is counted alone";
}

// SDM 2A CLFLUSHOPT: #UD unless CPUID reports it; CLFLUSH always exists.
TEST_F(SystemInstructions, ClflushoptIsThereWhereCpuidTellsOfIt) {
  // xor %ebx, %ebx; clflush (%rsp); inc %ebx; clflushopt (%rsp); inc %ebx; hlt
  const std::vector<std::uint8_t> code{0x31, 0xDB, 0x0F, 0xAE, 0x3C, 0x24, 0xFF, 0xC3,
                                       0x66, 0x0F, 0xAE, 0x3C, 0x24, 0xFF, 0xC3, 0xF4};
  guest_.port.registers.rsp = stack_top - 64;
  SoftPort& without = run(code);
  expect_stopped_in_handler(without, 6);
  EXPECT_EQ(without.regs()->rbx, 1U);
  cpuid_.add_subleaf(7, 0, {.ebx = static_cast<std::uint32_t>(vpmu::bit(23))});
  EXPECT_EQ(run(code).regs()->rbx, 2U);
  EXPECT_TRUE(lines_.empty());
}

// SDM 2A CLFLUSH: subject to the checks of a byte load.
TEST_F(SystemInstructions, ClflushFaultsAsALoadOfAByte) {
  const std::vector<std::uint8_t> clflush{0x0F, 0xAE, 0x3B, 0xF4};  // clflush (%rbx); hlt
  guest_.port.registers.rbx = data_at + vpmu::page_size - 1;
  EXPECT_EQ(run(clflush).regs()->rip, code_at + clflush.size()) << "what is mapped to its last byte";
  guest_.port.registers.rbx = data_at + vpmu::page_size;
  SoftPort& unmapped = run(clflush);
  expect_stopped_in_handler(unmapped, 14);
  EXPECT_EQ(unmapped.sregs()->cr2, data_at + vpmu::page_size);
  guest_.port.registers.rbx = vpmu::bit(63);
  expect_stopped_in_handler(run(clflush), 13);
}

// SDM 3A 6.15, interrupt 13; with INSB and INVD, which we do not implement.
TEST_F(SystemInstructions, WhatOnlyRing0MayRunIsGpInRing3) {
  for (const auto& code : {std::vector<std::uint8_t>{0x6C}, std::vector<std::uint8_t>{0x0F, 0x08}}) {
    in_ring_3(code);
    SoftPort& port = begin();
    finish(port);
    expect_stopped_in_handler(port, 13);
  }
  EXPECT_TRUE(lines_.empty());
}

// SDM 2A tables 2-18 and 2-21: a misaligned operand, and reserved bits of MXCSR.
TEST_F(SystemInstructions, AnOperandThatIsNotAsItMustBeIsGp) {
  guest_.port.special.cr4 |= vpmu::bit(9);
  const std::vector<std::uint8_t> movaps{0x0F, 0x29, 0x44, 0x24, 0x08};  // movaps %xmm0, 8(%rsp)
  const std::vector<std::uint8_t> ldmxcsr{0xC7, 0x04, 0x24, 0xFF, 0xFF, 0xFF,
                                          0xFF, 0x0F, 0xAE, 0x14, 0x24};  // movl $-1, (%rsp); ldmxcsr (%rsp)
  for (const auto& code : {movaps, ldmxcsr}) {
    in_ring_3(code);
    SoftPort& port = begin();
    finish(port);
    expect_stopped_in_handler(port, 13);
  }
  EXPECT_TRUE(lines_.empty());
}

// SDM 2B PUSHF, POPF: with 16-bit operands the upper bits of RFLAGS stay.
TEST_F(SystemInstructions, FlagsOf16Bits) {
  // mov %rsp, %rbx; push $0x8D5; popfw; lea 6(%rsp), %rsp; pushfw; movzwl (%rsp), %edx; hlt
  SoftPort& port = run({0x48, 0x89, 0xE3, 0x68, 0xD5, 0x08, 0,    0,    0x66, 0x9D, 0x48,
                        0x8D, 0x64, 0x24, 0x06, 0x66, 0x9C, 0x0F, 0xB7, 0x14, 0x24, 0xF4});
  EXPECT_EQ(port.regs()->rdx, 0x8D7U);
  EXPECT_EQ(port.regs()->rsp, port.regs()->rbx - 2);
  in_ring_3({0x66, 0x9C, 0x66, 0x9D, 0x66, 0x9C, 0x0F, 0xB7, 0x14, 0x24,
             0xF4});                         // pushfw; popfw; pushfw; and a HLT, which is #GP
  guest_.port.registers.rflags = 0x20'0ED7;  // ID, IF, DF, status flags
  SoftPort& program = begin();
  finish(program);
  expect_stopped_in_handler(program, 13);
  EXPECT_EQ(program.regs()->rdx, 0xED7U);
  EXPECT_EQ(pushed(2) & ~vpmu::bit(16), 0x20'0ED7U) << "as before: IF is not a program's to change";
}

// The processor's own timer wakes it, at the exact tick.
TEST_F(SystemInstructions, TheDeadlineTimerWakesAHaltedVcpu) {
  guest_.port.special.idt.limit = 0xFFF;
  const std::uint64_t to = handler_of(20);
  guest_.store_word(tables_at + 16 * 0xEC, (to & 0xFFFF) | 0x10ULL << 16 | 0x8EULL << 40 | (to >> 16 & 0xFFFF) << 48);
  guest_.store_code(to, {0x0F, 0x31, 0xF4});  // rdtsc; hlt
  guest_.store_code(code_at, {0xFB, 0xF4});   // sti; hlt
  SoftPort& port = begin();
  kvm_lapic_state apic = *port.lapic();
  const std::uint32_t enabled = 0x1FF, deadline_mode = 0x4'00EC;
  std::memcpy(apic.regs + 0xF0, &enabled, sizeof enabled);
  std::memcpy(apic.regs + 0x320, &deadline_mode, sizeof deadline_mode);
  port.set_lapic(apic);
  ASSERT_TRUE(port.set_msr(0x6E0, 1'000'000));
  finish(port);
  EXPECT_EQ(port.regs()->rip, to + 3);
  EXPECT_EQ(port.regs()->rax, 1'000'002U) << "the tick, the entry's and RDTSC's own";
}

}  // namespace
}  // namespace vmm::test
