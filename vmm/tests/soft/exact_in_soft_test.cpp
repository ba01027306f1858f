// The source exact without KVM: the engine runs and counts up to the very instruction at which something is due.
#include <gtest/gtest.h>

#include <cstring>
#include <string_view>

#include "fakes/fake_guest.hpp"
#include "fakes/guest_code.hpp"
#include "pmu/pmu_vcpu.hpp"
#include "soft/soft_port.hpp"

namespace vmm::test {
namespace {

constexpr std::uint64_t code = 0x40'0000, handler = 0x40'0800, stack = 0x50'0000, tables = 0x60'0000;
constexpr std::uint32_t msr_global_ctrl = 0x38F, msr_perfevtsel = 0x186, msr_pmc = 0xC1, msr_tsc_deadline = 0x6E0;
constexpr std::uint64_t instructions_retired = 0x43'00C0;
constexpr unsigned timer_vector = 0xEC;

/// Counts instructions in a loop of `rounds` iterations with interrupts on; the last instruction is `out 0x80`.
class CountedLoop : public GuestCode {
 public:
  explicit CountedLoop(std::uint64_t rounds) {
    write_msr(msr_perfevtsel, instructions_retired);
    write_msr(msr_global_ctrl, 1);
    move(rdi, rounds);
    add({0xFB});                          // sti
    add({0x48, 0xFF, 0xCF, 0x75, 0xFB});  // dec rdi; jnz to the dec
    add({0xE6, 0x80});
  }
  /// Instructions that are counted besides the loop. After a reset PERFEVTSEL alone starts the counter (SDM 3A table
  /// 9-1). So these are the write of GLOBAL_CTRL (four instructions), a MOV and STI. OUT has not retired when the VMM
  /// sees it.
  static constexpr std::uint64_t outside = 6;
};

/// The same as 32-bit code, with interrupts off.
class CountedLoopOf32Bits : public GuestCode {
 public:
  explicit CountedLoopOf32Bits(std::uint32_t rounds) {
    write_msr32(msr_perfevtsel, instructions_retired);
    write_msr32(msr_global_ctrl, 1);
    move32(7, rounds);
    add({0x4F, 0x75, 0xFD});  // dec edi; jnz to the dec
    add({0xE6, 0x80});
  }
  static constexpr std::uint64_t outside = 5;

