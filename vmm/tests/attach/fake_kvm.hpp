#pragma once
#include <linux/kvm.h>
#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace vmm::test {

/// KVM as far as the attached library asks it, behind system calls of this process: while one lives, it answers KVM's ioctls on the files that
/// it made. The files are memory files, so that each can be closed, duplicated and mapped, and is seen in /proc/self.
class FakeKvm {
 public:
  struct Vcpu {
    kvm_regs regs{};
    kvm_sregs sregs{};
    kvm_guest_debug debug{};
    std::map<std::uint32_t, std::uint64_t> msrs{{0x10, 0}, {0x8B, 0}};  ///< Those that there are.
    std::vector<kvm_cpuid_entry2> cpuid;
    std::deque<std::function<void(kvm_run&)>> script;  ///< What KVM_RUN does next; nothing more: the guest halts.
  };

  FakeKvm();
  ~FakeKvm();
  FakeKvm(const FakeKvm&) = delete;
  FakeKvm& operator=(const FakeKvm&) = delete;
  FakeKvm(FakeKvm&&) = delete;
  FakeKvm& operator=(FakeKvm&&) = delete;

  [[nodiscard]] int system() const { return system_; }
  /// By a file descriptor of it, of whoever.
  Vcpu& vcpu(int fd);
  /// What kvm_run of a vCPU has now; and sets its immediate_exit, as a VMM does.
  [[nodiscard]] static kvm_run run_page(int fd);
  static void ask_to_come_out(int fd);

  /// An exit for an MSR that a filter traps.
  static std::function<void(kvm_run&)> reads(std::uint32_t msr);
  static std::function<void(kvm_run&)> writes(std::uint32_t msr, std::uint64_t value);

  std::vector<unsigned long> requests;          ///< Of every call, in order.
  std::map<unsigned long, int> errors;          ///< Requests that fail, with this errno.
  std::map<unsigned long, std::function<void()>> meanwhile;  ///< What else happens in a request.
  std::map<std::uint32_t, int> capabilities;
  std::vector<std::uint32_t> msr_list{0x10, 0x8B};
  bool vcpus_can_be_mapped{true};

  /// How often a request has been made.
  [[nodiscard]] long count(unsigned long request) const;
  /// File descriptors and mappings of this process that keep a VM or a vCPU alive.
  static std::vector<std::string> alive();

  /// Stands for the system call.
  long ioctl(int fd, unsigned long request, std::uintptr_t argument);
  static FakeKvm* current;

 private:
  long on_vcpu(Vcpu& vcpu, int fd, unsigned long request, std::uintptr_t argument);
  int make_vcpu();

  int system_;
  std::map<ino_t, Vcpu> vcpus_;
};

}  // namespace vmm::test
