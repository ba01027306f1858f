#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <optional>

#include "attach/attached_vmm.hpp"
#include "vpmu/msr.hpp"

namespace vmm::test {
namespace {

/// An MSR filter that traps reads of one MSR.
struct OneRead {
  std::uint64_t bitmap{};
  kvm_msr_filter filter{};
  explicit OneRead(std::uint32_t index) {
    filter.ranges[0] = {
        .flags = KVM_MSR_FILTER_READ, .nmsrs = 1, .base = index, .bitmap = reinterpret_cast<std::uint8_t*>(&bitmap)};
  }
};

class OthersFilter : public AttachmentTest {
 protected:
  int enable(int vm, std::uint64_t reasons) {
    kvm_enable_cap cap{};
    cap.cap = KVM_CAP_X86_USER_SPACE_MSR;
    cap.args[0] = reasons;
    return call_with(vm, KVM_ENABLE_CAP, cap);
  }
  /// Runs the guest to the exit `next` and, unless that exit reaches the VMM, on to a halt. Returns the answered exit;
  /// nothing if the VMM got it.
  std::optional<kvm_run> unseen(int vcpu, const std::function<void(kvm_run&)>& next) {
    std::optional<kvm_run> answer;
    kvm.vcpu(vcpu).script = {next, [&](kvm_run& run) {
                               answer = run;
                               run.exit_reason = KVM_EXIT_HLT;
                             }};
    EXPECT_EQ(call(vcpu, KVM_RUN), 0);
    kvm.vcpu(vcpu).script.clear();
    return answer;
  }
};

TEST_F(OthersFilter, ThatKvmRefusesHasNoEffect) {
  for (const bool has_vcpu : {true, false}) {
    SCOPED_TRACE(has_vcpu);
    const int vm = make_vm();
    ASSERT_EQ(enable(vm, KVM_MSR_EXIT_REASON_FILTER), 0);
    const int before = has_vcpu ? make_vcpu(vm) : -1;
    OneRead of_pmc0{pmc0};
    kvm.errors[KVM_X86_SET_MSR_FILTER] = ENOMEM;
    EXPECT_EQ(call_with(vm, KVM_X86_SET_MSR_FILTER, of_pmc0.filter), -1);
    EXPECT_EQ(errno, ENOMEM);
    kvm.errors.clear();
    const int vcpu = has_vcpu ? before : make_vcpu(vm);
    EXPECT_TRUE(unseen(vcpu, FakeKvm::reads(pmc0))) << "it is still the PMU's";
    ASSERT_EQ(call_with(vm, KVM_X86_SET_MSR_FILTER, of_pmc0.filter), 0);
    EXPECT_FALSE(unseen(vcpu, FakeKvm::reads(pmc0)));
    EXPECT_EQ(FakeKvm::run_page(vcpu).exit_reason, std::uint32_t{KVM_EXIT_X86_RDMSR});
  }
}

TEST_F(OthersFilter, ThatDeniesAllAndNamesNothingIsRefused) {
  const int vm = make_vm();
  kvm_msr_filter all{};
  all.flags = KVM_MSR_FILTER_DEFAULT_DENY;
  EXPECT_EQ(call_with(vm, KVM_X86_SET_MSR_FILTER, all), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_TRUE(unseen(make_vcpu(vm), FakeKvm::reads(pmc0)));
}

// Documentation/virt/kvm/api.rst, KVM_X86_SET_MSR_FILTER: without such exits the guest gets #GP.
TEST_F(OthersFilter, OfAVmmThatWantsNoExitsFaults) {
  const int vm = make_vm(), vcpu = make_vcpu(vm);
  OneRead of_pmc0{pmc0};
  ASSERT_EQ(call_with(vm, KVM_X86_SET_MSR_FILTER, of_pmc0.filter), 0);
  const auto answer = unseen(vcpu, FakeKvm::reads(pmc0));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->msr.error, 1U);
  ASSERT_EQ(enable(vm, KVM_MSR_EXIT_REASON_FILTER), 0);
  EXPECT_FALSE(unseen(vcpu, FakeKvm::reads(pmc0)));
}

// The VMM chooses its reasons before it creates the first vCPU, as VMMs do.
TEST_F(OthersFilter, ReasonsOfTheVmmStayAndItsExitsComeOut) {
  const int vm = make_vm();
  ASSERT_EQ(enable(vm, KVM_MSR_EXIT_REASON_UNKNOWN), 0);
  const int vcpu = make_vcpu(vm);
  EXPECT_EQ(kvm.msr_exits, std::uint64_t{KVM_MSR_EXIT_REASON_UNKNOWN | KVM_MSR_EXIT_REASON_FILTER});
  EXPECT_FALSE(unseen(vcpu, [](kvm_run& run) {
    FakeKvm::writes(0x1234, 1)(run);
    run.msr.reason = KVM_MSR_EXIT_REASON_UNKNOWN;
  }));
  EXPECT_EQ(FakeKvm::run_page(vcpu).msr.error, 0U) << "nobody has answered it";
}

/// RAM from address 0 with an identity-mapping page table, and RDMSR at `code`.
struct ReadingGuest {
  static constexpr std::uint64_t size = 0x5000, code = 0x4000;
  alignas(4096) std::array<std::byte, size> ram{};
  kvm_regs regs{};
  kvm_sregs sregs{};

