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

/// A fake KVM behind the system calls of this process: while an object lives, it answers KVM's ioctls and records them.
/// VMs and vCPUs are memory files, so that they can be closed, duplicated and mapped, and are seen in /proc/self. The
/// program is linked with fake_kvm.cpp, which replaces the C library's syscall(). Any thread may call.
class FakeKvm {
 public:
  static constexpr std::uint32_t host_tsc_khz = 1'000'000;
  struct Vcpu {
    kvm_regs regs{};
    kvm_sregs sregs{};
    kvm_guest_debug debug{};
    std::map<std::uint32_t, std::uint64_t> msrs;  ///< Those that exist.
    std::vector<kvm_cpuid_entry2> cpuid;
    /// The TSC's rate, and the fraction bits of its scale. MSR 10H reads as the scaled TSC while `msrs` has 0 for it.
    std::uint32_t tsc_khz{host_tsc_khz};
    unsigned fraction_bits{32};
    std::uint64_t tsc_offset{};
    bool jumps{};                                      ///< KVM does not scale: the TSC jumps to keep up.
    std::deque<std::function<void(kvm_run&)>> script;  ///< What each KVM_RUN does; when empty: `otherwise`.
  };

  FakeKvm();
  ~FakeKvm();
  FakeKvm(const FakeKvm&) = delete;
  FakeKvm& operator=(const FakeKvm&) = delete;
  FakeKvm(FakeKvm&&) = delete;
  FakeKvm& operator=(FakeKvm&&) = delete;

  [[nodiscard]] int system() const { return system_; }
  /// A path for code that opens /dev/kvm itself.
  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(system_); }
  /// By any file descriptor of the vCPU.
  Vcpu& vcpu(int fd);
  /// The vCPU that was made first.
  Vcpu& first_vcpu() { return vcpus_.at(first_); }
  Vcpu& newest_vcpu() { return vcpus_.at(newest_); }
  /// The contents of a vCPU's kvm_run; and setting its immediate_exit, as a VMM does, or clearing it.
  [[nodiscard]] static kvm_run run_page(int fd);
  static void ask_to_come_out(int fd);
  static void let_go_on(int fd);

  /// KVM_RUN's exit for an access to an MSR that a filter traps.
  static std::function<void(kvm_run&)> reads(std::uint32_t msr);
  static std::function<void(kvm_run&)> writes(std::uint32_t msr, std::uint64_t value);

  std::vector<unsigned long> requests;                       ///< The request of every call, in order.
  std::map<unsigned long, int> errors;                       ///< Requests that fail, with this errno.
  std::map<unsigned long, std::function<void()>> meanwhile;  ///< Called during a request.
  /// Called first for each request; returns an errno with which it fails, or 0. May read and write what KVM would.
  std::function<int(int fd, unsigned long request, std::uintptr_t argument)> looks;
  std::map<std::uint32_t, int> capabilities;
  int other_capabilities{};                                                ///< KVM_CHECK_EXTENSION of all others.
  CpuidTable supported;                                                    ///< KVM_GET_SUPPORTED_CPUID.
  std::map<std::uint32_t, std::uint64_t> feature_msrs;                     ///< KVM_GET_MSRS of the system.
  std::map<std::uint32_t, std::uint64_t> vcpu_msrs{{0x10, 0}, {0x8B, 0}};  ///< What a new vCPU has.
  std::vector<std::uint32_t> msr_list{0x10, 0x8B};
  bool vcpus_can_be_mapped{true};
  /// What KVM_RUN does when a vCPU's script is empty; without it the guest halts.
  std::function<void(const Vcpu&, kvm_run&)> otherwise;

  std::vector<std::uint32_t> enabled;       ///< By KVM_ENABLE_CAP.
  std::uint64_t msr_exits{};                ///< The reasons enabled with KVM_CAP_X86_USER_SPACE_MSR.
  std::vector<std::uint64_t> event_filter;  ///< The words of the last KVM_SET_PMU_EVENT_FILTER.

  /// How often a request was made; and whether its first time was before that of another.
  [[nodiscard]] long count(unsigned long request) const;
  [[nodiscard]] bool came_before(unsigned long request, unsigned long other) const;
  /// File descriptors and mappings of this process that keep a VM or a vCPU alive.
  static std::vector<std::string> alive();

  /// Answers the system call.
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