 private:
  void move32(std::uint8_t reg, std::uint64_t value) {
    add({static_cast<std::uint8_t>(0xB8 + reg)});
    add_word(value, 4);
  }
  void write_msr32(std::uint32_t index, std::uint64_t value) {
    move32(rcx, index);
    move32(rax, value);
    move32(rdx, value >> 32);
    add({0x0F, 0x30});
  }
};

class ExactInSoft : public testing::Test {
 protected:
  void begin(std::uint64_t rounds) { begin_with(CountedLoop{rounds}); }
  void begin_with(const GuestCode& loop) {
    guest_.map(code, vpmu::page_size);
    guest_.map(stack, 2 * vpmu::page_size);
    guest_.map(tables, 2 * vpmu::page_size);
    guest_.store(code, std::as_bytes(std::span{loop.bytes()}));
    guest_.store_code(handler, {0x0F, 0x31, 0xE6, 0x81});  // rdtsc; out 0x81
    guest_.store_word(tables + 0x1010, 0x00AF'9B00'0000'FFFF);
    guest_.store_word(tables + 0x1018, 0x00CF'9300'0000'FFFF);
    guest_.store_word(tables + 16 * timer_vector,
                      (handler & 0xFFFF) | 0x10ULL << 16 | 0x8EULL << 40 | (handler >> 16 & 0xFFFF) << 48);
    auto& sregs = guest_.port.special;
    sregs.gdt = {.base = tables + 0x1000, .limit = 0x1F};
    sregs.idt = {.base = tables, .limit = 0xFFF};
    sregs.apic_base = 0xFEE0'0900;
    guest_.port.registers.rip = code;
    guest_.port.registers.rsp = stack + 0x1000;
    port_.emplace(guest_.memory, CpuidTable{}, SoftStart{.sregs = sregs, .regs = guest_.port.registers});
    const PmuVcpuConfig config{.pmu = {.generation = vpmu::Generation::skylake},
                               .source = "exact",
                               .source_services = {.make_timer = port_->timers()}};
    auto vcpu = PmuVcpu::create(config, *port_, guest_.memory, log_);
    ASSERT_TRUE(vcpu);
    vcpu_ = std::move(*vcpu);
  }
  void set_deadline(std::uint64_t tick) {
    kvm_lapic_state apic = *port_->lapic();
    const std::uint32_t enabled = 0x1FF, deadline_mode = 0x4'0000 | timer_vector;
    std::memcpy(apic.regs + 0xF0, &enabled, sizeof enabled);
    std::memcpy(apic.regs + 0x320, &deadline_mode, sizeof deadline_mode);
    port_->set_lapic(apic);
    ASSERT_TRUE(port_->set_msr(msr_tsc_deadline, tick));
  }
  /// Runs the guest to its OUT, and returns the port; 0 if it does not get there.
  std::uint16_t run() {
    constexpr unsigned most_exits = 1000;
    for (unsigned n = 0; n < most_exits; ++n) {
      const auto exit = vcpu_->run();
      if (!exit || std::holds_alternative<TimeUp>(*exit)) return 0;
      if (const auto* out = std::get_if<PortWrite>(&*exit)) return out->port;
    }
    return 0;
  }
  std::uint64_t statistic(std::string_view wanted) {
    std::uint64_t found = 0;
    vcpu_->visit_statistics(
        [&](std::string_view name, std::uint64_t value) { found = name == wanted ? value : found; });
    return found;
  }
  std::uint64_t counted() { return vcpu_->pmu().rdmsr(vpmu::MsrIndex{msr_pmc}).value; }

  FakeGuest guest_;
  Log log_{[](LogLevel, std::string_view) {}, LogLevel::error};
  std::optional<SoftPort> port_;
  std::unique_ptr<PmuVcpu> vcpu_;
};

TEST_F(ExactInSoft, GoesOnWhileNothingIsDue) {
  constexpr std::uint64_t rounds = 3'000'000;
  begin(rounds);
  ASSERT_EQ(run(), 0x80);
  EXPECT_EQ(counted(), 2 * rounds + CountedLoop::outside);
  EXPECT_LT(statistic("pmu.exact.handed_over"), 10U) << "a burst has 50,000 instructions";
}

TEST_F(ExactInSoft, ATimerInterruptsAtItsTick) {
  constexpr std::uint64_t tick = 1'234'567;
  begin(1ULL << 40);
  set_deadline(tick);
  ASSERT_EQ(run(), 0x81) << "the handler's";
  EXPECT_GE(port_->regs()->rax, tick);
  EXPECT_LT(port_->regs()->rax, tick + 10) << "what is under way, the entry and RDTSC itself";
}

TEST_F(ExactInSoft, AKickAndTheEndOfTimeComeThrough) {
  begin(1ULL << 40);
  port_->stop_after(2'000'000);
  *port_->kick_target() = 1;
  const auto first = vcpu_->run();
  ASSERT_TRUE(first);
  EXPECT_TRUE(std::holds_alternative<Interrupted>(*first));
  EXPECT_EQ(run(), 0);
  EXPECT_LT(*port_->tsc(), 2'100'000U);
}

// The engine runs code of other modes, too.
TEST_F(ExactInSoft, Counts32BitCode) {
  constexpr std::uint32_t rounds = 1'000'000;
  guest_.port.special.cs.l = 0;
  guest_.port.special.cs.db = 1;
  begin_with(CountedLoopOf32Bits{rounds});
  ASSERT_EQ(run(), 0x80);
  EXPECT_EQ(counted(), 2 * rounds + CountedLoopOf32Bits::outside);
  EXPECT_LT(statistic("pmu.exact.handed_over"), 100U);
}

}  // namespace
}  // namespace vmm::test