  explicit ReadingGuest(std::uint32_t msr) {
    put(0x1000, 0x2003);
    put(0x2000, 0x3003);
    put(0x3000, 0x83);     // 2 MiB
    put(code, 0xF432'0F);  // rdmsr; hlt
    regs.rip = code;
    regs.rcx = msr;
    regs.rflags = 2;
    sregs.cr0 = 0x8000'0011;
    sregs.cr3 = 0x1000;
    sregs.cr4 = 0x20;
    sregs.efer = 0x500;
    sregs.cs = {.base = 0,
                .limit = ~0U,
                .selector = 8,
                .type = 0xB,
                .present = 1,
                .dpl = 0,
                .db = 0,
                .s = 1,
                .l = 1,
                .g = 1,
                .avl = 0,
                .unusable = 0,
                .padding = 0};
  }
  void put(std::uint64_t at, std::uint64_t word) { std::memcpy(&ram[at], &word, sizeof word); }
};

// The engine could run the guest up to the RDMSR, but then KVM would not have filled kvm_run: KVM must run that
// instruction.
TEST_F(OthersFilter, ComesBeforeTheEngine) {
  Attachment exact{{.model = find_machine_model("haswell"), .source = "exact"}, {}, log, [](const System&) {
                     return RdpmcBehaviour::trappable;
                   }};
  const auto ask = [&](int fd, unsigned long request, auto& argument) {
    return exact.call(fd, request, reinterpret_cast<std::uintptr_t>(&argument));
  };
  const int vm = exact.call(kvm.system(), KVM_CREATE_VM, 0);
  kvm_enable_cap cap{};
  cap.cap = KVM_CAP_X86_USER_SPACE_MSR;
  cap.args[0] = KVM_MSR_EXIT_REASON_FILTER;
  ASSERT_EQ(ask(vm, KVM_ENABLE_CAP, cap), 0);
  OneRead of_pmc0{pmc0};
  ASSERT_EQ(ask(vm, KVM_X86_SET_MSR_FILTER, of_pmc0.filter), 0);
  ReadingGuest guest{pmc0};
  kvm_userspace_memory_region region{};
  region.memory_size = ReadingGuest::size;
  region.userspace_addr = reinterpret_cast<std::uintptr_t>(guest.ram.data());
  ASSERT_EQ(ask(vm, KVM_SET_USER_MEMORY_REGION, region), 0);
  const int vcpu = exact.call(vm, KVM_CREATE_VCPU, 0);
  kvm.vcpu(vcpu).regs = guest.regs;
  kvm.vcpu(vcpu).sregs = guest.sregs;
  struct {
    std::uint64_t count{2};
    std::array<kvm_msr_entry, 2> entries{
        kvm_msr_entry{.index = perfevtsel0, .reserved = 0, .data = 0x43'00C0},
        kvm_msr_entry{.index = vpmu::msr::IA32_PERF_GLOBAL_CTRL.value(), .reserved = 0, .data = 1}};
  } counting;
  ASSERT_EQ(ask(vcpu, KVM_SET_MSRS, counting), 2);
  kvm.vcpu(vcpu).script = {FakeKvm::reads(pmc0)};
  ASSERT_EQ(exact.call(vcpu, KVM_RUN, 0), 0);
  const kvm_run run = FakeKvm::run_page(vcpu);
  EXPECT_EQ(run.exit_reason, std::uint32_t{KVM_EXIT_X86_RDMSR});
  EXPECT_EQ(run.msr.index, pmc0);
  EXPECT_EQ(run.msr.reason, std::uint32_t{KVM_MSR_EXIT_REASON_FILTER});
  EXPECT_TRUE(kvm.vcpu(vcpu).script.empty()) << "KVM has run it";
}

}  // namespace
}  // namespace vmm::test
