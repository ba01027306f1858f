#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>

#include "attach/attached_vm.hpp"
#include "support/log.hpp"

namespace vmm {

/// All VMs of a process that is another VMM: knows by file descriptor which of its ioctls concern us, and answers those.
class Attachment {
 public:
  Attachment(AttachOptions options, std::string statistics_path, Log& log)
      : options_{std::move(options)}, statistics_path_{std::move(statistics_path)}, log_{&log} {}

  /// Stands for ioctl(): what it returns, and errno.
  int call(int fd, unsigned long request, std::uintptr_t argument);
  /// Writes the counters of all VMs to the statistics file, if there is to be one.
  void write_statistics();

 private:
  AttachedVm* vm_of(int fd) const;
  AttachedVcpu* vcpu_of(int fd) const;
  int create_vm(int fd, unsigned long request, std::uintptr_t argument);
  int create_vcpu(AttachedVm& vm, int fd, unsigned long request, std::uintptr_t argument);
  int on_vm(AttachedVm& vm, int fd, unsigned long request, std::uintptr_t argument);
  int on_vcpu(AttachedVcpu& vcpu, int fd, unsigned long request, std::uintptr_t argument);
  static int check_extension(int fd, unsigned long request, std::uintptr_t capability);
  static int supported_cpuid(int fd, unsigned long request, std::uintptr_t argument);
  static int get_nested_state(AttachedVcpu& vcpu, int fd, unsigned long request, std::uintptr_t argument);
  static int set_nested_state(AttachedVcpu& vcpu, int fd, unsigned long request, std::uintptr_t argument);
  int answer(const Result<void>& result, const char* what);

  AttachOptions options_;
  std::string statistics_path_;
  Log* log_;
  mutable std::shared_mutex mutex_;
  std::map<int, std::unique_ptr<AttachedVm>> vms_;
  struct Known {
    AttachedVcpu* vcpu;
    AttachedVm* vm;
  };
  std::map<int, Known> vcpus_;
};

}  // namespace vmm
