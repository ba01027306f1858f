// From real mode to 64-bit code and 32-bit programs, the way kernels start processors; and the properties of each mode.
#include "exec/tests/fixtures/assembled.hpp"
#include "soft/system_fixture.hpp"
#include "support/x86.hpp"

namespace vmm::test {
namespace {

/// Code, tables and stacks are in identity-mapped memory, so that they have the same addresses with paging and without.
constexpr std::uint64_t base = 0x2'0000, gdt = base + 0x1000, tss = base + 0x1200, idt32 = base + 0x2000,
                        idt64 = base + 0x3000, stack = base + 0x5000, inner_stack = base + 0x6000, real_vectors = 0;
constexpr std::uint64_t cs32 = 0x08, cs64 = 0x10, data = 0x18, user_data = 0x28, user_cs32 = 0x30;

class Modes : public SystemInstructions {
 protected:
  Modes() {
    for (std::uint64_t page = base; page < base + 0x8000; page += vpmu::page_size)
      guest_.map_to(page, page, {.is_user = true});
    guest_.map_to(real_vectors, real_vectors);
    guest_.store_word(gdt + cs32, 0x00CF'9B00'0000'FFFF);
    guest_.store_word(gdt + cs64, 0x00AF'9B00'0000'FFFF);
    guest_.store_word(gdt + data, 0x00CF'9300'0000'FFFF);
    guest_.store_word(gdt + user_data, 0x00CF'F300'0000'FFFF);
    guest_.store_word(gdt + user_cs32, 0x00CF'FB00'0000'FFFF);
    guest_.store_word(base + 0x1100, gdt << 16 | 0x3F);
    guest_.store_word(base + 0x1110, idt32 << 16 | 0x7FF);
    guest_.store_word(base + 0x1120, idt64 << 16 | 0xFFF);
    guest_.store_word(tss + 4, inner_stack);
    gate32(0x21, base + 0x180);
    gate64(0x22, base + 0x400);
    guest_.store_word(real_vectors + 4ULL * 0x20, 0x2000'0080);
    guest_.store_code(base + 0x400, X86("hlt"));
  }
  void gate32(unsigned vector, std::uint64_t to) {
    guest_.store_word(idt32 + 8ULL * vector, (to & 0xFFFF) | cs32 << 16 | 0xEEULL << 40 | (to >> 16) << 48);
  }
  void gate64(unsigned vector, std::uint64_t to) {
    guest_.store_word(idt64 + 16ULL * vector, (to & 0xFFFF) | cs64 << 16 | 0xEEULL << 40 | (to >> 16) << 48);
  }
  static kvm_segment segment(std::uint64_t selector, bool code, std::uint8_t dpl) {
    kvm_segment s{};
    s.selector = static_cast<std::uint16_t>(selector | dpl);
    s.limit = 0xFFFF'FFFF;
    s.type = code ? 0xB : 3;
    s.present = s.s = s.g = s.db = 1;
    s.dpl = dpl;
    return s;
  }
  kvm_sregs& sregs() { return guest_.backend.special; }
  kvm_regs& regs() { return guest_.backend.registers; }
  /// SDM 3A table 9-1, except for the start address.
  void in_real_mode() {
    sregs().cs = {.base = base, .limit = 0xFFFF, .selector = base >> 4, .type = 0xB, .present = 1, .s = 1};
    sregs().ss = sregs().ds = sregs().es = {.limit = 0xFFFF, .type = 3, .present = 1, .s = 1};
    sregs().cr0 = 0x6000'0010;
    sregs().cr4 = sregs().efer = 0;
    sregs().idt = {.base = real_vectors, .limit = 0x3FF};
    sregs().tr = {.base = tss, .limit = 0x67, .type = 0xB, .present = 1};
    regs().rip = 0;
  }
  /// 32-bit code without paging.
  void in_protected_mode(std::uint8_t cpl) {
    in_real_mode();
    sregs().cr0 |= 1;
    sregs().cs = segment(cpl == 0 ? cs32 : user_cs32, true, cpl);
    sregs().ss = sregs().ds = sregs().es = segment(cpl == 0 ? data : user_data, false, cpl);
    sregs().gdt = {.base = gdt, .limit = 0x3F};
    sregs().idt = {.base = idt32, .limit = 0x7FF};
    guest_.store_word(tss + 4, data << 32 | inner_stack);
    regs().rip = base;
    regs().rsp = stack;
  }
  /// A 32-bit program under a 64-bit kernel.
  void in_compatibility_mode() {
    sregs().cs = segment(user_cs32, true, 3);
    sregs().ss = sregs().ds = sregs().es = segment(user_data, false, 3);
    sregs().gdt = {.base = gdt, .limit = 0x3F};
    sregs().idt = {.base = idt64, .limit = 0xFFF};
    sregs().tr = {.base = tss, .limit = 0x67, .type = 0xB, .present = 1};
    regs().rip = base;
    regs().rsp = stack;
  }
  SoftBackend& run_from(std::uint64_t at, const std::vector<std::uint8_t>& code) {
    guest_.store_code(at, code);
    SoftBackend& backend = begin();
    finish(backend);
    return backend;
  }
  std::uint32_t word(std::uint64_t at) { return static_cast<std::uint32_t>(guest_.load_word(at)); }
};

// SDM 3A 9.8, 9.9: all of the way, with interrupts, stacks and far branches in each mode.
TEST_F(Modes, FromRealModeTo64BitCodeAndA32BitProgram) {
  in_real_mode();
  guest_.store_code(base + 0x80, X86_16("inc %bx; iret"));
  guest_.store_code(base + 0x180, X86_32("inc %edi; iret"));
  guest_.store_code(base + 0x1C0, X86_32("inc %ebp; lret"));
  guest_.store_code(base + 0x100, X86_32("mov $0x18, %eax; mov %eax, %ds; "
                                         "mov %eax, %ss; "
                                         "mov $0x25000, %esp; "
                                         "lidtl 0x21110; "
                                         "int $0x21; "
                                         "push %ds; pop %es; "
                                         "lcall $8, $0x201C0; "
                                         "mov $0x20, %eax; mov %eax, %cr4; "
                                         "mov $0x1000, %eax; mov %eax, %cr3; "
                                         "mov $0xC0000080, %ecx; "
                                         "mov $0x900, %eax; xor %edx, %edx; "
                                         "wrmsr; "
                                         "mov $0x80000001, %eax; mov %eax, %cr0; "
                                         "ljmp $0x10, $0x20200"));
  guest_.store_code(base + 0x200, X86("movabs $0x1122334455667788, %rax; "
                                      "lidt 0x21120; "
                                      "push $0x2B; push $0x25000; "
                                      "push $2; push $0x33; "
                                      "push $0x20300; iretq"));
  guest_.store_code(base + 0x300, X86_32("inc %edx; push %edx; pop %esi; int $0x22"));
  ASSERT_EQ(sregs().cr3, 0x1000U);
  SoftBackend& backend = run_from(base, X86_16("mov $0x2000, %ax; mov %ax, %ds; mov %ax, %ss; "
                                               "mov $0x5000, %sp; int $0x20; "
                                               "lgdtl 0x1100; "
                                               "mov $1, %eax; "
                                               "mov %eax, %cr0; "
                                               "ljmpl $8, $0x20100"));
  const kvm_regs r = *backend.regs();
  EXPECT_EQ(r.rip, base + 0x401);
  EXPECT_EQ(r.rbx, 1U) << "real mode's interrupt";
  EXPECT_EQ(r.rdi, 1U) << "protected mode's";
  EXPECT_EQ(r.rbp, 1U) << "the far call";
  EXPECT_EQ(r.rax, 0x1122'3344'5566'7788U);
  EXPECT_EQ(r.rsi, 1U) << "the program's stack";
  EXPECT_EQ(backend.sregs()->es.g, 1U) << "popped in protected mode;";
  EXPECT_EQ(backend.sregs()->es.selector, 0U) << "the program must not have the kernel's (SDM 2A IRET)";
  EXPECT_EQ(backend.sregs()->efer, 0xD00U);
  EXPECT_EQ(guest_.load_word(inner_stack - 8), user_data | 3);
  EXPECT_EQ(guest_.load_word(inner_stack - 16), stack);
  EXPECT_EQ(guest_.load_word(inner_stack - 32), user_cs32 | 3);
  EXPECT_EQ(guest_.load_word(inner_stack - 40), base + 0x305);
}

// SDM 3B 20.1.4: an interrupt's stack frame in real mode consists of 16-bit words.
TEST_F(Modes, RealModeHasAFrameOfThreeWords) {
  in_real_mode();
  guest_.store_code(base + 0x80, X86_16("hlt"));
  regs().rflags = 0x202 | x86::rflags::DF::mask;
  sregs().ss.base = base;
  regs().rsp = 0x1234'5000;
  SoftBackend& backend = run_from(base, X86_16("int $0x20"));
  EXPECT_EQ(backend.regs()->rsp, 0x1234'4FFAU);
  EXPECT_EQ(guest_.load_word(base + 0x4FFA) & 0xFFFF'FFFF'FFFF, 0x0602'2000'0002U) << "FLAGS, CS, IP";
  EXPECT_EQ(backend.regs()->rflags & x86::rflags::IF::mask, 0U);
}

// SDM 2A CALL: the pointer's address has 32 bits by the prefix 67H, and its offset 16, as the code.
TEST_F(Modes, RealModeCallsThroughAPointerInMemory) {
  in_real_mode();
  guest_.store_code(base + 0x80, X86_16("inc %bx; lret"));
  guest_.store_word(base + 0x900, 0x2000'0080);
  sregs().ds.limit = 0xFFFF'FFFF;
  sregs().ss.base = base;
  regs().rcx = base + 0x900;
  regs().rbx = 0;
  regs().rsp = 0x5000;
  SoftBackend& backend = run_from(base, X86_16("lcall *(%ecx); nop; hlt"));
  EXPECT_EQ(backend.regs()->rip, 5U);
  EXPECT_EQ(backend.regs()->rbx, 1U);
  EXPECT_EQ(backend.regs()->rsp, 0x5000U);
}

// SDM 3A 6.12.1, figure 6-4: the TSS has the inner level's stack, where the old SS:ESP is pushed; SDM 3A 6.13: error
// code.
TEST_F(Modes, ProtectedModeSwitchesStacks) {
  in_protected_mode(3);
  gate32(13, base + 0x400);
  SoftBackend& backend = run_from(base, X86_32("hlt"));  // #GP
  EXPECT_EQ(backend.regs()->rip, base + 0x401);
  EXPECT_EQ(backend.regs()->rsp, inner_stack - 24);
  EXPECT_EQ(word(inner_stack - 4), user_data | 3);
  EXPECT_EQ(word(inner_stack - 8), stack);
  EXPECT_EQ(word(inner_stack - 12), 0x1'0002U) << "RF";
  EXPECT_EQ(word(inner_stack - 16), user_cs32 | 3);
  EXPECT_EQ(word(inner_stack - 20), base);
  EXPECT_EQ(word(inner_stack - 24), 0U) << "the error code";
  EXPECT_EQ(backend.sregs()->ss.selector, data);
}
TEST_F(Modes, ProtectedModeStaysOnItsStack) {
  in_protected_mode(0);
  gate32(6, base + 0x400);
  SoftBackend& backend = run_from(base, X86_32("ud2"));
  EXPECT_EQ(backend.regs()->rip, base + 0x401);
  EXPECT_EQ(backend.regs()->rsp, stack - 12);
  EXPECT_EQ(word(stack - 12), base);
}
// SDM 3A 6.12.1.1: a program may only use gates whose DPL allows its privilege level.
TEST_F(Modes, ProtectedModeGuardsItsGates) {
  in_protected_mode(3);
  gate32(13, base + 0x400);
  gate32(0x21, base + 0x180);
  guest_.store_word(idt32 + 8ULL * 0x21, guest_.load_word(idt32 + 8ULL * 0x21) & ~(3ULL << 45));
  run_from(base, X86_32("int $0x21"));
  EXPECT_EQ(word(inner_stack - 24), 0x21U * 8 + 2) << "of the IDT";
}

// SDM 3A 4.1.2, 9.8.5: IA-32e mode needs PAE, and cannot be left from 64-bit code.
TEST_F(Modes, PagingMakesLongMode) {
  in_protected_mode(0);
  sregs().efer = 0x100;
  gate32(13, base + 0x400);
  SoftBackend& backend = run_from(base, X86_32("mov $0x80000001, %eax; mov %eax, %cr0"));
  EXPECT_EQ(backend.regs()->rip, base + 0x401) << "no PAE: #GP";
  EXPECT_EQ(backend.sregs()->efer, 0x100U);
}
TEST_F(Modes, LongModeCannotBeLeftFrom64BitCode) {
  SoftBackend& backend = run(X86("mov $1, %eax; mov %rax, %cr0"));
  expect_stopped_in_handler(backend, 13);
}

// SDM 2B SYSENTER: flat segments from one MSR; SYSEXIT goes back to 32-bit code at EDX.
TEST_F(Modes, SysenterAndSysexit) {
  in_compatibility_mode();
  guest_.store_code(base + 0x500, X86("mov %rsp, %rbx; mov $0x20600, %edx; mov $0x24F00, %ecx; sysexitl"));
  guest_.store_code(base + 0x600, X86_32("inc %esi; int $0x22"));
  guest_.store_code(base, X86_32("inc %edi; sysenter"));
  // SYSENTER's selectors follow each other: the kernel's CS and SS, and then CS (+16) and SS (+24) of programs.
  guest_.store_word(gdt + 0x20, 0x00CF'FB00'0000'FFFF);
  SoftBackend& backend = begin();
  ASSERT_TRUE(backend.set_msr(0x174, cs64));
  ASSERT_TRUE(backend.set_msr(0x175, inner_stack - 0x100));
  ASSERT_TRUE(backend.set_msr(0x176, base + 0x500));
  finish(backend);
  EXPECT_EQ(backend.regs()->rip, base + 0x401);
  EXPECT_EQ(backend.regs()->rdi, 1U);
  EXPECT_EQ(backend.regs()->rbx, inner_stack - 0x100);
  EXPECT_EQ(backend.regs()->rsi, 1U);
  EXPECT_EQ(guest_.load_word(inner_stack - 16), base + 0x4F00) << "RSP";
  EXPECT_EQ(guest_.load_word(inner_stack - 32), (cs64 + 16) | 3) << "CS";
}
TEST_F(Modes, SysenterIsRefusedWithoutASelector) {
  in_compatibility_mode();
  gate64(13, base + 0x400);
  SoftBackend& backend = run_from(base, X86_32("sysenter"));
  EXPECT_EQ(backend.regs()->rip, base + 0x401);
  EXPECT_EQ(guest_.load_word(inner_stack - 48), 0U) << "the error code";
}

// SDM 2B SYSRET: without REX.W to 32-bit code, whose selector comes first. SYSCALL works in 64-bit code only.
TEST_F(Modes, SysretTo32BitCode) {
  sregs().efer |= x86::efer::SCE::mask;
  sregs().gdt = {.base = gdt, .limit = 0x3F};
  sregs().idt = {.base = idt64, .limit = 0xFFF};
  sregs().tr = {.base = tss, .limit = 0x67, .type = 0xB, .present = 1};
  gate64(6, base + 0x400);
  guest_.store_code(base + 0x600, X86_32("inc %esi; syscall"));  // #UD
  guest_.store_code(code_at, X86("sysretl"));
  regs().rcx = 0xFFFF'FFFF'0000'0000 | (base + 0x600);
  regs().r11 = 2;
  SoftBackend& backend = begin();
  ASSERT_TRUE(backend.set_msr(0xC000'0081, (user_cs32 | 3) << 48));
  finish(backend);
  EXPECT_EQ(backend.regs()->rip, base + 0x401);
  EXPECT_EQ(backend.regs()->rsi, 1U);
  EXPECT_EQ(guest_.load_word(inner_stack - 32), user_cs32 | 3);
  EXPECT_EQ(guest_.load_word(inner_stack - 40), base + 0x601);
}

// SDM 2B RET: pops words of the operand size and skips more bytes. A far jump to a data segment: #GP with its selector.
TEST_F(Modes, FarReturnsAndFarJumpsThroughMemory) {
  in_compatibility_mode();
  gate64(13, base + 0x400);
  guest_.store_word(base + 0x700, user_cs32 << 32 | (base + 0x20));
  guest_.store_code(base + 0x20, X86_32("push $0x33; push $0x20040; lret $8"));
  guest_.store_code(base + 0x40, X86_32("inc %esi; ljmp $0x2B, $0x20000"));  // data
  SoftBackend& backend = run_from(base, X86_32("ljmp *0x20700"));
  EXPECT_EQ(backend.regs()->rsi, 1U);
  EXPECT_EQ(backend.regs()->rip, base + 0x401);
  EXPECT_EQ(guest_.load_word(inner_stack - 48), 0x28U) << "the error code";
  EXPECT_EQ(guest_.load_word(inner_stack - 16), stack + 8) << "RSP: 8 more than was pushed";
  EXPECT_EQ(guest_.load_word(inner_stack - 40), base + 0x41);
}

// Single-steps in 32-bit code: the prefix 48H of 64-bit code is an instruction of its own here.
TEST_F(Modes, StepsThrough32BitCode) {
  in_compatibility_mode();
  guest_.store_code(base, X86_32("dec %eax; dec %eax; mov $1, %eax"));
  SoftBackend& backend = begin();
  ASSERT_TRUE(backend.set_guest_debug({.control = KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_SINGLESTEP}));
  for (const std::uint64_t next : {1U, 2U, 7U}) {
    const auto exit = backend.run();
    ASSERT_TRUE(exit && std::holds_alternative<Debug>(*exit));
    EXPECT_EQ(backend.regs()->rip, base + next);
  }
  EXPECT_EQ(backend.regs()->rax, 1U);
}

}  // namespace
}  // namespace vmm::test
