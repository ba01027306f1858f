#include "soft/soft_port.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "fakes/fake_guest.hpp"

namespace vmm::test {
namespace {

constexpr std::uint64_t code_at = 0x40'0000, stack_top = 0x50'1000, idt_at = 0x60'0000, gdt_at = 0x60'1000,
                        handler_at = 0x40'0800, unmapped = 0x70'0000;
constexpr std::uint64_t rflags_if = vpmu::bit(9), rflags_rf = vpmu::bit(16);

/// A kernel in ring 0 with a stack, descriptor tables, and one handler for every exception.
class SoftPortRuns : public testing::Test {
 protected:
  SoftPortRuns() {
    guest_.map(code_at, vpmu::page_size);
    guest_.map(stack_top - vpmu::page_size, vpmu::page_size);
    guest_.map(idt_at, 2 * vpmu::page_size);
    guest_.store_word(gdt_at + 0x10, 0x00AF'9B00'0000'FFFF);
    guest_.store_word(gdt_at + 0x18, 0x00CF'9300'0000'FFFF);
    for (unsigned vector = 0; vector < 256; ++vector)
      guest_.store_word(idt_at + 16 * vector,
                        (handler_at & 0xFFFF) | 0x10ULL << 16 | 0x8EULL << 40 | (handler_at >> 16 & 0xFFFF) << 48);
    guest_.store_code(handler_at, {0xF4});  // hlt
    auto& sregs = guest_.port.special;
    sregs.gdt = {.base = gdt_at, .limit = 0x1F};
    sregs.idt = {.base = idt_at, .limit = 0xFFF};
    sregs.apic_base = 0xFEE0'0900;
    guest_.port.registers.rip = code_at;
    guest_.port.registers.rsp = stack_top;
  }
  SoftPort& begin(const std::vector<std::uint8_t>& code) {
    guest_.store_code(code_at, code);
    port_.emplace(guest_.memory, CpuidTable{}, SoftStart{.sregs = guest_.port.special, .regs = guest_.port.registers});
    return *port_;
  }
  /// The n-th word pushed on the empty stack.
  std::uint64_t pushed(unsigned n) { return guest_.load_word(stack_top - 8ULL * (n + 1)); }

  FakeGuest guest_;
  std::optional<SoftPort> port_;
};

TEST_F(SoftPortRuns, AnInstructionTakesATick) {
  SoftPort& port = begin({0x90, 0x90, 0x90, 0xF4});  // nop, nop, nop, hlt
  const auto exit = port.run();
  ASSERT_TRUE(exit);
  EXPECT_TRUE(std::holds_alternative<Hlt>(*exit)) << "nothing can wake it";
  EXPECT_EQ(*port.tsc(), 4U);
  EXPECT_EQ(port.unhalted_ticks(), 0U) << "nobody watched";
}

// SDM 3A 6.14: the frame of a fault; SDM 3B 17.3.1.1: with RF; SDM 3A 4.7: the error code of a write to a page that is
// not there.
TEST_F(SoftPortRuns, APageFaultIsDelivered) {
  SoftPort& port = begin({0x48, 0xA3, 0x00, 0x00, 0x70, 0, 0, 0, 0, 0});  // mov %rax, (unmapped)
  ASSERT_TRUE(port.run());
  EXPECT_EQ(port.regs()->rip, handler_at + 1);
  EXPECT_EQ(port.sregs()->cr2, unmapped);
  EXPECT_EQ(pushed(1), stack_top);
  EXPECT_EQ(pushed(2), 2U | rflags_rf);
  EXPECT_EQ(pushed(3), 0x10U);
  EXPECT_EQ(pushed(4), code_at);
  EXPECT_EQ(pushed(5), 2U) << "a write, not present";
}

// Their contents survive instructions that the port executes instead of the engine.
TEST_F(SoftPortRuns, HasX87AndVectorRegisters) {
  constexpr std::uint64_t osfxsr = vpmu::bit(9);
  guest_.port.special.cr4 |= osfxsr;
  // mov $5, %eax; movd %eax, %xmm0; cpuid; paddd %xmm0, %xmm0; movd %xmm0, %ecx; fld1; fstps -16(%rsp); stmxcsr
  // -12(%rsp); hlt
  SoftPort& port =
      begin({0xB8, 5,    0,    0,    0,    0x66, 0x0F, 0x6E, 0xC0, 0x0F, 0xA2, 0x66, 0x0F, 0xFE, 0xC0, 0x66,
             0x0F, 0x7E, 0xC1, 0xD9, 0xE8, 0xD9, 0x5C, 0x24, 0xF0, 0x0F, 0xAE, 0x5C, 0x24, 0xF4, 0xF4});
  const auto exit = port.run();
  ASSERT_TRUE(exit);
  EXPECT_TRUE(std::holds_alternative<Hlt>(*exit));
  EXPECT_EQ(port.regs()->rcx, 10U);
  EXPECT_EQ(pushed(1), 0x1F80ULL << 32 | 0x3F80'0000) << "the default MXCSR, and 1.0";
  EXPECT_EQ(*port.tsc(), 9U) << "each is an instruction";
}

// Instructions of 15 bytes, by prefixes: rsqrtss %xmm4, %xmm6 with 12 times F3, and cmpss with 11 of them.
TEST_F(SoftPortRuns, InstructionsAsLongAsTheyMayBe) {
  guest_.port.special.cr4 |= vpmu::bit(9);
  std::vector<std::uint8_t> code(12, 0xF3);
  code.insert(code.end(), {0x0F, 0x52, 0xF4});
  code.insert(code.end(), 11, 0xF3);
  code.insert(code.end(), {0x0F, 0xC2, 0xC1, 0xFF});  // cmpss $-1, %xmm1, %xmm0: 0 is 0
  code.insert(code.end(),
              {0x66, 0x0F, 0x7E, 0xC1, 0x66, 0x0F, 0x7E, 0xF2, 0xF4});  // movd %xmm0, %ecx; movd %xmm6, %edx; hlt
  SoftPort& port = begin(code);
  const auto exit = port.run();
  ASSERT_TRUE(exit);
  EXPECT_TRUE(std::holds_alternative<Hlt>(*exit));
  EXPECT_EQ(port.regs()->rip, code_at + code.size());
  EXPECT_EQ(port.regs()->rcx, 0xFFFF'FFFFU);
  EXPECT_EQ(port.regs()->rdx, 0x7F80'0000U) << "1 / sqrt(0)";
}

// An instruction that requires an aligned operand may access a device.
TEST_F(SoftPortRuns, ADeviceIsAlignedAsItsPageIs) {
  guest_.port.special.cr4 |= vpmu::bit(9);
  guest_.map_to(0xFEE0'0000, 0xFEE0'0000);
  SoftPort& port = begin({0xBB, 0, 0,    0xE0, 0xFE, 0x0F, 0x29, 0x83, 0x20, 0x03,
                          0,    0, 0x0F, 0x28, 0x93, 0x20, 0x03, 0,    0,    0xF4});  // movaps to and from the APIC
  const auto exit = port.run();
  ASSERT_TRUE(exit);
  EXPECT_TRUE(std::holds_alternative<Hlt>(*exit));
}

// SDM 3A 10.4.3.
TEST_F(SoftPortRuns, AnApicThatIsDisabledHasNoRegisters) {
  constexpr std::uint32_t version = 0x6'0014;
  guest_.map_to(0xFEE0'0000, 0xFEE0'0000);
  for (const bool enabled : {true, false}) {
    guest_.port.special.apic_base = enabled ? 0xFEE0'0900 : 0xFEE0'0100;
    SoftPort& port =
        begin({0xBB, 0, 0, 0xE0, 0xFE, 0x8B, 0x43, 0x30, 0xF4});  // mov $0xFEE00000, %ebx; mov 0x30(%rbx), %eax
    ASSERT_TRUE(port.run());
    EXPECT_EQ(port.regs()->rax == version, enabled) << port.regs()->rax;
  }
}

TEST_F(SoftPortRuns, AFetchFromNowhereFaults) {
  SoftPort& port = begin({0xB8, 0x00, 0x00, 0x70, 0x00, 0xFF, 0xE0});  // mov $unmapped, %eax; jmp *%rax
  ASSERT_TRUE(port.run());
  EXPECT_EQ(port.sregs()->cr2, unmapped);
  EXPECT_EQ(pushed(4), unmapped);
}

TEST_F(SoftPortRuns, DivisionByZeroIsDe) {
  guest_.store_code(handler_at + 16, {0xF4});
  guest_.store_word(idt_at,
                    ((handler_at + 16) & 0xFFFF) | 0x10ULL << 16 | 0x8EULL << 40 | (handler_at >> 16 & 0xFFFF) << 48);
  SoftPort& port = begin({0x31, 0xC9, 0xF7, 0xF1});  // xor %ecx, %ecx; div %ecx
  ASSERT_TRUE(port.run());
  EXPECT_EQ(port.regs()->rip, handler_at + 17);
}

TEST_F(SoftPortRuns, AFaultWithoutATableShutsDown) {
  guest_.port.special.idt.limit = 0;
  SoftPort& port = begin({0x0F, 0x0B});
  const auto exit = port.run();
  ASSERT_TRUE(exit);
  EXPECT_TRUE(std::holds_alternative<Shutdown>(*exit));
}

TEST_F(SoftPortRuns, ATimerWakesAHaltedVcpu) {
  SoftPort& port = begin({0xF4});
  const auto timer = port.timers()();
  ASSERT_TRUE(timer);
  ASSERT_TRUE((*timer)->arm_wall(std::chrono::microseconds{100}));
  const auto exit = port.run();
  ASSERT_TRUE(exit);
  EXPECT_TRUE(std::holds_alternative<Interrupted>(*exit));
  EXPECT_EQ(*port.tsc(), 1 + SoftPort::default_tsc_khz / 10 - 1) << "time has passed, though no instruction has run";
}

TEST_F(SoftPortRuns, PortsAreAnsweredOutside) {
  SoftPort& port = begin({0xE4, 0x60, 0xE6, 0x61, 0xF4});  // in $0x60, %al; out %al, $0x61; hlt
  const auto in = port.run();
  ASSERT_TRUE(in && std::holds_alternative<PortRead>(*in));
  EXPECT_EQ(std::get<PortRead>(*in).port, 0x60);
  std::get<PortRead>(*in).data[0] = std::byte{0x5A};
  const auto out = port.run();
  ASSERT_TRUE(out && std::holds_alternative<PortWrite>(*out));
  EXPECT_EQ(std::get<PortWrite>(*out).port, 0x61);
  EXPECT_EQ(std::get<PortWrite>(*out).data[0], std::byte{0x5A});
}

TEST_F(SoftPortRuns, AnMsrThatIsRefusedFaults) {
  SoftPort& port = begin({0xB9, 0x34, 0x12, 0, 0, 0x0F, 0x32});  // mov $0x1234, %ecx; rdmsr
  const auto exit = port.run();
  ASSERT_TRUE(exit && std::holds_alternative<MsrRead>(*exit));
  EXPECT_EQ(std::get<MsrRead>(*exit).index, 0x1234U);
  std::get<MsrRead>(*exit).reply.gp = 1;
  ASSERT_TRUE(port.run());
  EXPECT_EQ(port.regs()->rip, handler_at + 1);
  EXPECT_EQ(pushed(4), code_at + 5) << "RDMSR has not retired";
}

// SDM 2B STI: the next instruction still runs before an interrupt.
TEST_F(SoftPortRuns, AnInterruptWaitsForTheInstructionBehindSti) {
  SoftPort& port = begin({0xFB, 0x90, 0x90, 0xF4});
  const std::uint32_t enabled = 0x1FF;
  kvm_lapic_state apic = *port.lapic();
  std::memcpy(apic.regs + 0xF0, &enabled, sizeof enabled);
  port.set_lapic(apic);
  ASSERT_TRUE(port.interrupt(0, 0x40));
  ASSERT_TRUE(port.run());
  EXPECT_EQ(port.regs()->rip, handler_at + 1);
  EXPECT_EQ(pushed(4), code_at + 2);
  EXPECT_NE(pushed(2) & rflags_if, 0U);
}

// SDM 3B 17.3.1.4: a trap after each instruction, also after those that exit to the VMM.
TEST_F(SoftPortRuns, AGuestThatStepsTrapsBehindAnInstructionThatExits) {
  guest_.port.registers.rflags = 0x102;
  SoftPort& port = begin({0x0F, 0x32, 0x90});  // rdmsr, nop
  const auto exit = port.run();
  ASSERT_TRUE(exit && std::holds_alternative<MsrRead>(*exit));
  ASSERT_TRUE(port.run());
  EXPECT_EQ(port.regs()->rip, handler_at + 1);
  EXPECT_EQ(pushed(4), code_at + 2);
  EXPECT_NE(port.debugregs()->dr6 & vpmu::bit(14), 0U);
}

// A system instruction in ring 3 stores with the privilege of ring 3.
TEST_F(SoftPortRuns, SystemInstructionsStoreWithTheProgramsPrivilege) {
  const std::uint64_t user_code = 0x80'0000;
  guest_.map(user_code, vpmu::page_size, {.is_user = true});
  guest_.store_code(user_code, {0x0F, 0x01, 0x0C, 0x25, 0x00, 0x00, 0x60, 0x00});  // sidt (idt_at)
  guest_.port.registers.rip = user_code;
  guest_.port.registers.rsp = user_code + 0x800;
  guest_.port.special.tr.base = gdt_at + 0x100;
  guest_.store_word(gdt_at + 0x104, stack_top);  // RSP0
  guest_.enter_ring(3);
  const std::uint64_t before = guest_.load_word(idt_at);
  SoftPort& port = begin({0x90});
  ASSERT_TRUE(port.run());
  EXPECT_EQ(port.sregs()->cr2, idt_at);
  EXPECT_EQ(guest_.load_word(idt_at), before);
}

/// Instructions in random order, and sometimes random bytes.
std::vector<std::uint8_t> random_code(std::mt19937_64& random) {
  static const std::vector<std::vector<std::uint8_t>> pieces{
      {0x90},              // nop
      {0x48, 0xFF, 0xC0},  // inc %rax
      {0x50},
      {0x58},  // push, pop %rax
      {0x9C},
      {0x9D},  // pushf, popf
      {0xFA},
      {0xFB},
      {0xF4},  // cli, sti, hlt
      {0x0F, 0xA2},
      {0x0F, 0x31},  // cpuid, rdtsc
      {0x0F, 0x32},
      {0x0F, 0x30},
      {0x0F, 0x33},  // rdmsr, wrmsr, rdpmc
      {0x0F, 0x20, 0xD0},
      {0x0F, 0x22, 0xD8},  // mov %cr2, %rax; mov %rax, %cr3
      {0x0F, 0x23, 0xC0},
      {0x0F, 0x23, 0xF8},  // mov %rax, %dr0; mov %rax, %dr7
      {0xCC},
      {0xCD, 0x40},
      {0x48, 0xCF},
      {0x48, 0xCB},  // int3, int 40H, iretq, lretq
      {0x0F, 0x01, 0x10},
      {0x0F, 0x01, 0x18},  // lgdt, lidt (%rax)
      {0x0F, 0x00, 0xD8},
      {0x8E, 0xD0},
      {0x8E, 0xE0},  // ltr, mov to %ss, %fs
      {0xB8, 0x10, 0, 0, 0},
      {0xB8, 0x18, 0, 0, 0},
      {0xB8, 0, 0, 0x60, 0},                             // mov $selector or $idt, %eax
      {0x48, 0xA3, 0x40, 0x03, 0xE0, 0xFE, 0, 0, 0, 0},  // mov %rax, (APIC)
      {0xF3, 0xAA},
      {0x48, 0xF7, 0xF1},  // rep stosb, div %rcx
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
TEST_F(SoftPortRuns, RandomCodeDoesNoHarm) {
  std::map<std::string, std::uint64_t> totals;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::mt19937_64 random{seed};
    guest_.port.special.tr.base = seed % 5 == 0 ? random() : idt_at;
    guest_.port.registers.rflags = 2 | (random() & 0x100);
    guest_.store_code(handler_at, random_code(random));
    if (seed % 2 == 1) guest_.store_word(idt_at + 16 * (random() % 32), random());
    if (seed % 7 == 1) guest_.store_word(gdt_at + 0x18, random());
    SoftPort& port = begin(random_code(random));
    port.stop_after(2000);
    for (unsigned runs = 0; runs < 100; ++runs) {
      const auto exit = port.run();
      ASSERT_TRUE(exit);
      ++totals["exits"];
      const bool goes_on = std::holds_alternative<PortRead>(*exit) || std::holds_alternative<PortWrite>(*exit) ||
                           std::holds_alternative<MsrRead>(*exit) || std::holds_alternative<MsrWrite>(*exit) ||
                           std::holds_alternative<CounterRead>(*exit);
      if (!goes_on) break;
    }
    port.visit_statistics([&](std::string_view name, std::uint64_t value) { totals[std::string{name}] += value; });
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
  apic.write(0xB0, 0);
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

}  // namespace
}  // namespace vmm::test
