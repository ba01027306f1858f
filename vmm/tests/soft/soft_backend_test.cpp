#include "soft/soft_backend.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/fake_guest.hpp"
#include "processor/local_apic.hpp"
#include "processor/virtual_time.hpp"
#include "support/x86.hpp"

namespace vmm::test {
namespace {

constexpr std::uint64_t code_at = 0x40'0000, stack_top = 0x50'1000, idt_at = 0x60'0000, gdt_at = 0x60'1000,
                        handler_at = 0x40'0800, unmapped = 0x70'0000;

/// A kernel in ring 0 with a stack, descriptor tables, and one handler for every exception.
class SoftBackendRuns : public testing::Test {
 protected:
  SoftBackendRuns() {
    guest_.map(code_at, vpmu::page_size);
    guest_.map(stack_top - vpmu::page_size, vpmu::page_size);
    guest_.map(idt_at, 2 * vpmu::page_size);
    guest_.store_word(gdt_at + 0x10, 0x00AF'9B00'0000'FFFF);
    guest_.store_word(gdt_at + 0x18, 0x00CF'9300'0000'FFFF);
    for (unsigned vector = 0; vector < 256; ++vector)
      guest_.store_word(idt_at + 16 * vector,
                        (handler_at & 0xFFFF) | 0x10ULL << 16 | 0x8EULL << 40 | (handler_at >> 16 & 0xFFFF) << 48);
    guest_.store_code(handler_at, X86("hlt"));
    auto& sregs = guest_.backend.special;
    sregs.gdt = {.base = gdt_at, .limit = 0x1F};
    sregs.idt = {.base = idt_at, .limit = 0xFFF};
    sregs.apic_base = 0xFEE0'0900;
    guest_.backend.registers.rip = code_at;
    guest_.backend.registers.rsp = stack_top;
  }
  SoftBackend& begin(const std::vector<std::uint8_t>& code) {
    guest_.store_code(code_at, code);
    backend_.emplace(guest_.memory, CpuidTable{},
                     SoftStart{.sregs = guest_.backend.special, .regs = guest_.backend.registers});
    return *backend_;
  }
  /// The n-th word pushed on the empty stack.
  std::uint64_t pushed(unsigned n) { return guest_.load_word(stack_top - 8ULL * (n + 1)); }

  FakeGuest guest_;
  std::optional<SoftBackend> backend_;
};

TEST_F(SoftBackendRuns, AnInstructionTakesATick) {
  SoftBackend& backend = begin(X86("nop; nop; nop; hlt"));
  const auto exit = backend.run();
  ASSERT_TRUE(exit);
  EXPECT_TRUE(std::holds_alternative<Hlt>(*exit)) << "nothing can wake it";
  EXPECT_EQ(*backend.tsc(), 4U);
  EXPECT_EQ(backend.unhalted_ticks(), 0U) << "nobody watched";
}

// SDM 3A 6.14: the frame of a fault; SDM 3B 17.3.1.1: with RF; SDM 3A 4.7: the error code of a write to a page that is
// not there.
TEST_F(SoftBackendRuns, APageFaultIsDelivered) {
  SoftBackend& backend = begin(X86("movabs %rax, 0x700000"));
  ASSERT_TRUE(backend.run());
  EXPECT_EQ(backend.regs()->rip, handler_at + 1);
  EXPECT_EQ(backend.sregs()->cr2, unmapped);
  EXPECT_EQ(pushed(1), stack_top);
  EXPECT_EQ(pushed(2), 2U | x86::rflags::RF::mask);
  EXPECT_EQ(pushed(3), 0x10U);
  EXPECT_EQ(pushed(4), code_at);
  EXPECT_EQ(pushed(5), 2U) << "a write, not present";
}

// Their contents survive instructions that the back end executes instead of the engine.
TEST_F(SoftBackendRuns, HasX87AndVectorRegisters) {
  guest_.backend.special.cr4 |= x86::cr4::OSFXSR::mask;
  SoftBackend& backend =
      begin(X86("mov $5, %eax; movd %eax, %xmm0; cpuid; paddd %xmm0, %xmm0; movd %xmm0, %ecx; fld1; fstps -16(%rsp); "
                "stmxcsr -12(%rsp); hlt"));
  const auto exit = backend.run();
  ASSERT_TRUE(exit);
  EXPECT_TRUE(std::holds_alternative<Hlt>(*exit));
  EXPECT_EQ(backend.regs()->rcx, 10U);
  EXPECT_EQ(pushed(1), 0x1F80ULL << 32 | 0x3F80'0000) << "the default MXCSR, and 1.0";
  EXPECT_EQ(*backend.tsc(), 9U) << "each is an instruction";
}

// Instructions of 15 bytes, by prefixes: rsqrtss %xmm4, %xmm6 with 12 times F3, and cmpss with 11 of them.
TEST_F(SoftBackendRuns, InstructionsAsLongAsTheyMayBe) {
  guest_.backend.special.cr4 |= vpmu::bit(9);
  std::vector<std::uint8_t> code(12, 0xF3);
  append(code, X86("rsqrtps %xmm4, %xmm6"));
  code.insert(code.end(), 11, 0xF3);
  append(code, X86("cmpps $-1, %xmm1, %xmm0"));  // 0 is 0
  append(code, X86("movd %xmm0, %ecx; movd %xmm6, %edx; hlt"));
  SoftBackend& backend = begin(code);
  const auto exit = backend.run();
  ASSERT_TRUE(exit);
  EXPECT_TRUE(std::holds_alternative<Hlt>(*exit));
  EXPECT_EQ(backend.regs()->rip, code_at + code.size());
  EXPECT_EQ(backend.regs()->rcx, 0xFFFF'FFFFU);
  EXPECT_EQ(backend.regs()->rdx, 0x7F80'0000U) << "1 / sqrt(0)";
}

// An instruction that requires an aligned operand may access a device.
TEST_F(SoftBackendRuns, ADeviceIsAlignedAsItsPageIs) {
  guest_.backend.special.cr4 |= vpmu::bit(9);
  guest_.map_to(0xFEE0'0000, 0xFEE0'0000);
  SoftBackend& backend = begin(X86("mov $0xFEE00000, %ebx; movaps %xmm0, 0x320(%rbx); movaps 0x320(%rbx), %xmm2; hlt"));
  const auto exit = backend.run();
  ASSERT_TRUE(exit);
  EXPECT_TRUE(std::holds_alternative<Hlt>(*exit));
}

// CMPS loads twice, and either operand may be a device's.
TEST_F(SoftBackendRuns, AStringIsComparedWithADevice) {
  constexpr std::uint32_t version = 0x6'0014;
  guest_.map_to(0xFEE0'0000, 0xFEE0'0000);
  guest_.store_word(stack_top - 8, version);
  for (const bool first : {true, false}) {
    guest_.backend.registers.rsi = first ? 0xFEE0'0030 : stack_top - 8;
    guest_.backend.registers.rdi = first ? stack_top - 8 : 0xFEE0'0030;
    SoftBackend& backend = begin(X86("cmpsl; hlt"));
    ASSERT_TRUE(backend.run());
    EXPECT_EQ(backend.regs()->rip, code_at + 2);
    EXPECT_NE(backend.regs()->rflags & vpmu::bit(6), 0U) << "equal";
  }
}

// SDM 3A 10.4.3.
TEST_F(SoftBackendRuns, AnApicThatIsDisabledHasNoRegisters) {
  constexpr std::uint32_t version = 0x6'0014;
  guest_.map_to(0xFEE0'0000, 0xFEE0'0000);
  for (const bool enabled : {true, false}) {
    guest_.backend.special.apic_base = enabled ? 0xFEE0'0900 : 0xFEE0'0100;
    SoftBackend& backend = begin(X86("mov $0xFEE00000, %ebx; mov 0x30(%rbx), %eax; hlt"));
    ASSERT_TRUE(backend.run());
    EXPECT_EQ(backend.regs()->rax == version, enabled) << backend.regs()->rax;
  }
}

TEST_F(SoftBackendRuns, AFetchFromNowhereFaults) {
  SoftBackend& backend = begin(X86("mov $0x700000, %eax; jmp *%rax"));
  ASSERT_TRUE(backend.run());
  EXPECT_EQ(backend.sregs()->cr2, unmapped);
  EXPECT_EQ(pushed(4), unmapped);
}

TEST_F(SoftBackendRuns, DivisionByZeroIsDe) {
  guest_.store_code(handler_at + 16, X86("hlt"));
  guest_.store_word(idt_at,
                    ((handler_at + 16) & 0xFFFF) | 0x10ULL << 16 | 0x8EULL << 40 | (handler_at >> 16 & 0xFFFF) << 48);
  SoftBackend& backend = begin(X86("xor %ecx, %ecx; div %ecx"));
  ASSERT_TRUE(backend.run());
  EXPECT_EQ(backend.regs()->rip, handler_at + 17);
}

TEST_F(SoftBackendRuns, AFaultWithoutATableShutsDown) {
  guest_.backend.special.idt.limit = 0;
  SoftBackend& backend = begin(X86("ud2"));
  const auto exit = backend.run();
  ASSERT_TRUE(exit);
  EXPECT_TRUE(std::holds_alternative<Shutdown>(*exit));
}

TEST_F(SoftBackendRuns, ATimerWakesAHaltedVcpu) {
  SoftBackend& backend = begin(X86("hlt"));
  const auto timer = backend.timers()();
  ASSERT_TRUE(timer);
  ASSERT_TRUE((*timer)->arm_wall(std::chrono::microseconds{100}));
  const auto exit = backend.run();
  ASSERT_TRUE(exit);
  EXPECT_TRUE(std::holds_alternative<Interrupted>(*exit));
  EXPECT_EQ(*backend.tsc(), 1 + SoftBackend::default_tsc_khz / 10 - 1)
      << "time has passed, though no instruction has run";
}

TEST_F(SoftBackendRuns, PortsAreAnsweredOutside) {
  SoftBackend& backend = begin(X86("in $0x60, %al; out %al, $0x61; hlt"));
  const auto in = backend.run();
  ASSERT_TRUE(in && std::holds_alternative<PortRead>(*in));
  EXPECT_EQ(std::get<PortRead>(*in).port, 0x60);
  std::get<PortRead>(*in).data[0] = std::byte{0x5A};
  const auto out = backend.run();
  ASSERT_TRUE(out && std::holds_alternative<PortWrite>(*out));
  EXPECT_EQ(std::get<PortWrite>(*out).port, 0x61);
  EXPECT_EQ(std::get<PortWrite>(*out).data[0], std::byte{0x5A});
}

TEST_F(SoftBackendRuns, AnMsrThatIsRefusedFaults) {
  SoftBackend& backend = begin(X86("mov $0x1234, %ecx; rdmsr"));
  const auto exit = backend.run();
  ASSERT_TRUE(exit && std::holds_alternative<MsrRead>(*exit));
  EXPECT_EQ(std::get<MsrRead>(*exit).index, 0x1234U);
  std::get<MsrRead>(*exit).reply.gp = 1;
  ASSERT_TRUE(backend.run());
  EXPECT_EQ(backend.regs()->rip, handler_at + 1);
  EXPECT_EQ(pushed(4), code_at + 5) << "RDMSR has not retired";
}

// SDM 2B STI: the next instruction still runs before an interrupt.
TEST_F(SoftBackendRuns, AnInterruptWaitsForTheInstructionBehindSti) {
  SoftBackend& backend = begin(X86("sti; nop; nop; hlt"));
  const std::uint32_t enabled = 0x1FF;
  kvm_lapic_state apic = *backend.lapic();
  std::memcpy(apic.regs + 0xF0, &enabled, sizeof enabled);
  backend.set_lapic(apic);
  ASSERT_TRUE(backend.interrupt(0, 0x40));
  ASSERT_TRUE(backend.run());
  EXPECT_EQ(backend.regs()->rip, handler_at + 1);
  EXPECT_EQ(pushed(4), code_at + 2);
  EXPECT_NE(pushed(2) & x86::rflags::IF::mask, 0U);
}

// SDM 3B 17.3.1.4: a trap after each instruction, also after those that exit to the VMM.
TEST_F(SoftBackendRuns, AGuestThatStepsTrapsBehindAnInstructionThatExits) {
  guest_.backend.registers.rflags = 0x102;
  SoftBackend& backend = begin(X86("rdmsr; nop"));
  const auto exit = backend.run();
  ASSERT_TRUE(exit && std::holds_alternative<MsrRead>(*exit));
  ASSERT_TRUE(backend.run());
  EXPECT_EQ(backend.regs()->rip, handler_at + 1);
  EXPECT_EQ(pushed(4), code_at + 2);
  EXPECT_NE(backend.debugregs()->dr6 & vpmu::bit(14), 0U);
}

// A system instruction in ring 3 stores with the privilege of ring 3.
TEST_F(SoftBackendRuns, SystemInstructionsStoreWithTheProgramsPrivilege) {
  const std::uint64_t user_code = 0x80'0000;
  guest_.map(user_code, vpmu::page_size, {.is_user = true});
  guest_.store_code(user_code, X86("sidt 0x600000"));
  guest_.backend.registers.rip = user_code;
  guest_.backend.registers.rsp = user_code + 0x800;
  guest_.backend.special.tr = {.base = gdt_at + 0x100, .limit = 0x67, .type = 0xB, .present = 1};
  guest_.store_word(gdt_at + 0x104, stack_top);  // RSP0
  guest_.enter_ring(3);
  const std::uint64_t before = guest_.load_word(idt_at);
  SoftBackend& backend = begin(X86("nop"));
  ASSERT_TRUE(backend.run());
  EXPECT_EQ(backend.sregs()->cr2, idt_at);
  EXPECT_EQ(guest_.load_word(idt_at), before);
}

/// Instructions in random order, and sometimes random bytes.
std::vector<std::uint8_t> random_code(std::mt19937_64& random) {
  static const std::vector<std::vector<std::uint8_t>> pieces{
      X86("nop"),
      X86("inc %rax"),
      X86("push %rax"),
      X86("pop %rax"),
      X86("pushf"),
      X86("popf"),
      X86("cli"),
      X86("sti"),
      X86("hlt"),
      X86("cpuid"),
      X86("rdtsc"),
      X86("rdmsr"),
      X86("wrmsr"),
      X86("rdpmc"),
      X86("mov %cr2, %rax"),
      X86("mov %rax, %cr3"),
      X86("mov %rax, %dr0"),
      X86("mov %rax, %dr7"),
      X86("int3"),
      X86("int $0x40"),
      X86("iretq"),
      X86("lretq"),
      X86("lgdt (%rax)"),
      X86("lidt (%rax)"),
      X86("ltr %ax"),
      X86("mov %eax, %ss"),
      X86("mov %eax, %fs"),
      X86("mov $0x10, %eax"),
      X86("mov $0x18, %eax"),
      X86("mov $0x600000, %eax"),
      X86("movabs %rax, 0xFEE00340"),
      X86("rep stosb"),
      X86("div %rcx"),
  };
  constexpr std::size_t harmless = 6;  // the first ones
  std::vector<std::uint8_t> code;
  while (code.size() < 256) {
    if (random() % 16 == 0)
      code.push_back(static_cast<std::uint8_t>(random()));
    else
      std::ranges::copy(pieces[random() % (random() % 4 == 0 ? pieces.size() : harmless)], std::back_inserter(code));
  }
  return code;
}

// Whatever a guest does, it ends in some exit. Handlers and descriptor tables are random, too, and the code may
// overwrite its page tables.
TEST_F(SoftBackendRuns, RandomCodeDoesNoHarm) {
  std::map<std::string, std::uint64_t> totals;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::mt19937_64 random{seed};
    guest_.backend.special.tr.base = seed % 5 == 0 ? random() : idt_at;
    guest_.backend.registers.rflags = 2 | (random() & 0x100);
    guest_.store_code(handler_at, random_code(random));
    if (seed % 2 == 1) guest_.store_word(idt_at + 16 * (random() % 32), random());
    if (seed % 7 == 1) guest_.store_word(gdt_at + 0x18, random());
    SoftBackend& backend = begin(random_code(random));
    backend.stop_after(2000);
    for (unsigned runs = 0; runs < 100; ++runs) {
      const auto exit = backend.run();
      ASSERT_TRUE(exit);
      ++totals["exits"];
      const bool goes_on = std::holds_alternative<PortRead>(*exit) || std::holds_alternative<PortWrite>(*exit) ||
                           std::holds_alternative<MsrRead>(*exit) || std::holds_alternative<MsrWrite>(*exit) ||
                           std::holds_alternative<CounterRead>(*exit);
      if (!goes_on) break;
    }
    backend.visit_statistics([&](std::string_view name, std::uint64_t value) { totals[std::string{name}] += value; });
  }
  EXPECT_GE(totals["exits"], 3000U);
  EXPECT_GE(totals["soft.instructions"], 30'000U);
  EXPECT_GE(totals["soft.exceptions"], 3000U);
}

TEST(SoftApic, ServesTheHighestClassFirst) {
  SoftApic apic;
  apic.request(0x40);
  EXPECT_FALSE(apic.pending()) << "disabled by software after reset";
  apic.write(0xF0, 0x1FF);
  apic.request(0x40);
  apic.request(0x81);
  EXPECT_EQ(apic.pending(), 0x81);
  apic.accept(0x81);
  EXPECT_FALSE(apic.pending()) << "40H is of a lower class";
  EXPECT_FALSE(apic.end_interrupt()) << "no level's";
  EXPECT_EQ(apic.pending(), 0x40);
  apic.write(0x80, 0x40);
  EXPECT_FALSE(apic.pending()) << "the task's priority";
}

TEST(SoftApic, DisabledItMasksItsLocalVectors) {
  SoftApic apic;
  apic.write(0xF0, 0x1FF);
  apic.write(0x340, 0x400);
  EXPECT_EQ(apic.read(0x340), 0x400U);
  apic.write(0xF0, 0xFF);
  EXPECT_EQ(apic.read(0x340), 0x1'0400U);
  apic.write(0x340, 0x400);
  EXPECT_EQ(apic.read(0x340), 0x1'0400U);
}

// SDM 3B 14.2: both count while the processor is not halted. SDM 3B 15.3: each bank has four registers.
TEST_F(SoftBackendRuns, PerformanceAndMachineCheckRegistersAreThere) {
  constexpr std::uint32_t mperf = 0xE7, aperf = 0xE8, mcg_cap = 0x179, first_bank = 0x400;
  SoftBackend& backend = begin(X86("nop; nop; nop; nop; hlt"));
  ASSERT_TRUE(backend.set_msr(mperf, 1000));
  ASSERT_TRUE(std::holds_alternative<Hlt>(*backend.run()));
  EXPECT_EQ(*backend.msr(mperf), 1005U);
  EXPECT_EQ(*backend.msr(aperf), 5U);
  const std::uint64_t banks = *backend.msr(mcg_cap) & 0xFF;
  ASSERT_GT(banks, 0U);
  for (std::uint32_t i = 0; i < 4 * banks; ++i) EXPECT_TRUE(backend.msr(first_bank + i)) << i;
  EXPECT_FALSE(backend.msr(first_bank + 4 * static_cast<std::uint32_t>(banks)));
}

// SDM 3B 14.2: IA32_APERF counts cycles of the core, IA32_MPERF those of its nominal frequency.
TEST(VirtualTime, TheCoreMayBeFasterThanTheTsc) {
  MachineClock clock;
  VirtualTime nominal{clock, 2'500'000}, faster{clock, 2'500'000, 3'600'000};
  for (VirtualTime* const time : {&nominal, &faster}) {
    time->pass(1000);
    EXPECT_EQ(time->ran(), 1000U);
  }
  EXPECT_EQ(nominal.core_ran(), 1000U);
  EXPECT_EQ(faster.core_ran(), 1440U);
}

}  // namespace
}  // namespace vmm::test
