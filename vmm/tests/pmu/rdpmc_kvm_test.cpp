#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "exec/tests/fixtures/assembled.hpp"
#include "kvm/kick.hpp"
#include "kvm/system.hpp"
#include "memory/guest_memory.hpp"
#include "memory/ram_access.hpp"
#include "pmu/pmu_setup.hpp"
#include "pmu/pmu_vcpu.hpp"
#include "vcpu/kvm_backend.hpp"
#include "vpmu/bits.hpp"

// A few instructions in ring 0 on a real KVM: RDPMC must reach the PMU through the breakpoint at the guest's #GP
// handler.

namespace vmm::test {
namespace {

constexpr std::uint64_t pml4 = 0x1000, pdpt = 0x2000, directory = 0x3000, gdt = 0x4000, idt = 0x5000;
constexpr std::uint64_t fault_handler = 0x6000, stack_top = 0x8000, code = 0x9000;
constexpr std::uint16_t port_of_result = 0xF4, port_of_fault = 0xF5;

/// Counts instructions on PMC0, runs `loops` iterations of a loop, reads counter `ecx` and writes its value to a port.
std::vector<std::uint8_t> program(std::uint32_t loops, std::uint32_t ecx) {
  std::vector<std::uint8_t> out;
  const auto emit = [&](const std::vector<std::uint8_t>& bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); };
  const auto emit_word = [&](std::uint32_t word) {
    for (int i = 0; i < 4; ++i) out.push_back(static_cast<std::uint8_t>(word >> (8 * i)));
  };
  const auto wrmsr = [&](std::uint32_t index, std::uint32_t value) {
    emit({0xB9}), emit_word(index);  // mov ecx, index
    emit({0xB8}), emit_word(value);  // mov eax, value
    emit(X86("xor %edx, %edx; wrmsr"));
  };
  wrmsr(0x186, 0x43'00C0);
  wrmsr(0x38F, 1);
  emit({0xBB}), emit_word(loops);  // mov ebx, loops
  emit(X86("1: dec %ebx; jne 1b"));
  emit({0xB9}), emit_word(ecx);  // mov ecx, counter
  emit(X86("rdpmc"));
  emit(X86("mov $0xF4, %dx; out %eax, (%dx)"));
  emit(X86("hlt"));
  return out;
}

/// A VM with 16 MiB, identity-mapped in large pages, and one vCPU in 64-bit ring 0 with a virtual PMU.
class RingZero {
 public:
  static Result<std::unique_ptr<RingZero>> create() {
    VMM_TRY(install_kick_handler());
    VMM_ASSIGN(const System system, System::open());
    VMM_ASSIGN(const CpuidTable cpuid, system.supported_cpuid());
    VMM_ASSIGN(GuestMemory memory, GuestMemory::create(GuestMemory::min_bytes));
    VMM_ASSIGN(Vm vm, system.create_vm());
    VMM_TRY(vm.set_reserved_pages(vpmu::GuestPhysical{0xFEFF'C000}));
    VMM_TRY(memory.attach(vm));
    VMM_TRY(prepare_vm_for_pmu(vm, vpmu::describe(vpmu::Generation::skylake)));
    VMM_ASSIGN(Vcpu vcpu, vm.create_vcpu(0));
    VMM_TRY(vcpu.set_cpuid(cpuid));
    std::unique_ptr<RingZero> self{new RingZero{std::move(memory), std::move(vm), std::move(vcpu)}};
    VMM_TRY(self->enter_long_mode());
    VMM_ASSIGN(KvmBackend backend, KvmBackend::create(self->vm_, self->vcpu_));
    self->backend_ = std::make_unique<KvmBackend>(std::move(backend));
    VMM_ASSIGN(self->pmu_vcpu_, PmuVcpu::create({}, *self->backend_, self->linear_, self->log_));
    return self;
  }

  void load(const std::vector<std::uint8_t>& bytes) { store_bytes(code, bytes); }
  Result<Exit> run() { return pmu_vcpu_->run(); }
  vpmu::Pmu& pmu() { return pmu_vcpu_->pmu(); }
  std::uint64_t statistic(const std::string& name) const {
    std::map<std::string, std::uint64_t> all;
    pmu_vcpu_->visit_statistics([&](std::string_view n, std::uint64_t value) { all[std::string{n}] = value; });
    return all.at(name);
  }

 private:
  RingZero(GuestMemory memory, Vm vm, Vcpu vcpu)
      : memory_{std::move(memory)}, vm_{std::move(vm)}, vcpu_{std::move(vcpu)} {}

  void store(std::uint64_t at, std::uint64_t word) { ASSERT_TRUE(memory_.store(vpmu::GuestPhysical{at}, word)); }
  void store_bytes(std::uint64_t at, const std::vector<std::uint8_t>& bytes) {
    ASSERT_TRUE(memory_.write(vpmu::GuestPhysical{at}, std::as_bytes(std::span{bytes})));
  }

  Result<void> enter_long_mode() {
    constexpr std::uint64_t present_writable = 3, large = vpmu::bit(7);
    store(pml4, pdpt | present_writable);
    store(pdpt, directory | present_writable);
    for (std::uint64_t i = 0; i < 8; ++i) store(directory + 8 * i, (i << 21) | present_writable | large);
    store(gdt + 0x10, 0x00AF'9B00'0000'FFFF);
    store(gdt + 0x18, 0x00CF'9300'0000'FFFF);
    store(idt + 13 * 16, (fault_handler & 0xFFFF) | (0x10ULL << 16) | (0x8EULL << 40));
    store(idt + 13 * 16 + 8, 0);
    store_bytes(fault_handler, X86("mov $0xF5, %dx; out %eax, (%dx); hlt"));
    VMM_ASSIGN(kvm_sregs sregs, vcpu_.sregs());
    sregs.cs = {.limit = 0xFFFF'FFFF, .selector = 0x10, .type = 0xB, .present = 1, .s = 1, .l = 1, .g = 1};
    sregs.ss = {.limit = 0xFFFF'FFFF, .selector = 0x18, .type = 0x3, .present = 1, .db = 1, .s = 1, .g = 1};
    sregs.ds = sregs.es = sregs.fs = sregs.gs = sregs.ss;
    sregs.gdt = {.base = gdt, .limit = 0x1F};
    sregs.idt = {.base = idt, .limit = 0xFFF};
    sregs.cr0 = vpmu::bit(31) | vpmu::bit(5) | vpmu::bit(0);
    sregs.cr3 = pml4;
    sregs.cr4 = vpmu::bit(5);
    sregs.efer = vpmu::bit(8) | vpmu::bit(10);
    VMM_TRY(vcpu_.set_sregs(sregs));
    VMM_TRY(vcpu_.set_regs({.rsp = stack_top, .rip = code, .rflags = 2}));
    return vcpu_.flush();
  }

  GuestMemory memory_;
  RamAccess ram_{memory_};
  LinearMemory linear_{ram_};
  Vm vm_;
  Vcpu vcpu_;
  Log log_;
  KickTarget kick_target_{vcpu_.immediate_exit_flag()};
  std::unique_ptr<KvmBackend> backend_;
  std::unique_ptr<PmuVcpu> pmu_vcpu_;
};

class KvmRdpmc : public testing::Test {
 protected:
  void SetUp() override {
    auto created = RingZero::create();
    if (!created) GTEST_SKIP() << "no usable KVM here: " << describe(created.error());
    guest_ = std::move(*created);
  }
  /// The port and the value of the program's OUT.
  struct Told {
    std::uint16_t port;
    std::uint32_t value;
  };
  Told run() {
    for (;;) {
      const auto exit = guest_->run();
      if (!exit) {
        ADD_FAILURE() << describe(exit.error());
        return {};
      }
      if (std::holds_alternative<Interrupted>(*exit)) continue;
      const auto* out = std::get_if<PortWrite>(&*exit);
      if (out == nullptr) {
        ADD_FAILURE() << "exit " << exit->index();
        return {};
      }
      std::uint32_t value = 0;
      std::memcpy(&value, out->data.data(), sizeof value);
      return {out->port, value};
    }
  }
  std::unique_ptr<RingZero> guest_;
};

TEST_F(KvmRdpmc, ReadsTheVirtualCounterInRingZero) {
  guest_->load(program(200'000, 0));
  const Told told = run();
  if (told.value == 0 && guest_->statistic("pmu.rdpmc.served") == 0)
    GTEST_SKIP() << "this KVM answers RDPMC itself and raises no #GP: kvm_amd before Linux 6.9";
  EXPECT_EQ(told.port, port_of_result) << "the guest's #GP handler must not run";
  EXPECT_GT(told.value, 0U);
  EXPECT_GE(guest_->pmu().state().pmc[0], told.value);
  EXPECT_EQ(guest_->statistic("pmu.rdpmc.served"), 1U);
}

TEST_F(KvmRdpmc, CounterThatDoesNotExistFaultsInTheGuest) {
  guest_->load(program(10, 0x4000'0003));
  EXPECT_EQ(run().port, port_of_fault);
}

}  // namespace
}  // namespace vmm::test
