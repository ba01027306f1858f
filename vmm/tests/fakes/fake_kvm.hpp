#pragma once
#include <linux/kvm.h>
#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "kvm/cpuid_table.hpp"

namespace vmm::test {

/// KVM made of files, behind system calls of this process: while one lives, it answers KVM's ioctls, and records them.
/// VMs and vCPUs are memory files, so that each can be closed, duplicated and mapped, and is seen in /proc/self. The
/// program is linked with fake_kvm.cpp, whose syscall() replaces the C library's. Any thread.
class FakeKvm {
 public:
  static constexpr std::uint32_t host_tsc_khz = 1'000'000;
  struct Vcpu {
    kvm_regs regs{};
    kvm_sregs sregs{};
    kvm_guest_debug debug{};
    std::map<std::uint32_t, std::uint64_t> msrs;  ///< The MSRs that exist.
    std::vector<kvm_cpuid_entry2> cpuid;
    /// The rate of the TSC, and what KVM makes of the host's. MSR 10H is that while it is 0 here.
    std::uint32_t tsc_khz{host_tsc_khz};
    unsigned fraction_bits{32};
    std::uint64_t tsc_offset{};
    bool jumps{};                                      ///< KVM does not scale: its TSC is 2^40 ahead.
    std::deque<std::function<void(kvm_run&)>> script;  ///< What KVM_RUN does next; when empty, see otherwise.
  };

  FakeKvm();
  ~FakeKvm();
  FakeKvm(const FakeKvm&) = delete;
  FakeKvm& operator=(const FakeKvm&) = delete;
  FakeKvm(FakeKvm&&) = delete;
  FakeKvm& operator=(FakeKvm&&) = delete;

  [[nodiscard]] int system() const { return system_; }
  /// For code that opens the device itself.
  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(system_); }
  /// The vCPU of any of its file descriptors.
  Vcpu& vcpu(int fd);
  /// The vCPU that was made first.
  Vcpu& first_vcpu() { return vcpus_.at(first_); }
  Vcpu& newest_vcpu() { return vcpus_.at(newest_); }
  /// What kvm_run of a vCPU has now; and sets its immediate_exit, as a VMM does, or takes that away.
  [[nodiscard]] static kvm_run run_page(int fd);
  static void ask_to_come_out(int fd);
  static void let_go_on(int fd);

  /// An exit for an MSR that a filter traps.
  static std::function<void(kvm_run&)> reads(std::uint32_t msr);
  static std::function<void(kvm_run&)> writes(std::uint32_t msr, std::uint64_t value);

  std::vector<unsigned long> requests;                       ///< The request of every call, in order.
  std::map<unsigned long, int> errors;                       ///< Requests that fail, with this errno.
  std::map<unsigned long, std::function<void()>> meanwhile;  ///< What else happens in a request.
  /// Asked first of each request: an errno with which it fails, or 0. It may also read and write what KVM would.
  std::function<int(int fd, unsigned long request, std::uintptr_t argument)> looks;
  std::map<std::uint32_t, int> capabilities;
  int other_capabilities{};                             ///< KVM_CHECK_EXTENSION of those that are not named.
  CpuidTable supported;                                 ///< KVM_GET_SUPPORTED_CPUID.
  std::map<std::uint32_t, std::uint64_t> feature_msrs;  ///< Of KVM_GET_MSRS on the device.
  std::map<std::uint32_t, std::uint64_t> vcpu_msrs{{0x10, 0}, {0x8B, 0}};  ///< What a new vCPU has.
  std::vector<std::uint32_t> msr_list{0x10, 0x8B};
  bool vcpus_can_be_mapped{true};
  /// What KVM_RUN does beyond a vCPU's script; without it the guest halts.
  std::function<void(const Vcpu&, kvm_run&)> otherwise;

  std::vector<std::uint32_t> enabled;       ///< Capabilities that KVM_ENABLE_CAP has enabled.
  std::uint64_t msr_exits{};                ///< The reasons of KVM_CAP_X86_USER_SPACE_MSR.
  std::vector<std::uint64_t> event_filter;  ///< The words of the last KVM_SET_PMU_EVENT_FILTER.

  /// How often a request has been made; and before which other one it first was.
  [[nodiscard]] long count(unsigned long request) const;
  [[nodiscard]] bool came_before(unsigned long request, unsigned long other) const;
  /// File descriptors and mappings of this process that keep a VM or a vCPU alive.
  static std::vector<std::string> alive();

  /// Stands for the system call.
  long ioctl(int fd, unsigned long request, std::uintptr_t argument);
  static FakeKvm* current;

 private:
  [[nodiscard]] static std::uint64_t tsc_of(const Vcpu& vcpu);
  static long on_tsc_offset(Vcpu& vcpu, unsigned long request, const kvm_device_attr& attribute);
  long on_vcpu(Vcpu& vcpu, int fd, unsigned long request, std::uintptr_t argument) const;
  int make_vcpu();

  int system_;
  std::map<ino_t, Vcpu> vcpus_;
  ino_t first_{}, newest_{};
  std::recursive_mutex mutex_;
};

}  // namespace vmm::test
