// The source exact without KVM: the engine runs and counts up to the very instruction at which something is due.
#include <gtest/gtest.h>

#include <cstring>
#include <string_view>

#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/fake_guest.hpp"
#include "fakes/guest_code.hpp"
#include "pmu/pmu_vcpu.hpp"
#include "soft/soft_backend.hpp"
#include "sources/turns.hpp"
#include "support/x86.hpp"
#include "vpmu/msr.hpp"

namespace vmm::test::exact_in_soft {
namespace {

constexpr std::uint64_t code = 0x40'0000, handler = 0x40'0800, stack = 0x50'0000, tables = 0x60'0000;
constexpr std::uint64_t instructions_retired = 0x43'00C0;
constexpr unsigned timer_vector = 0xEC;

/// Code that begins to count.
class CountingCode : public GuestCode {
 protected:
  explicit CountingCode(std::uint64_t event = instructions_retired) {
    write_msr(vpmu::msr::IA32_PERFEVTSEL0.value(), event);
    write_msr(vpmu::msr::IA32_PERF_GLOBAL_CTRL.value(), 1);
  }
};

/// Counts instructions in a loop of `rounds` iterations with interrupts on; the last instruction is `out 0x80`.
class CountedLoop : public CountingCode {
 public:
  explicit CountedLoop(std::uint64_t rounds) {
    move(rdi, rounds);
    add(X86("sti"));
    add(X86("1: dec %rdi; jne 1b"));
    add(X86("out %al, $0x80"));
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
    write_msr32(vpmu::msr::IA32_PERFEVTSEL0.value(), instructions_retired);
    write_msr32(vpmu::msr::IA32_PERF_GLOBAL_CTRL.value(), 1);
    move32(7, rounds);
    add(X86_32("1: dec %edi; jne 1b"));
    add(X86("out %al, $0x80"));
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
    add(X86("wrmsr"));
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
    guest_.store_code(handler, X86("rdtsc; out %al, $0x81"));
    guest_.store_word(tables + 0x1010, 0x00AF'9B00'0000'FFFF);
    guest_.store_word(tables + 0x1018, 0x00CF'9300'0000'FFFF);
    guest_.store_word(tables + 16 * timer_vector,
                      (handler & 0xFFFF) | 0x10ULL << 16 | 0x8EULL << 40 | (handler >> 16 & 0xFFFF) << 48);
    auto& sregs = guest_.backend.special;
    sregs.gdt = {.base = tables + 0x1000, .limit = 0x1F};
    sregs.idt = {.base = tables, .limit = 0xFFF};
    sregs.apic_base = 0xFEE0'0900;
    guest_.backend.registers.rip = code;
    guest_.backend.registers.rsp = stack + 0x1000;
    backend_.emplace(guest_.memory, CpuidTable{}, SoftStart{.sregs = sregs, .regs = guest_.backend.registers});
    const PmuVcpuConfig config{.pmu = {.generation = vpmu::Generation::skylake},
                               .source = "exact",
                               .source_services = {.make_timer = backend_->timers()}};
    auto vcpu = PmuVcpu::create(config, *backend_, guest_.memory, log_);
    ASSERT_TRUE(vcpu);
    vcpu_ = std::move(*vcpu);
  }
  void set_deadline(std::uint64_t tick) {
    kvm_lapic_state apic = *backend_->lapic();
    const std::uint32_t enabled = 0x1FF, deadline_mode = 0x4'0000 | timer_vector;
    std::memcpy(apic.regs + 0xF0, &enabled, sizeof enabled);
    std::memcpy(apic.regs + 0x320, &deadline_mode, sizeof deadline_mode);
    backend_->set_lapic(apic);
    ASSERT_TRUE(backend_->set_msr(vpmu::msr::IA32_TSC_DEADLINE.value(), tick));
  }
  /// Runs the guest to its OUT, and returns the port; 0 if it does not get there.
  std::uint16_t run() {
    constexpr unsigned max_exits = 1000;
    for (unsigned n = 0; n < max_exits; ++n) {
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
  std::uint64_t counted() { return vcpu_->pmu().rdmsr(vpmu::MsrIndex{vpmu::msr::IA32_PMC0.value()}).value; }

  FakeGuest guest_;
  Log log_{[](LogLevel, std::string_view) {}, LogLevel::error};
  std::optional<SoftBackend> backend_;
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
  EXPECT_GE(backend_->regs()->rax, tick);
  EXPECT_LT(backend_->regs()->rax, tick + 10) << "what is under way, the entry and RDTSC itself";
}

TEST_F(ExactInSoft, AKickAndTheEndOfTimeComeThrough) {
  begin(1ULL << 40);
  backend_->stop_after(2'000'000);
  *backend_->kick_target() = 1;
  const auto first = vcpu_->run();
  ASSERT_TRUE(first);
  EXPECT_TRUE(std::holds_alternative<Interrupted>(*first));
  EXPECT_EQ(run(), 0);
  EXPECT_LT(*backend_->tsc(), 2'100'000U);
}

/// A PMI handler's write of LVTPC, while a counter counts.
class UnmaskingCode : public CountingCode {
 public:
  UnmaskingCode() {
    write_msr(vpmu::msr::IA32_X2APIC_LVT_PMI.value(), 0x400);
    add(X86("out %al, $0x80"));
  }
};

TEST_F(ExactInSoft, AHandlersWritesOfItsApicTakeNoRunOfThePort) {
  begin_with(UnmaskingCode{});
  kvm_sregs sregs = *backend_->sregs();
  sregs.apic_base |= 0x400;  // x2APIC mode
  ASSERT_TRUE(backend_->set_sregs(sregs));
  ASSERT_EQ(run(), 0x80);
  EXPECT_EQ(*backend_->msr(vpmu::msr::IA32_X2APIC_LVT_PMI.value()), 0x1'0400U)
      << "masked while software has the APIC off: SDM 3A 10.4.7.2";
  EXPECT_GE(statistic("pmu.exact.in_place"), 1U);
  EXPECT_EQ(statistic("pmu.exact.left.wrmsr"), 0U);
}

/// Counts loads that miss the second level TLB: a load, something, and the same load again. RBX has the CR3, RCX and
/// RDX the same with PCIDs 0 and 1 and bit 63.
class LoadedTwice : public CountingCode {
 public:
  LoadedTwice(const std::vector<std::uint8_t>& between, std::uint64_t root) : CountingCode{stlb_miss_loads} {
    move(rsi, stack);
    move(rbx, root);
    move(rcx, root | x86::cr3::KEEPS::mask);
    move(rdx, root | 1 | x86::cr3::KEEPS::mask);
    add(X86("mov (%rsi), %rax"));
    add(between);
    add(X86("mov (%rsi), %rax; out %al, $0x80"));
  }

 private:
  static constexpr std::uint64_t stlb_miss_loads = 0x43'11D0;  // perfmon, Skylake: MEM_INST_RETIRED.STLB_MISS_LOADS
};

// SDM 3A 4.10.4.1.
TEST_F(ExactInSoft, TheModelsTlbLosesWhatAnInstructionInvalidates) {
  struct Row {
    std::vector<std::uint8_t> between;
    bool pcids{};
    std::uint64_t misses{};
  };
  for (const Row& row :
       {Row{X86("nop"), false, 1}, Row{X86("invlpg (%rsi)"), false, 2}, Row{X86("invlpg 0xfff(%rsi)"), true, 2},
        Row{X86("invlpg 0x1000(%rsi)"), false, 1}, Row{X86("mov %rbx, %cr3"), false, 2},
        Row{X86("mov %rbx, %cr3"), true, 2}, Row{X86("mov %rcx, %cr3"), true, 1}, Row{X86("mov %rdx, %cr3"), true, 2},
        Row{X86("mov %rdx, %cr3; mov %rcx, %cr3"), true, 1}, Row{X86("mov %rdx, %cr3; mov %rbx, %cr3"), true, 2}}) {
    auto& sregs = guest_.backend.special;
    sregs.cr4 = row.pcids ? sregs.cr4 | x86::cr4::PCIDE::mask : sregs.cr4 & ~x86::cr4::PCIDE::mask;
    begin_with(LoadedTwice{row.between, sregs.cr3});
    ASSERT_EQ(run(), 0x80);
    EXPECT_EQ(counted(), row.misses) << testing::PrintToString(row.between) << ", PCIDs " << row.pcids;
    EXPECT_EQ(statistic("pmu.exact.left.mov") + statistic("pmu.exact.left.invlpg"), 0U);
  }
}

/// Rounds that each raise #PF, in a handler that returns behind the instruction; twice, with an OUT after each.
class FaultingLoop : public CountingCode {
 public:
  explicit FaultingLoop(std::uint64_t rounds) {
    move(rsi, not_mapped);
    for (unsigned n = 0; n < 2; ++n) {
      move(rdi, rounds);
      add(X86("1: mov (%rsi), %rax; dec %rdi; jne 1b"));
      add(X86("out %al, $0x80"));
    }
  }
  static std::vector<std::uint8_t> handler() { return X86("addq $3, 8(%rsp); add $8, %rsp; iretq"); }
  static constexpr std::uint64_t not_mapped = 0x7000'0000, outside = 6, in_each_round = 2 + 3;
};

class FaultsInSoft : public ExactInSoft {
 protected:
  static constexpr std::uint64_t rounds = 5000, pf_handler = handler + 0x40;
  void begin_faulting() {
    begin_with(FaultingLoop{rounds});
    guest_.store_word(tables + 16 * x86::vector::PF,
                      (pf_handler & 0xFFFF) | 0x10ULL << 16 | 0x8EULL << 40 | (pf_handler >> 16 & 0xFFFF) << 48);
    guest_.store_code(pf_handler, FaultingLoop::handler());
  }
};

// The back end delivers a fault at which the engine has stopped, and the engine goes on with what it knows.
TEST_F(FaultsInSoft, AreCountedToTheInstruction) {
  begin_faulting();
  ASSERT_EQ(run(), 0x80);
  EXPECT_EQ(counted(), FaultingLoop::in_each_round * rounds + FaultingLoop::outside);
  EXPECT_EQ(statistic("pmu.step.faults"), rounds);
  EXPECT_EQ(statistic("pmu.step.lost"), 0U);
  EXPECT_EQ(backend_->sregs()->cr2, FaultingLoop::not_mapped);
}

// The engine is told what happens to memory while the back end has the vCPU: it does not look at all code again.
TEST_F(FaultsInSoft, SomebodyChangesCodeMeanwhile) {
  begin_faulting();
  ASSERT_EQ(run(), 0x80);
  ASSERT_EQ(backend_->regs()->r15, 0U);
  guest_.store_code(pf_handler, X86("inc %r15; addq $3, 8(%rsp); add $8, %rsp; iretq"));
  backend_->written(vpmu::GuestPhysical{guest_.entry(pf_handler) & ~0xFFFULL});
  ASSERT_EQ(run(), 0x80);
  EXPECT_EQ(backend_->regs()->r15, rounds);
}

class CountingFollower final : public MemoryFollower {
 public:
  void written(vpmu::GuestPhysical /*page*/) override { ++told; }
  void written_unseen() override { ++told; }
  void lost(const vpmu::exec::LostByInstruction& /*lost*/) override { ++told; }
  unsigned told{};
};

// A vCPU's source goes before its back end, and other vCPUs may still write.
TEST_F(FaultsInSoft, ASourceThatIsGoneIsToldNothing) {
  begin_faulting();
  ASSERT_EQ(run(), 0x80);
  CountingFollower follower;
  vcpu_.reset();
  const vpmu::GuestPhysical page{guest_.entry(pf_handler) & ~0xFFFULL};
  backend_->written(page);
  ASSERT_TRUE(backend_->tell(&follower));
  backend_->written(page);
  EXPECT_EQ(follower.told, 1U);
  ASSERT_TRUE(backend_->tell(nullptr));
  backend_->written(page);
  EXPECT_EQ(follower.told, 1U);
}

/// Reads at RSI, maps another page there, lets the TLB lose it while nothing is counted, and reads again.
class RemappingCode : public CountingCode {
 public:
  RemappingCode(std::uint64_t at, std::uint64_t entry_at, std::uint64_t entry) {
    move(rsi, at);
    move(rdi, entry_at);
    move(rbx, entry);
    add(X86("mov (%rsi), %rbp; mov %rbx, (%rdi)"));
    write_msr(vpmu::msr::IA32_PERF_GLOBAL_CTRL.value(), 0);
    move(rcx, Turns::max_pause);  // after which the back end runs the guest
    add(X86("1: dec %rcx; jne 1b; invlpg (%rsi)"));
    write_msr(vpmu::msr::IA32_PERF_GLOBAL_CTRL.value(), 1);
    add(X86("nop; nop; mov (%rsi), %rdx; out %al, $0x80"));
  }
};

// SDM 3A 4.10.4.1.
TEST_F(ExactInSoft, TheEngineLosesWhatTheBackEndsInstructionInvalidates) {
  constexpr std::uint64_t page = 0x71'0000, other = page + vpmu::page_size,
                          table = 0x80'0000;  // each at its own place in the engine's TLB
  guest_.map(page, 2 * vpmu::page_size);
  guest_.store_word(page, 1);
  guest_.store_word(other, 2);
  const auto next = [this](std::uint64_t at, unsigned shift) {
    return guest_.ram.read_word(vpmu::GuestPhysical{at + (page >> shift & 0x1FF) * 8}, 8).value() & ~0xFFFULL;
  };
  guest_.map_to(table, next(next(next(guest_.backend.special.cr3, 39), 30), 21));
  begin_with(RemappingCode{page, table + (page >> 12 & 0x1FF) * 8, guest_.entry(other)});
  ASSERT_EQ(run(), 0x80);
  EXPECT_EQ(backend_->regs()->rbp, 1U);
  EXPECT_EQ(backend_->regs()->rdx, 2U);
  EXPECT_EQ(statistic("pmu.exact.entries"), 2U);
}

/// STI and SWAPGS in a loop; RDX has the base of GS.
class KernelLoop : public CountingCode {
 public:
  explicit KernelLoop(std::uint64_t rounds) {
    write_msr(vpmu::msr::IA32_KERNEL_GS_BASE.value(), other_base);
    move(rdi, rounds);
    add(X86("1: swapgs; cli; sti; dec %rdi; jne 1b"));
    add(X86("mov %gs:0, %rdx; out %al, $0x80"));
  }
  static constexpr std::uint64_t other_base = stack, outside = 10, in_each_round = 5;
};

// SDM 2B STI, SWAPGS.
TEST_F(ExactInSoft, CountsStiAndSwapgsInTheEngine) {
  constexpr std::uint64_t rounds = 1001;
  begin_with(KernelLoop{rounds});
  guest_.store_word(stack, 77);
  ASSERT_EQ(run(), 0x80);
  EXPECT_EQ(counted(), KernelLoop::in_each_round * rounds + KernelLoop::outside);
  EXPECT_EQ(backend_->regs()->rdx, 77U);
  EXPECT_EQ(backend_->sregs()->gs.base, KernelLoop::other_base) << "an odd number of times";
  EXPECT_EQ(*backend_->msr(vpmu::msr::IA32_KERNEL_GS_BASE.value()), 0U);
  EXPECT_LT(statistic("pmu.exact.in_place"), 10U);
}

/// Waits with interrupts off until the deadline is over; then STI and two NOPs.
class WaitingCode : public CountingCode {
 public:
  WaitingCode() {
    move(rdi, 1000);
    add(X86("1: dec %rdi; jne 1b"));
    add(X86("sti; nop"));
    interrupted_at = size();
    add(X86("nop; out %al, $0x80"));
  }
  std::uint64_t interrupted_at{};
};

// The shadow of STI is left to the back end where something waits: the timer comes behind the next instruction.
TEST_F(ExactInSoft, AnInterruptThatWaitsComesBehindTheShadowOfSti) {
  const WaitingCode waiting;
  begin_with(waiting);
  set_deadline(100);
  ASSERT_EQ(run(), 0x81);
  EXPECT_EQ(guest_.load_word(stack + 0x1000 - 40), code + waiting.interrupted_at);
}

// The engine runs code of other modes, too.
TEST_F(ExactInSoft, Counts32BitCode) {
  constexpr std::uint32_t rounds = 1'000'000;
  guest_.backend.special.cs.l = 0;
  guest_.backend.special.cs.db = 1;
  begin_with(CountedLoopOf32Bits{rounds});
  ASSERT_EQ(run(), 0x80);
  EXPECT_EQ(counted(), 2 * rounds + CountedLoopOf32Bits::outside);
  EXPECT_LT(statistic("pmu.exact.handed_over"), 100U);
}

}  // namespace
}  // namespace vmm::test::exact_in_soft
