#include "kvm/vcpu.hpp"

#include <gtest/gtest.h>

#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "exec/tests/fixtures/assembled.hpp"
#include "kvm/kick.hpp"
#include "kvm/kvm_vcpu.hpp"
#include "kvm/msr_filter.hpp"
#include "support/x86.hpp"
#include "vcpu/kvm_backend.hpp"
#include "vcpu/vector_registers.hpp"

namespace vmm {
namespace {

using test::KvmVcpu, test::code_at;
using vpmu::GuestPhysical;

TEST_F(KvmVcpu, PortReadGetsTheAnswerThatWasPutIntoTheExit) {
  load(X86("in $0x77, %al; out %al, $0x78"));
  const auto in = run();
  const auto* read = std::get_if<PortRead>(&in);
  ASSERT_NE(read, nullptr);
  EXPECT_EQ(read->port, 0x77);
  EXPECT_EQ(read->width, 1);
  read->data[0] = std::byte{0x42};
  const auto out = run();
  const auto* write = std::get_if<PortWrite>(&out);
  ASSERT_NE(write, nullptr);
  EXPECT_EQ(write->port, 0x78);
  EXPECT_EQ(write->data[0], std::byte{0x42});
}

TEST_F(KvmVcpu, MmioOutsideRamComesToUs) {
  load(X86("mov $0xD0000000, %ecx; mov $0x11223344, %eax; mov %eax, (%rcx); mov (%rcx), %edx; out %al, $0x80"));
  const auto store = run();
  const auto* write = std::get_if<MmioWrite>(&store);
  ASSERT_NE(write, nullptr);
  EXPECT_EQ(write->at, GuestPhysical{0xD0000000});
  ASSERT_EQ(write->data.size(), 4U);
  EXPECT_EQ(write->data[3], std::byte{0x11});
  const auto load_exit = run();
  const auto* read = std::get_if<MmioRead>(&load_exit);
  ASSERT_NE(read, nullptr);
  read->data[0] = std::byte{0x99};
  (void)run();
  EXPECT_EQ(vcpu_->regs()->rdx & 0xFFU, 0x99U);
}

// A store that crosses two pages without memory makes two exits.
TEST_F(KvmVcpu, AnAccessInPiecesGoesOnWithAnotherExit) {
  load(X86("mov $0xD0000FFE, %ecx; mov $0x11223344, %eax; mov %eax, (%rcx); out %al, $0x80"));
  const auto is_piece = [](const Exit& exit, std::uint64_t at) {
    const auto* write = std::get_if<MmioWrite>(&exit);
    return write != nullptr && write->at == GuestPhysical{at} && write->data.size() == 2;
  };
  ASSERT_TRUE(is_piece(run(), 0xD000'0FFE));
  const auto second = vcpu_->complete_exit();
  ASSERT_TRUE(second && *second);
  EXPECT_TRUE(is_piece(**second, 0xD000'1000));
  const auto none = vcpu_->complete_exit();
  ASSERT_TRUE(none);
  EXPECT_FALSE(*none);
  EXPECT_EQ(rip(), code_at.value() + 12);
}

// The same through the port: completing the first exit must not lose the second.
TEST_F(KvmVcpu, APieceComesOutOfTheNextRun) {
  load(X86("mov $0xD0000FFE, %ecx; mov $0x11223344, %eax; mov %eax, (%rcx); out %al, $0x80"));
  auto port = KvmBackend::create(*vm_, *vcpu_);
  ASSERT_TRUE(port);
  const auto first = port->run();
  ASSERT_TRUE(first && std::holds_alternative<MmioWrite>(*first));
  ASSERT_TRUE(port->complete_exit());
  ASSERT_TRUE(port->complete_exit()) << "once more: the piece waits";
  const auto second = port->run();
  ASSERT_TRUE(second);
  const auto* write = std::get_if<MmioWrite>(&*second);
  ASSERT_NE(write, nullptr);
  EXPECT_EQ(write->at, GuestPhysical{0xD000'1000});
  const auto third = port->run();
  ASSERT_TRUE(third);
  EXPECT_TRUE(std::holds_alternative<PortWrite>(*third));
}

TEST_F(KvmVcpu, FilteredMsrReadRetiresWhenTheExitIsCompleted) {
  const std::array ranges{MsrRange{.first = 0x38F, .count = 1}};
  const auto filter = MsrFilter::create(ranges);
  ASSERT_TRUE(vm_->set_msr_filter(filter->native()));
  load(X86("mov $0x38F, %ecx; rdmsr; hlt"));
  const auto exit = run();
  const auto* read = std::get_if<MsrRead>(&exit);
  ASSERT_NE(read, nullptr);
  EXPECT_EQ(read->index, 0x38FU);
  EXPECT_EQ(read->reason, MsrReason::filter);
  EXPECT_EQ(rip(), code_at.value() + 5);
  read->reply.data = 0x70000000F;
  ASSERT_TRUE(vcpu_->complete_exit());
  EXPECT_EQ(rip(), code_at.value() + 7);
  EXPECT_EQ(rax(), 0xFU);
  EXPECT_EQ(vcpu_->regs()->rdx, 7U);
}

TEST_F(KvmVcpu, FilteredMsrWriteCarriesItsValueAndMayFault) {
  const std::array ranges{MsrRange{.first = 0x38F, .count = 1}};
  const auto filter = MsrFilter::create(ranges);
  ASSERT_TRUE(vm_->set_msr_filter(filter->native()));
  load(X86("mov $0x38F, %ecx; mov $5, %eax; xor %edx, %edx; wrmsr"));
  const auto exit = run();
  const auto* write = std::get_if<MsrWrite>(&exit);
  ASSERT_NE(write, nullptr);
  EXPECT_EQ(write->value, 5U);
  write->reply.gp = 1;
  EXPECT_TRUE(std::holds_alternative<Shutdown>(run())) << "#GP without an IDT is a triple fault";
}

TEST_F(KvmVcpu, BreakpointStopsBeforeItsInstruction) {
  load(X86("nop; nop; mov $7, %eax; hlt"));
  kvm_guest_debug debug{};
  debug.control = KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP;
  debug.arch.debugreg[0] = code_at.value() + 2;
  debug.arch.debugreg[7] = 0x402;
  ASSERT_TRUE(vcpu_->set_guest_debug(debug));
  const auto exit = run();
  const auto* stop = std::get_if<Debug>(&exit);
  ASSERT_NE(stop, nullptr);
  EXPECT_EQ(stop->pc, code_at.value() + 2);
  EXPECT_NE(rax(), 7U);
}

TEST_F(KvmVcpu, SingleStepAdvancesOneInstruction) {
  load(X86("nop; mov $7, %eax; hlt"));
  for (const std::uint64_t length : {1U, 6U}) {
    kvm_guest_debug debug{};
    debug.control = KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_SINGLESTEP;
    ASSERT_TRUE(vcpu_->set_guest_debug(debug));
    ASSERT_TRUE(std::holds_alternative<Debug>(run()));
    EXPECT_EQ(rip(), code_at.value() + length);
  }
}

TEST_F(KvmVcpu, RegistersRoundTripThroughCopyAndKernel) {
  load(X86("out %al, $0x80; out %al, $0x80"));
  vcpu_->sync_after_run(KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS | KVM_SYNC_X86_EVENTS);
  (void)run();
  ASSERT_TRUE(vcpu_->complete_exit());
  auto regs = *vcpu_->regs();
  EXPECT_EQ(regs.rip, code_at.value() + 2);
  regs.rax = 0xAB;
  regs.rsi = 0x123456789ABCDEF0;
  ASSERT_TRUE(vcpu_->set_regs(regs));
  const auto exit = run();
  const auto* write = std::get_if<PortWrite>(&exit);
  ASSERT_NE(write, nullptr);
  EXPECT_EQ(write->data[0], std::byte{0xAB});
  EXPECT_EQ(vcpu_->regs()->rsi, 0x123456789ABCDEF0U);
  EXPECT_NE(vcpu_->sregs()->cr0 & 1U, 0U);
}

// There is no IDT: an interrupt would end in a triple fault.
TEST_F(KvmVcpu, AnInterruptOfAnEarlierExitIsNotInjectedAgain) {
  load(X86("in $0x77, %al; out %al, $0x78"));
  vcpu_->sync_after_run(KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS | KVM_SYNC_X86_EVENTS);
  const auto in = run();
  ASSERT_TRUE(std::holds_alternative<PortRead>(in));
  ASSERT_EQ(vcpu_->regs()->rflags & 0x200, 0U);
  kvm_sregs sregs = *vcpu_->sregs();
  sregs.interrupt_bitmap[0] = 1ULL << 0x30;  // as KVM leaves it set after an injection
  for (const bool at_once : {true, false}) {
    ASSERT_TRUE(vcpu_->set_sregs(sregs));
    if (at_once) {
      ASSERT_TRUE(vcpu_->flush());
    }
    EXPECT_EQ(vcpu_->events()->interrupt.injected, 0);
  }
  const auto out = run();
  EXPECT_TRUE(std::holds_alternative<PortWrite>(out)) << "and no shutdown";
}

TEST_F(KvmVcpu, VectorRegistersGoToTheGuestAndComeBack) {
  load(X86("movq %xmm3, %rax; paddq %xmm3, %xmm3; fld1; out %al, $0x80"));
  auto sregs = *vcpu_->sregs();
  sregs.cr4 |= x86::cr4::OSFXSR::mask;
  ASSERT_TRUE(vcpu_->set_sregs(sregs));
  auto area = *vcpu_->xsave();
  auto state = vector_state(area, *vcpu_->xcr0());
  EXPECT_EQ(state.fcw(), 0x37F) << "as after a reset";
  EXPECT_EQ(state.mxcsr(), 0x1F80U);
  constexpr std::uint64_t value = 0x1122'3344'5566'7788;
  constexpr std::uint32_t towards_zero = 0x7F80;
  std::byte* const xmm3 = state.legacy.data() + vpmu::exec::VectorState::xmm_at + 3UL * 16;
  std::memcpy(xmm3, &value, sizeof value);
  state.set_mxcsr(towards_zero);
  set_vector_state(area, state);
  ASSERT_TRUE(vcpu_->set_xsave(area));
  ASSERT_TRUE(std::holds_alternative<PortWrite>(run()));
  EXPECT_EQ(vcpu_->regs()->rax, value);
  const auto after = vector_state(*vcpu_->xsave(), *vcpu_->xcr0());
  std::uint64_t doubled{};
  std::memcpy(&doubled, after.legacy.data() + (xmm3 - state.legacy.data()), sizeof doubled);
  EXPECT_EQ(doubled, 2 * value);
  EXPECT_EQ(after.mxcsr(), towards_zero);
  EXPECT_EQ(after.legacy[4], std::byte{0x80}) << "ST0 is in R7";
}

TEST_F(KvmVcpu, AKickEndsARunThatWouldNeverEnd) {
  load(X86("1: pause; jmp 1b"));
  ASSERT_TRUE(install_kick_handler());
  const KickTarget target{vcpu_->immediate_exit_flag()};
  const auto runner = ::pthread_self();
  std::thread other{[runner] {
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    kick(runner);
  }};
  const auto exit = vcpu_->run();
  other.join();
  ASSERT_TRUE(exit) << describe(exit.error());
  EXPECT_TRUE(std::holds_alternative<Interrupted>(*exit));
}

TEST_F(KvmVcpu, AKickBeforeTheRunIsNotLost) {
  load(X86("1: pause; jmp 1b"));
  vcpu_->interrupt_run();
  const auto exit = vcpu_->run();
  ASSERT_TRUE(exit) << describe(exit.error());
  EXPECT_TRUE(std::holds_alternative<Interrupted>(*exit));
}

TEST_F(KvmVcpu, AKickWhileAnExitIsCompletedIsNotLost) {
  load(X86("1: out %al, $0x80; jmp 1b"));
  ASSERT_TRUE(install_kick_handler());
  const KickTarget target{vcpu_->immediate_exit_flag()};
  constexpr int kicks = 500;
  std::atomic<int> kicked{}, seen{};
  std::atomic<bool> lost{};
  std::thread kicker{[&, self = ::pthread_self()] {
    for (int n = 1; n <= kicks && !lost; ++n) {
      kicked = n;
      kick(self);
      const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds{5};
      while (seen < n && !lost) lost = std::chrono::steady_clock::now() > patience;
    }
  }};
  std::uint64_t completed = 0;
  while (seen < kicks && !lost) {
    const auto exit = vcpu_->run();
    if (!exit) break;
    if (std::holds_alternative<Interrupted>(*exit)) seen = kicked.load();
    if (!std::holds_alternative<PortWrite>(*exit)) continue;
    if (!vcpu_->complete_exit()) break;
    ++completed;
  }
  kicker.join();
  EXPECT_EQ(seen, kicks);
  EXPECT_GT(completed, 0U);
}

TEST_F(KvmVcpu, AMarkOfSomebodyElseStaysUntilHeTakesItAway) {
  load(X86("1: out %al, $0x80; jmp 1b"));
  ASSERT_TRUE(std::holds_alternative<PortWrite>(*vcpu_->run()));
  *vcpu_->immediate_exit_flag() = 1;
  ASSERT_TRUE(vcpu_->complete_exit());
  for (int n = 0; n < 2; ++n) EXPECT_TRUE(std::holds_alternative<Interrupted>(*vcpu_->run()));
  *vcpu_->immediate_exit_flag() = 0;
  EXPECT_TRUE(std::holds_alternative<PortWrite>(*vcpu_->run()));
}

TEST_F(KvmVcpu, LapicKeepsItsPerformanceCounterEntry) {
  constexpr std::size_t spurious_vector = 0xF0;
  constexpr std::size_t lvt_performance_counter = 0x340;
  auto lapic = vcpu_->lapic();
  ASSERT_TRUE(lapic);
  const auto put = [&](std::size_t at, std::uint32_t value) { std::memcpy(lapic->regs + at, &value, sizeof value); };
  put(spurious_vector, 0x1FF);
  put(lvt_performance_counter, 0x400);
  ASSERT_TRUE(vcpu_->set_lapic(*lapic));
  std::uint32_t entry = 0;
  const auto again = vcpu_->lapic();
  std::memcpy(&entry, again->regs + lvt_performance_counter, sizeof entry);
  EXPECT_EQ(entry, 0x400U);
}

// Setting events that were read earlier must not overwrite an NMI that arrived in between.
TEST_F(KvmVcpu, NmiOfAnotherStaysPendingWhenOldEventsAreHandedOver) {
  load(X86("1: pause; jmp 1b"));
  ASSERT_TRUE(vcpu_->flush());
  kvm_lapic_state lapic = *vcpu_->lapic();
  constexpr std::size_t spurious_vector = 0xF0;
  constexpr std::uint32_t enabled = 0x1FF;
  std::memcpy(lapic.regs + spurious_vector, &enabled, sizeof enabled);
  ASSERT_TRUE(vcpu_->set_lapic(lapic));
  const auto events = vcpu_->events();
  ASSERT_TRUE(events);
  ASSERT_EQ(events->nmi.pending, 0);
  constexpr std::uint32_t delivered_as_nmi = 0x400;
  const auto taken = vm_->signal_msi(0xFEE0'0000, delivered_as_nmi);
  ASSERT_TRUE(taken) << describe(taken.error());
  ASSERT_TRUE(*taken);
  ASSERT_TRUE(vcpu_->set_events(*events));
  ASSERT_TRUE(vcpu_->flush());
  vcpu_->forget();
  const auto after = vcpu_->events();
  ASSERT_TRUE(after);
  EXPECT_EQ(after->nmi.pending, 1);
}

TEST_F(KvmVcpu, NmiShowsAsPending) {
  load(X86("hlt"));
  ASSERT_TRUE(vcpu_->nmi());
  const auto events = vcpu_->events();
  ASSERT_TRUE(events);
  EXPECT_NE(events->nmi.pending + events->nmi.injected, 0);
}

TEST_F(KvmVcpu, TranslationFollowsTheBootTables) {
  load(X86("hlt"));
  const auto there = vcpu_->translate(vpmu::GuestLinear{0x200123});
  ASSERT_TRUE(there);
  EXPECT_TRUE(there->valid);
  EXPECT_EQ(there->at, GuestPhysical{0x200123});
}

TEST_F(KvmVcpu, HaltTimeIsWhatTheGuestWasHalted) {
  const HaltTime time = vcpu_->halt_time();
  if (!time.exact()) {
    GTEST_SKIP() << "this KVM does not tell how long a vCPU was halted";
  }
  ASSERT_TRUE(install_kick_handler());
  const KickTarget target{vcpu_->immediate_exit_flag()};
  load(X86("mov $255, %ecx; 1: dec %ecx; jnz 1b; hlt; hlt"));
  const auto before = time.read();
  constexpr auto nap = std::chrono::milliseconds{30};
  const auto self = ::pthread_self();
  std::thread kicker{[self, nap] {
    std::this_thread::sleep_for(nap);
    kick(self);
  }};
  const auto exit = vcpu_->run();
  kicker.join();
  ASSERT_TRUE(exit);
  EXPECT_TRUE(std::holds_alternative<Interrupted>(*exit));
  const auto halted = time.read() - before;
  EXPECT_GT(halted, nap / 2);
  EXPECT_LT(halted, nap * 20);
}

TEST_F(KvmVcpu, TscOffsetCanBeReadAndSet) {
  const auto offset = vcpu_->tsc_offset();
  if (!offset) {
    GTEST_SKIP() << describe(offset.error());
  }
  ASSERT_TRUE(vcpu_->set_tsc_offset(*offset - 1'000'000));
  EXPECT_EQ(*vcpu_->tsc_offset(), *offset - 1'000'000);
}

TEST_F(KvmVcpu, AnUnknownMsrIsAnErrorThatNamesIt) {
  const auto value = vcpu_->msr(0x12345678);
  ASSERT_FALSE(value);
  EXPECT_NE(value.error().what.find("0x12345678"), std::string::npos) << value.error().what;
}

TEST(SystemOpen, NamesWhatIsWrong) {
  const auto missing = System::open("/dev/no-such-device");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().kind, ErrorKind::host);
  EXPECT_NE(describe(missing.error()).find("No such file"), std::string::npos);
  EXPECT_NE(missing.error().advice.find("modprobe"), std::string::npos);

  const auto foreign = System::open("/dev/zero");
  ASSERT_FALSE(foreign);
  EXPECT_NE(foreign.error().what.find("/dev/zero is not the KVM device"), std::string::npos);
}

}  // namespace
}  // namespace vmm
