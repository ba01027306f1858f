// System instructions of a kernel and its programs, on a vCPU without KVM.
#include "exec/tests/fixtures/assembled.hpp"
#include "soft/system_fixture.hpp"
#include "support/x86.hpp"

namespace vmm::test {
namespace {

// SDM 2B SYSCALL, SYSRET.
TEST_F(SystemInstructions, AProgramCallsTheKernelAndComesBack) {
  in_ring_3(X86("syscall; int3"));
  guest_.store_code(code_at, X86("mov %rsp, %rbx; pushf; pop %rdx; sysretq"));
  guest_.backend.special.efer |= x86::efer::SCE::mask;
  guest_.backend.registers.rflags = 2 | x86::rflags::IF::mask | x86::rflags::DF::mask;
  SoftBackend& backend = begin();
  ASSERT_TRUE(backend.set_msr(0xC000'0081, 0x0020'0010ULL << 32));
  ASSERT_TRUE(backend.set_msr(0xC000'0082, code_at));
  ASSERT_TRUE(backend.set_msr(0xC000'0084, x86::rflags::IF::mask | x86::rflags::DF::mask));
  guest_.backend.registers.rsp = 0;
  finish(backend);
  expect_stopped_in_handler(backend, 3);
  EXPECT_EQ(backend.regs()->rcx, user_at + 2) << "where it came from";
  EXPECT_EQ(backend.regs()->r11, 2 | x86::rflags::IF::mask | x86::rflags::DF::mask) << "its flags";
  EXPECT_EQ(backend.regs()->rdx & (x86::rflags::IF::mask | x86::rflags::DF::mask), 0U) << "masked in the kernel";
  EXPECT_EQ(backend.regs()->rbx, user_at + 0x800) << "the stack is the program's";
  EXPECT_EQ(pushed(0), 0x2BU) << "SS of the program when INT3 left it";
  EXPECT_EQ(pushed(3), 0x33U) << "and CS";
  EXPECT_EQ(pushed(2), 2 | x86::rflags::IF::mask | x86::rflags::DF::mask);
  EXPECT_EQ(pushed(4), user_at + 3);
}

TEST_F(SystemInstructions, SyscallIsUdUntilItIsSwitchedOn) {
  in_ring_3(X86("syscall"));
  SoftBackend& backend = begin();
  finish(backend);
  expect_stopped_in_handler(backend, x86::vector::UD);
  EXPECT_EQ(pushed(4), user_at);
}

TEST_F(SystemInstructions, SysretToWhereNothingCanBeIsGpInTheKernel) {
  guest_.backend.special.efer |= x86::efer::SCE::mask;
  guest_.backend.registers.rcx = 0x8000'0000'0000;
  SoftBackend& backend = run(X86("sysretq"));
  expect_stopped_in_handler(backend, x86::vector::GP);
  EXPECT_EQ(pushed(3), 0x10U) << "CS is still the kernel's";
}

TEST_F(SystemInstructions, SwapgsExchangesTheBases) {
  guest_.backend.special.gs.base = 0x1234;
  guest_.store_code(code_at, X86("swapgs; hlt"));
  SoftBackend& backend = begin();
  ASSERT_TRUE(backend.set_msr(0xC000'0102, 0xFFFF'8000'0000'0000));
  finish(backend);
  EXPECT_EQ(backend.sregs()->gs.base, 0xFFFF'8000'0000'0000U);
  EXPECT_EQ(*backend.msr(0xC000'0102), 0x1234U);
}

TEST_F(SystemInstructions, WhatIsTheKernelsIsGpInAProgram) {
  const std::vector<std::vector<std::uint8_t>> all{
      X86("swapgs"),         X86("clts"),          X86("sysretq"), X86("lldt %ax"), X86("lmsw %ax"),
      X86("mov %rax, %cr3"), X86("invlpg (%rax)"), X86("hlt"),     X86("cli"),      X86("in $0x60, %al")};
  for (const auto& code : all) {
    in_ring_3(code);
    SoftBackend& backend = begin();
    finish(backend);
    expect_stopped_in_handler(backend, x86::vector::GP);
    EXPECT_EQ(pushed(3), 0x33U) << std::hex << int{code[0]} << (code.size() > 1 ? code[1] : 0);
  }
}

TEST_F(SystemInstructions, TheTaskSwitchedFlag) {
  guest_.backend.special.cr0 |= x86::cr0::TS::mask;
  EXPECT_EQ(run(X86("clts; hlt")).sregs()->cr0 & x86::cr0::TS::mask, 0U);
  guest_.backend.registers.rax = 0xA;
  SoftBackend& backend = run(X86("lmsw %ax; smsw %ebx; hlt"));
  EXPECT_EQ(backend.sregs()->cr0 & 0xF, 0xBU) << "PE is not cleared";
  EXPECT_EQ(backend.regs()->rbx, backend.sregs()->cr0 & 0xFFFF'FFFF);
}

// SDM 2A LSL, LAR; 2B VERW.
TEST_F(SystemInstructions, SegmentsAreExamined) {
  guest_.backend.registers.rax = 0x3B;
  SoftBackend& backend = run(X86("lsl %eax, %ebx; lar %eax, %ecx; hlt"));
  EXPECT_EQ(backend.regs()->rbx, 0x123U);
  EXPECT_EQ(backend.regs()->rcx, 0x0040'F300U);
  EXPECT_NE(backend.regs()->rflags & x86::rflags::ZF::mask, 0U);
  EXPECT_EQ(run(X86("verw %ax; hlt")).regs()->rflags & x86::rflags::ZF::mask, x86::rflags::ZF::mask) << "VERW of data";
  guest_.backend.registers.rax = 0x10;
  EXPECT_EQ(run(X86("verw %ax; hlt")).regs()->rflags & x86::rflags::ZF::mask, 0U) << "VERW of code";
  EXPECT_EQ(run(X86("verr %ax; hlt")).regs()->rflags & x86::rflags::ZF::mask, x86::rflags::ZF::mask)
      << "VERR of readable code";
  guest_.backend.registers.rax = 0x1000;
  guest_.backend.registers.rbx = 7;
  EXPECT_EQ(run(X86("lsl %eax, %ebx; hlt")).regs()->rbx, 7U) << "beyond the table: nothing is loaded";
}

TEST_F(SystemInstructions, TheLocalDescriptorTable) {
  SoftBackend& none = run(X86("xor %eax, %eax; lldt %ax; sldt %ebx; hlt"));
  EXPECT_EQ(none.sregs()->ldt.unusable, 1);
  EXPECT_EQ(none.regs()->rbx, 0U);
  guest_.backend.registers.rax = 0x18;
  SoftBackend& backend = run(X86("lldt %ax"));
  expect_stopped_in_handler(backend, x86::vector::GP);
  EXPECT_EQ(pushed(5), 0x18U) << "a data segment is none";
}

TEST_F(SystemInstructions, AStackThatIsNowhereIsSs) {
  guest_.backend.registers.rbp = 0x8000'0000'0000;
  SoftBackend& stack = run(X86("mov (%rbp), %rax"));
  expect_stopped_in_handler(stack, x86::vector::SS);
  guest_.backend.registers.rbx = 0x8000'0000'0000;
  SoftBackend& data = run(X86("mov (%rbx), %rax"));
  expect_stopped_in_handler(data, x86::vector::GP);
}

TEST_F(SystemInstructions, WhatCpuidHidesIsUd) {
  for (const auto& code : {X86("rdrand %eax"), X86("monitor"), X86("rdfsbase %rax")}) {
    SoftBackend& backend = run(code);
    expect_stopped_in_handler(backend, x86::vector::UD);
  }
}

// The kernel maps another page at an address that it has used, and invalidates the translation. SDM 3A 4.10.4.1.
TEST_F(SystemInstructions, TranslationsEndWhenTheKernelSaysSo) {
  for (const auto& invalidate : {X86("invlpg (%rsi)"), X86("mov %cr3, %rax; mov %rax, %cr3")})
    EXPECT_EQ(seen_after_remapping(invalidate), remapped);
  EXPECT_EQ(seen_after_remapping(X86("invlpg 0x1000(%rsi)")), as_before) << "a TLB has it";
}

// SDM 2B PUSH and POP with a prefix of 66H: 16 bits, the stack pointer moves by 2.
TEST_F(SystemInstructions, PushesAndPopsOf16Bits) {
  const std::vector<std::uint8_t> code =
      X86("push %ax; pushw $0x1234; pushw (%rsi); popw 2(%rsi); pop %bx; pop %cx; "
          ".byte 0x66; bswap %edx; hlt");
  kvm_regs& r = guest_.backend.registers;
  r.rax = r.rbx = r.rcx = r.rdx = 0x1122'3344'5566'7788;
  r.rsi = data_at;
  guest_.store_word(data_at, 0xABCD);
  const kvm_regs end = *run(code).regs();
  EXPECT_EQ(guest_.load_word(data_at), 0xABCD'ABCDU);
  EXPECT_EQ(end.rbx, 0x1122'3344'5566'1234U);
  EXPECT_EQ(end.rcx, 0x1122'3344'5566'7788U);
  EXPECT_EQ(end.rdx, 0x1122'3344'5566'0000U);
  EXPECT_EQ(end.rsp, r.rsp);
}

// An instruction that we do not implement cannot end the machine. Each use is counted; each is logged once.
TEST_F(SystemInstructions, WhatNobodyKnowsIsUd) {
  guest_.backend.registers.rbx = user_at;
  guest_.backend.registers.rbp = user_at + 0x100;
  in_ring_3(X86(".byte 0x66; leave"));
  SoftBackend& first = begin();
  finish(first);
  expect_stopped_in_handler(first, x86::vector::UD);
  EXPECT_EQ(pushed(4), user_at);
  ASSERT_EQ(lines_.size(), 1U);
  EXPECT_NE(lines_[0].find("leave"), std::string::npos) << lines_[0];
  lines_.clear();
  guest_.store_code(user_at, X86(".byte 0x66; leave; .byte 0x66; leave"));
  guest_.store_code(handler_of(6), X86("addq $2, (%rsp); inc %ecx; cmp $2, %ecx; je 1f; iretq; 1: hlt"));
  SoftBackend& backend = begin();
  finish(backend);
  EXPECT_EQ(statistic(backend, "soft.unknown.leave"), 2U);
  EXPECT_EQ(statistic(backend, "soft.unknown.enter"), 0U);
  EXPECT_EQ(lines_.size(), 1U) << "the second time is counted alone";
}

// SDM 2A CLFLUSHOPT: #UD unless CPUID reports it; CLFLUSH always exists.
TEST_F(SystemInstructions, ClflushoptIsThereWhereCpuidTellsOfIt) {
  const std::vector<std::uint8_t> code =
      X86("xor %ebx, %ebx; clflush (%rsp); inc %ebx; clflushopt (%rsp); inc %ebx; hlt");
  guest_.backend.registers.rsp = stack_top - 64;
  SoftBackend& without = run(code);
  expect_stopped_in_handler(without, 6);
  EXPECT_EQ(without.regs()->rbx, 1U);
  cpuid_.add_subleaf(7, 0, {.ebx = static_cast<std::uint32_t>(vpmu::bit(23))});
  EXPECT_EQ(run(code).regs()->rbx, 2U);
  EXPECT_TRUE(lines_.empty());
}

// SDM 2A CLFLUSH: subject to the checks of a byte load.
TEST_F(SystemInstructions, ClflushFaultsAsALoadOfAByte) {
  const std::vector<std::uint8_t> clflush = X86("clflush (%rbx); hlt");
  guest_.backend.registers.rbx = data_at + vpmu::page_size - 1;
  EXPECT_EQ(run(clflush).regs()->rip, code_at + clflush.size()) << "what is mapped to its last byte";
  guest_.backend.registers.rbx = data_at + vpmu::page_size;
  SoftBackend& unmapped = run(clflush);
  expect_stopped_in_handler(unmapped, 14);
  EXPECT_EQ(unmapped.sregs()->cr2, data_at + vpmu::page_size);
  guest_.backend.registers.rbx = vpmu::bit(63);
  expect_stopped_in_handler(run(clflush), 13);
}

// SDM 3A 6.15, interrupt 13. INSB: without a map of ports in the TSS.
TEST_F(SystemInstructions, WhatOnlyRing0MayRunIsGpInRing3) {
  for (const auto& code : {X86("insb"), X86("invd")}) {
    in_ring_3(code);
    SoftBackend& backend = begin();
    finish(backend);
    expect_stopped_in_handler(backend, 13);
  }
  EXPECT_TRUE(lines_.empty());
}

// SDM 2A tables 2-18 and 2-21: a misaligned operand, and reserved bits of MXCSR.
TEST_F(SystemInstructions, AnOperandThatIsNotAsItMustBeIsGp) {
  guest_.backend.special.cr4 |= vpmu::bit(9);
  const std::vector<std::uint8_t> movaps = X86("movaps %xmm0, 8(%rsp)");
  const std::vector<std::uint8_t> ldmxcsr = X86("movl $-1, (%rsp); ldmxcsr (%rsp)");
  for (const auto& code : {movaps, ldmxcsr}) {
    in_ring_3(code);
    SoftBackend& backend = begin();
    finish(backend);
    expect_stopped_in_handler(backend, 13);
  }
  EXPECT_TRUE(lines_.empty());
}

// SDM 2B PUSHF, POPF: with 16-bit operands the upper bits of RFLAGS stay.
TEST_F(SystemInstructions, FlagsOf16Bits) {
  SoftBackend& backend =
      run(X86("mov %rsp, %rbx; push $0x8D5; popfw; lea 6(%rsp), %rsp; pushfw; movzwl (%rsp), %edx; hlt"));
  EXPECT_EQ(backend.regs()->rdx, 0x8D7U);
  EXPECT_EQ(backend.regs()->rsp, backend.regs()->rbx - 2);
  in_ring_3(X86("pushfw; popfw; pushfw; movzwl (%rsp), %edx; hlt"));  // the HLT is #GP
  guest_.backend.registers.rflags = 0x20'0ED7;                        // ID, IF, DF, status flags
  SoftBackend& program = begin();
  finish(program);
  expect_stopped_in_handler(program, 13);
  EXPECT_EQ(program.regs()->rdx, 0xED7U);
  EXPECT_EQ(pushed(2) & ~vpmu::bit(16), 0x20'0ED7U) << "as before: IF is not a program's to change";
}

// The processor's own timer wakes it, at the exact tick.
// A write of the TSC takes effect where it is, in the midst of what the engine runs.
TEST_F(SystemInstructions, AnMsrIsReadAndWrittenAtItsOwnTime) {
  std::vector<std::uint8_t> code(50, 0x90);
  const std::vector<std::uint8_t> rest =
      X86("xor %eax, %eax; xor %edx, %edx; "
          "mov $0x10, %ecx; "
          "wrmsr; rdtsc; "
          "mov %eax, %ebx; rdmsr; hlt");
  code.insert(code.end(), rest.begin(), rest.end());
  const kvm_regs after = *run(code).regs();
  EXPECT_EQ(after.rbx, 2U) << "after WRMSR and RDTSC";
  EXPECT_EQ(after.rax, 3U) << "before RDMSR";
}

// SDM 3A 10.8.6: CR8 is the class of TPR; its other bits are reserved.
TEST_F(SystemInstructions, TheTaskPrioritysClassIsCr8) {
  SoftBackend& backend = run(X86("mov $11, %eax; mov %rax, %cr8; mov %cr8, %rbx; hlt"));
  EXPECT_EQ(backend.regs()->rbx, 11U);
  EXPECT_EQ(backend.lapic()->regs[0x80], static_cast<char>(0xB0));
  SoftBackend& faulting = run(X86("mov $0x10, %eax; mov %rax, %cr8; hlt"));
  expect_stopped_in_handler(faulting, 13);
}

// CPUID, CR8 and the processor's own MSRs do not leave the engine: each is counted, and counted once.
TEST_F(SystemInstructions, WhatTheEngineAsksForIsCountedOnce) {
  SoftBackend& backend =
      run(X86("xor %eax, %eax; cpuid; "
              "mov $0x3B, %ecx; rdmsr; "
              "mov $0xC0000082, %ecx; xor %eax, %eax; xor %edx, %edx; wrmsr; "
              "mov %cr8, %rbx; hlt"));
  EXPECT_EQ(statistic(backend, "soft.system"), 5U);
  EXPECT_EQ(statistic(backend, "soft.instructions"), 10U);
  EXPECT_EQ(*backend.tsc(), 10U);
}

// SDM 2A CALL: what is loaded is the pointer, not the stack that the call stores to.
TEST_F(SystemInstructions, AFarCallLoadsItsPointer) {
  guest_.store_word(data_at, 0x10ULL << 32 | (code_at + 0x100));
  guest_.store_code(code_at + 0x100, X86("inc %ebx; lretl"));
  guest_.backend.registers.rcx = data_at;
  guest_.backend.registers.rbx = 0;
  SoftBackend& backend = run(X86("lcall *(%rcx); hlt"));
  EXPECT_EQ(backend.regs()->rip, code_at + 3);
  EXPECT_EQ(backend.regs()->rbx, 1U);
  EXPECT_EQ(backend.regs()->rsp, stack_top);
}

TEST_F(SystemInstructions, TheDeadlineTimerWakesAHaltedVcpu) {
  guest_.backend.special.idt.limit = 0xFFF;
  const std::uint64_t to = handler_of(20);
  guest_.store_word(tables_at + 16 * 0xEC, (to & 0xFFFF) | 0x10ULL << 16 | 0x8EULL << 40 | (to >> 16 & 0xFFFF) << 48);
  guest_.store_code(to, X86("rdtsc; hlt"));
  guest_.store_code(code_at, X86("sti; hlt"));
  SoftBackend& backend = begin();
  kvm_lapic_state apic = *backend.lapic();
  const std::uint32_t enabled = 0x1FF, deadline_mode = 0x4'00EC;
  std::memcpy(apic.regs + 0xF0, &enabled, sizeof enabled);
  std::memcpy(apic.regs + 0x320, &deadline_mode, sizeof deadline_mode);
  backend.set_lapic(apic);
  ASSERT_TRUE(backend.set_msr(0x6E0, 1'000'000));
  finish(backend);
  EXPECT_EQ(backend.regs()->rip, to + 3);
  EXPECT_EQ(backend.regs()->rax, 1'000'002U) << "the tick, the entry's and RDTSC's own";
}

}  // namespace
}  // namespace vmm::test
