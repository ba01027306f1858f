// What the processor checks of descriptors, gates and page-table entries, and which exception it raises.
// SDM 3A 5.2, 6.13.
#include "exec/tests/fixtures/assembled.hpp"
#include "soft/system_fixture.hpp"
#include "support/x86.hpp"

namespace vmm::test {
namespace {

constexpr std::uint64_t present = vpmu::bit(47), accessed = vpmu::bit(40);
constexpr std::uint64_t not_canonical = 0x8000'0000'0000;
constexpr std::uint64_t extra = 0x50;  // a selector whose descriptor the test chooses, and the next one
constexpr std::uint64_t tss_type = 0x89, ldt_type = 0x82;

class Descriptors : public SystemInstructions {
 protected:
  Descriptors() {
    guest_.backend.special.gdt.limit = 0x7F;
    guest_.backend.special.tr.base = tss;
    guest_.store_word(tss + 4, stack_top);
  }
  /// Not where the other tests have it: the GDT is longer here.
  static constexpr std::uint64_t tss = gdt_at + 0x400;
  void set_extra(std::uint64_t word, std::uint64_t high = 0) {
    guest_.store_word(gdt_at + extra, word);
    guest_.store_word(gdt_at + extra + 8, high);
  }
  /// A system descriptor of 16 bytes with a limit of 67H.
  void set_system(std::uint64_t type, std::uint64_t base) {
    set_extra(0x67 | (base & 0xFF'FFFF) << 16 | type << 40 | (base >> 24 & 0xFF) << 56, base >> 32);
  }
  std::uint64_t gate(unsigned vector) { return guest_.load_word(tables_at + 16ULL * vector); }
  void set_gate(unsigned vector, std::uint64_t low, std::uint64_t high = 0) {
    guest_.store_word(tables_at + 16ULL * vector, low);
    guest_.store_word(tables_at + 16ULL * vector + 8, high);
  }
  void gate_to(unsigned vector, std::uint64_t selector) {
    set_gate(vector, (gate(vector) & ~(0xFFFFULL << 16)) | selector << 16);
  }
  /// `above`: words on the stack above the handler's frame.
  void expect_delivered(SoftBackend& backend, unsigned vector, std::uint64_t error_code, std::uint64_t rip = code_at,
                        unsigned above = 0) {
    expect_stopped_in_handler(backend, vector);
    EXPECT_EQ(pushed(above + 5), error_code);
    EXPECT_EQ(pushed(above + 4), rip);
  }
  /// Runs code in ring 0 with `extra` in AX.
  SoftBackend& run_with_extra(const std::vector<std::uint8_t>& code, std::uint64_t selector = extra) {
    guest_.backend.registers.rax = selector;
    return run(code);
  }
};
const std::vector<std::uint8_t> undefined = X86("ud2"), int_1f = X86("int $0x1F"), ltr = X86("ltr %ax; hlt"),
                                lldt = X86("lldt %ax; hlt"), to_ds = X86("mov %eax, %ds; hlt"),
                                to_ss = X86("mov %eax, %ss; hlt"), to_fs = X86("mov %eax, %fs; hlt");

// SDM 2A INT n.
TEST_F(Descriptors, AGateIntoASegmentThatIsNotPresent) {
  set_extra(0x00AF'9B00'0000'FFFF & ~present);
  gate_to(x86::vector::UD, extra);
  expect_delivered(run(undefined), x86::vector::NP, extra | 1);
  gate_to(0x1F, extra);
  expect_delivered(run(int_1f), x86::vector::NP, extra);
}
TEST_F(Descriptors, AGateIntoWhatIsNo64BitCode) {
  for (const std::uint64_t word :
       {0x00CF'9B00'0000'FFFFULL, 0x00EF'9B00'0000'FFFFULL, 0x00AF'9300'0000'FFFFULL, 0ULL}) {
    set_extra(word);
    gate_to(x86::vector::UD, extra);
    expect_delivered(run(undefined), x86::vector::GP, extra | 1);
  }
  gate_to(x86::vector::UD, 0);
  expect_delivered(run(undefined), x86::vector::GP, 1);
  gate_to(x86::vector::UD, 0x1000);
  expect_delivered(run(undefined), x86::vector::GP, 0x1001);
}
TEST_F(Descriptors, AGateToWhereNothingCanBe) {
  set_gate(x86::vector::UD, gate(x86::vector::UD), not_canonical >> 32);
  expect_delivered(run(undefined), x86::vector::GP, 1);
}
TEST_F(Descriptors, AStackOfTheTaskMustBeCanonicalAndWithinIt) {
  set_gate(x86::vector::UD, gate(x86::vector::UD) | 1ULL << 32);
  guest_.store_word(tss + 36, not_canonical + 0x1000);
  expect_delivered(run(undefined), x86::vector::SS, 1);
  guest_.store_word(tss + 36, stack_top);
  expect_stopped_in_handler(run(undefined), x86::vector::UD);
  guest_.backend.special.tr.limit = 42;
  expect_delivered(run(undefined), x86::vector::TS, 0x41);
}
// SDM 3A 5.5: conforming code runs at the level of its caller.
TEST_F(Descriptors, AGateIntoConformingCodeKeepsTheLevel) {
  set_extra(0x00AF'9E00'0000'FFFF);
  gate_to(x86::vector::UD, extra);
  set_gate(x86::vector::GP, gate(x86::vector::GP));
  in_ring_3(X86("ud2"));
  guest_.store_code(handler_of(x86::vector::UD), X86("hlt"));
  SoftBackend& backend = begin();
  finish(backend);
  // The handler's HLT is #GP at level 3; its page is the kernel's, so fetching it faults already.
  expect_stopped_in_handler(backend, x86::vector::PF);
  EXPECT_EQ(pushed(4), handler_of(x86::vector::UD));
  EXPECT_EQ(pushed(3), extra | 3);
}

// SDM 2A LTR, LLDT.
TEST_F(Descriptors, TheTaskRegisterTakesAnAvailableTaskStateSegment) {
  set_system(tss_type, 0xFFFF'8000'0000'1000);
  SoftBackend& backend = run_with_extra(ltr);
  EXPECT_EQ(backend.sregs()->tr.base, 0xFFFF'8000'0000'1000);
  EXPECT_EQ(backend.sregs()->tr.limit, 0x67U);
  EXPECT_EQ(guest_.load_word(gdt_at + extra) >> 40 & 0xFF, tss_type | 2) << "busy";
  expect_delivered(run_with_extra(ltr), x86::vector::GP, extra);
}
TEST_F(Descriptors, TheTaskRegistersBaseMustBeCanonical) {
  for (const auto& [type, code] : {std::pair{tss_type, ltr}, std::pair{ldt_type, lldt}}) {
    set_system(type, 0xFF00'0000'0000'0000);
    expect_delivered(run_with_extra(code), x86::vector::GP, extra);
    set_system(type, not_canonical);
    expect_delivered(run_with_extra(code), x86::vector::GP, extra);
    set_system(type & ~0x80ULL, 0);
    expect_delivered(run_with_extra(code), x86::vector::NP, extra);
    set_system(type, 0x1000);
    guest_.store_word(gdt_at + extra + 8, 1ULL << 40);  // a type in the upper half
    expect_delivered(run_with_extra(code), x86::vector::GP, extra);
    guest_.backend.special.gdt.limit = extra + 14;
    set_system(type, 0x1000);
    expect_delivered(run_with_extra(code), x86::vector::GP, extra);
    guest_.backend.special.gdt.limit = 0x7F;
    expect_delivered(run_with_extra(code, extra | 4), x86::vector::GP, extra | 4);
  }
  expect_delivered(run_with_extra(ltr, 0), x86::vector::GP, 0);
}
// SDM 2A LGDT; SDM 3B, canonical checks of WRMSR.
TEST_F(Descriptors, TablesMustBeCanonical) {
  guest_.backend.registers.rbx = data_at;
  guest_.store_word(data_at, not_canonical << 16 | 0x3F);
  guest_.store_word(data_at + 8, not_canonical >> 48);
  expect_delivered(run(X86("lgdt (%rbx)")), x86::vector::GP, 0);
  expect_delivered(run(X86("lidt (%rbx)")), x86::vector::GP, 0);
}

// SDM 3A 3.4.2, 3.5.1.
TEST_F(Descriptors, SegmentsOfTheLocalTable) {
  set_system(ldt_type, data_at + 0x100);
  guest_.store_word(data_at + 0x100, 0x12CF'F234'5678'0FFF);  // index 0: there is no null selector
  guest_.backend.registers.rbx = 4;
  SoftBackend& backend = run_with_extra(X86("lldt %ax; mov %ebx, %fs; hlt"));
  EXPECT_EQ(backend.regs()->rip, code_at + 6);
  EXPECT_EQ(backend.sregs()->fs.selector, 4);
  EXPECT_EQ(backend.sregs()->fs.base, 0x1234'5678U);
  EXPECT_EQ(backend.sregs()->fs.limit, 0xF'0FFF'FFFU & 0xFFFF'FFFFU);
  EXPECT_EQ(guest_.load_word(data_at + 0x100) & accessed, accessed);
  guest_.backend.registers.rbx = 0x6C;  // beyond its limit
  expect_delivered(run_with_extra(X86("lldt %ax; mov %ebx, %fs")), x86::vector::GP, 0x6C, code_at + 3);
  guest_.backend.registers.rbx = 4;
  expect_delivered(run(X86("mov %ebx, %fs")), x86::vector::GP, 4);  // without a table
}
TEST_F(Descriptors, ADescriptorTableThatIsNotMappedIsAPageFault) {
  guest_.backend.special.gdt.base = 0xA0'0000 - 0x38;
  guest_.map(0x9F'F000, vpmu::page_size);
  guest_.store_word(0xA0'0000 - 0x38 + 0x10, 0x00AF'9B00'0000'FFFF);
  SoftBackend& backend = run_with_extra(to_ds, 0x38);
  expect_delivered(backend, x86::vector::PF, 0);
  EXPECT_EQ(backend.sregs()->cr2, 0xA0'0000U);
}

// SDM 2B MOV.
TEST_F(Descriptors, DataSegmentsArePresentAndOfALevel) {
  set_extra(0x00CF'9300'0000'FFFF & ~present);
  expect_delivered(run_with_extra(to_ds), x86::vector::NP, extra);
  expect_delivered(run_with_extra(to_ss), x86::vector::SS, extra);
  set_extra(0x00CF'9900'0000'FFFF);  // code that cannot be read
  expect_delivered(run_with_extra(to_ds), x86::vector::GP, extra);
  set_extra(0x00CF'9300'0000'FFFF);
  expect_delivered(run_with_extra(to_ds, extra | 1), x86::vector::GP, extra);
  expect_delivered(run_with_extra(to_ss, extra | 1), x86::vector::GP, extra);
  set_extra(0x00CF'9E00'0000'FFFF);  // conforming code has any level
  EXPECT_EQ(run_with_extra(to_ds, extra | 3).sregs()->ds.selector, extra | 3);
  set_extra(0x00CF'F100'0000'FFFF);  // for SS it must be writable
  expect_delivered(run_with_extra(to_ss), x86::vector::GP, extra);
  expect_delivered(run_with_extra(to_ss, 3), x86::vector::GP, 0);
}
TEST_F(Descriptors, AProgramGetsNoSegmentOfTheKernel) {
  set_extra(0x00CF'9300'0000'FFFF);
  in_ring_3(to_fs);
  guest_.backend.registers.rax = extra | 3;
  SoftBackend& backend = begin();
  finish(backend);
  expect_delivered(backend, x86::vector::GP, extra, user_at);
}
TEST_F(Descriptors, LoadingMarksADescriptorAsAccessed) {
  set_extra(0x00CF'9200'0000'FFFF);
  SoftBackend& backend = run_with_extra(X86("lar %eax, %ecx; mov %eax, %ds; lar %eax, %edx; hlt"));
  EXPECT_EQ(backend.regs()->rcx, 0x00C0'9200U);
  EXPECT_EQ(backend.regs()->rdx, 0x00C0'9300U);
}

// SDM 2A LAR, LSL: tables of the types.
TEST_F(Descriptors, SystemSegmentsAreExamined) {
  const std::vector<std::uint8_t> lar = X86("lar %eax, %ecx; hlt"), lsl = X86("lsl %eax, %ecx; hlt"),
                                  verr = X86("verr %ax; hlt");
  const auto valid = [&](std::uint64_t type, const std::vector<std::uint8_t>& code) {
    set_system(type, 0x1000);
    return (run_with_extra(code).regs()->rflags & x86::rflags::ZF::mask) != 0;
  };
  for (unsigned type = 0; type < 16; ++type) {
    const bool has_limit = type == 2 || type == 9 || type == 0xB;
    EXPECT_EQ(valid(0x80 | type, lsl), has_limit) << type;
    EXPECT_EQ(valid(0x80 | type, lar), has_limit || type == 0xC) << type;
    EXPECT_FALSE(valid(0x80 | type, verr)) << type;
  }
}

// SDM 2B RET, 2A IRET, 3A 5.8.6.
TEST_F(Descriptors, AFarReturnToAnOuterLevelSwitchesStacksAndDropsSegments) {
  set_extra(0x00CF'9300'0000'FFFF);
  guest_.store_code(user_at, X86("int $0x1F"));
  guest_.backend.registers.rbx = user_at;
  SoftBackend& backend =
      run_with_extra(X86("mov %eax, %ds; "
                         "push $0x2B; push $0x800800; "
                         "push %rax; push %rax; "
                         "push $0x33; push %rbx; "
                         "lretq $0x10"));
  expect_stopped_in_handler(backend, 0x1F);
  EXPECT_EQ(pushed(0), 0x2BU);
  EXPECT_EQ(pushed(1), 0x80'0810U) << "off both stacks";
  EXPECT_EQ(pushed(3), 0x33U);
  EXPECT_EQ(backend.sregs()->ds.selector, 0U);
  EXPECT_EQ(backend.sregs()->ds.unusable, 1U);
}
TEST_F(Descriptors, ReturnsNameTheSelectorThatTheyRefuse) {
  set_extra(0x00AF'FB00'0000'FFFF & ~present);
  const auto iret = [&](std::uint8_t code, std::uint8_t stack) {
    return std::vector<std::uint8_t>{0x6A, stack, 0x68, 0, 8, 0x80, 0, 0x6A, 2,
                                     0x6A, code,  0x68, 0, 0, 0x80, 0, 0x48, 0xCF};
  };
  constexpr std::uint64_t at = code_at + 16;
  constexpr unsigned above = 6;  // the five of IRET, and one that aligns
  expect_delivered(run(iret(extra | 3, 0x2B)), x86::vector::NP, extra, at, above);
  set_extra(0x00CF'F300'0000'FFFF & ~present);
  expect_delivered(run(iret(0x33, extra | 3)), x86::vector::SS, extra, at, above);
  expect_delivered(run(iret(0x33, 0x18)), x86::vector::GP, 0x18, at, above);
  expect_delivered(run(iret(0x30, 0x2B)), x86::vector::GP, 0x30, at, above);
  expect_delivered(run(iret(0x33, 3)), x86::vector::GP, 0, at, above);
  guest_.backend.registers.rflags |= vpmu::bit(14);  // NT, which has no meaning in IA-32e mode
  expect_delivered(run(iret(0x33, 0x2B)), x86::vector::GP, 0, at, above);
}

// SDM 3A 4.5, 4.7: bits beyond the width of physical addresses are reserved.
TEST_F(Descriptors, ReservedBitsOfAPageTableEntryAreAPageFault) {
  constexpr std::uint64_t page = 0xA0'0000;
  const std::vector<std::uint8_t> load = X86("mov (%rbx), %eax"), store = X86("mov %eax, (%rbx)"),
                                  fetch = X86("jmp *%rbx");
  cpuid_.add(0x8000'0008, {.eax = 39});
  guest_.backend.special.cr4 |= vpmu::bit(20);  // SMEP
  guest_.backend.registers.rbx = page;
  for (const std::uint64_t bit : {vpmu::bit(39), vpmu::bit(51)}) {
    guest_.map_to(page, bit);
    expect_delivered(run(load), x86::vector::PF, 9);
    expect_delivered(run(store), x86::vector::PF, 0xB);
    expect_delivered(run(fetch), x86::vector::PF, 0x19, page);
  }
  guest_.map_to(page, vpmu::bit(39), {.is_user = true});
  in_ring_3(load);
  SoftBackend& backend = begin();
  finish(backend);
  expect_delivered(backend, x86::vector::PF, 0xD, user_at);
  EXPECT_EQ(backend.sregs()->cr2, page);
}
TEST_F(Descriptors, ExecuteDisableIsReservedUnlessItIsOn) {
  constexpr std::uint64_t page = 0xA0'0000;
  guest_.map_to(page, vpmu::bit(63) | (guest_.entry(data_at) & 0xFF'F000));
  guest_.backend.registers.rbx = page;
  guest_.store_code(code_at, X86("mov (%rbx), %eax; hlt"));
  EXPECT_EQ(run(X86("mov (%rbx), %eax; hlt")).regs()->rip, code_at + 3);
  guest_.backend.special.efer &= ~vpmu::bit(11);
  expect_delivered(run(X86("mov (%rbx), %eax; hlt")), x86::vector::PF, 9);
}
TEST_F(Descriptors, TheRootMustBeWithinPhysicalAddresses) {
  guest_.backend.registers.rax = vpmu::bit(36);
  expect_delivered(run(X86("mov %rax, %cr3")), x86::vector::GP, 0);
}
TEST_F(Descriptors, WriteThroughWithoutItsFellowIsRefused) {
  guest_.backend.registers.rax = FakeGuest::cr0_paging | vpmu::bit(29);
  expect_delivered(run(X86("mov %rax, %cr0")), x86::vector::GP, 0);
}

}  // namespace
}  // namespace vmm::test
