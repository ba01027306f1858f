#include "vcpu/apic_store.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "exec/tests/fixtures/assembled.hpp"
#include "kvm/kick.hpp"
#include "kvm/kvm_vcpu.hpp"
#include "vpmu/bits.hpp"

namespace vmm::test {
namespace {

constexpr std::size_t spurious_vector = 0xF0, irr = 0x200, lvtpc = 0x340;
constexpr std::uint32_t nmi = 0x400, masked = 1U << 16;
constexpr unsigned first_vector = 0x20, last_vector = 0xFF;

/// A vCPU in 64-bit mode with its xAPIC on.
class KvmApicStore : public KvmVcpu {
 protected:
  void SetUp() override {
    KvmVcpu::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ASSERT_TRUE(prepare_apic_stores(*vm_));
    ASSERT_TRUE(install_kick_handler());
    load(X86("1: pause; jmp 1b"));
    ASSERT_TRUE(vcpu_->flush());
    page_ = *vcpu_->lapic();
    put(spurious_vector, 0x1FF);
    put(lvtpc, nmi);
    ASSERT_TRUE(vcpu_->set_lapic(page_));
  }
  void put(std::size_t at, std::uint32_t value) { std::memcpy(page_.regs + at, &value, sizeof value); }
  std::uint32_t get(std::size_t at) {
    std::uint32_t value = 0;
    const auto page = vcpu_->lapic();
    std::memcpy(&value, page->regs + at, sizeof value);
    return value;
  }
  Stored store(std::uint32_t value) {
    const auto result = store_to_apic(*vcpu_, lvtpc, value);
    if (!result) ADD_FAILURE() << describe(result.error());
    return result ? result->stored : Stored::never;
  }
  [[nodiscard]] unsigned waiting() {
    unsigned found = 0;
    for (unsigned v = first_vector; v <= last_vector; ++v)
      if ((get(irr + v / 32 * 0x10) >> (v % 32) & 1) != 0) ++found;
    return found;
  }
  kvm_lapic_state page_{};
};

TEST_F(KvmApicStore, ChangesThatRegisterAndNothingElse) {
  const kvm_regs regs = *vcpu_->regs();
  const kvm_sregs sregs = *vcpu_->sregs();
  kvm_lapic_state before = *vcpu_->lapic();
  ASSERT_EQ(store(nmi | masked), Stored::done);
  EXPECT_EQ(get(lvtpc), nmi | masked);
  kvm_lapic_state after = *vcpu_->lapic();
  for (kvm_lapic_state* const page : {&before, &after}) std::memset(page->regs + lvtpc, 0, sizeof masked);
  EXPECT_EQ(std::memcmp(&before, &after, sizeof before), 0);
  ASSERT_TRUE(vcpu_->flush());
  vcpu_->forget();
  const kvm_regs regs_after = *vcpu_->regs();
  const kvm_sregs sregs_after = *vcpu_->sregs();
  EXPECT_EQ(std::memcmp(&regs, &regs_after, sizeof regs), 0);
  EXPECT_EQ(sregs_after.cr0, sregs.cr0);
  EXPECT_EQ(sregs_after.cr3, sregs.cr3);
  EXPECT_EQ(sregs_after.cr4, sregs.cr4);
  EXPECT_EQ(sregs_after.efer, sregs.efer);
  EXPECT_EQ(std::memcmp(&sregs.cs, &sregs_after.cs, sizeof sregs.cs), 0);
  EXPECT_EQ(std::memcmp(&sregs.ss, &sregs_after.ss, sizeof sregs.ss), 0);
}

// Another thread sends one interrupt of each vector while this one writes LVTPC over and over.
TEST_F(KvmApicStore, LosesNoInterruptThatArrivesMeanwhile) {
  // On a busy host all interrupts may arrive before the first store: then more rounds follow.
  constexpr unsigned rounds = 30, max_rounds = 3000;
  unsigned stores = 0;
  for (unsigned round = 0; round < rounds || (stores <= rounds && round < max_rounds); ++round) {
    ASSERT_TRUE(vcpu_->set_lapic(page_));
    ASSERT_EQ(waiting(), 0U);
    std::atomic<bool> over = false;
    std::thread sender{[&] {
      for (unsigned v = first_vector; v <= last_vector; ++v) EXPECT_TRUE(vm_->signal_msi(0xFEE0'0000, v));
      over = true;
    }};
    while (!over)
      if (store(nmi | (++stores % 2 == 0 ? masked : 0)) != Stored::done) break;
    sender.join();
    ASSERT_EQ(waiting(), last_vector - first_vector + 1) << "round " << round;
  }
  EXPECT_GT(stores, rounds);
}

// SDM 3A 6.7.1: an NMI that somebody else sent stays pending until the guest's own code runs.
TEST_F(KvmApicStore, LeavesAnNmiWaiting) {
  ASSERT_TRUE(*vm_->signal_msi(0xFEE0'0000, nmi));
  ASSERT_EQ(store(nmi | masked), Stored::done);
  ASSERT_TRUE(vcpu_->flush());
  vcpu_->forget();
  const kvm_vcpu_events events = *vcpu_->events();
  EXPECT_EQ(events.nmi.pending + events.nmi.injected, 1);
  EXPECT_EQ(events.nmi.masked, 0);
}

TEST_F(KvmApicStore, AKickStaysAndPutsItOff) {
  const KickTarget target{vcpu_->immediate_exit_flag()};
  kick(::pthread_self());
  EXPECT_EQ(store(nmi | masked), Stored::not_now);
  EXPECT_EQ(get(lvtpc), nmi);
  EXPECT_TRUE(std::holds_alternative<Interrupted>(*vcpu_->run()));
  EXPECT_EQ(store(nmi | masked), Stored::done);
  EXPECT_EQ(get(lvtpc), nmi | masked);
}

TEST_F(KvmApicStore, AHaltedProcessorStaysHalted) {
  ASSERT_TRUE(vcpu_->set_mp_state({.mp_state = KVM_MP_STATE_HALTED}));
  ASSERT_EQ(store(nmi | masked), Stored::done);
  EXPECT_EQ(get(lvtpc), nmi | masked);
  EXPECT_EQ(vcpu_->mp_state()->mp_state, std::uint32_t{KVM_MP_STATE_HALTED});
}

TEST_F(KvmApicStore, AnApicThatWasMovedIsNotWritten) {
  kvm_sregs sregs = *vcpu_->sregs();
  sregs.apic_base += 0x10'0000;
  ASSERT_TRUE(vcpu_->set_sregs(sregs));
  EXPECT_EQ(store(nmi | masked), Stored::never);
  EXPECT_EQ(get(lvtpc), nmi);
}

// With SVME the vCPU may be running a nested guest.
TEST_F(KvmApicStore, AProcessorThatMayRunGuestsIsNotTaken) {
  kvm_sregs sregs = *vcpu_->sregs();
  sregs.efer |= vpmu::bit(12);  // SVME
  ASSERT_TRUE(vcpu_->set_sregs(sregs));
  EXPECT_EQ(store(nmi | masked), Stored::never);
  EXPECT_EQ(get(lvtpc), nmi);
}

}  // namespace
}  // namespace vmm::test
