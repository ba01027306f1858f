#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "attach/attached_vm.hpp"
#include "kvm/system.hpp"
#include "machine/probe_guest.hpp"
#include "support/log.hpp"

namespace vmm {

/// All VMs of a process that is another VMM: knows by file descriptor which of its ioctls concern us, and answers
/// those.
class Attachment {
 public:
  /// What RDPMC does in guests of an open KVM device.
  using RdpmcProbe = std::function<Result<RdpmcBehaviour>(const System& system)>;

  Attachment(AttachOptions options, std::string statistics_path, Log& log, RdpmcProbe probe = probe_rdpmc)
      : options_{std::move(options)},
        statistics_path_{std::move(statistics_path)},
        log_{&log},
        probe_rdpmc_{std::move(probe)} {
    options_.tells_statistics = !statistics_path_.empty();
  }
  /// All other threads that have run one of its vCPUs must have ended.
  ~Attachment() { kept_by_thread() = {}; }
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;
  Attachment(Attachment&&) = delete;
  Attachment& operator=(Attachment&&) = delete;

  /// They replace ioctl(): same result, same errno. run() is KVM_RUN, the most frequent call by far.
  int run(int fd);
  int call(int fd, unsigned long request, std::uintptr_t argument);
  /// Call it before close(): forgets the descriptor. KVM's VM ends when the VMM has closed the last descriptor of it.
  void closing(int fd);
  /// Writes the counters of all VMs to the statistics file, if there is to be one and there was a VM.
  void write_statistics();

 private:
  struct Known {
    std::shared_ptr<AttachedVm> vm;
    AttachedVcpu* vcpu{};  ///< Null if the descriptor is the VM's.
  };
  [[nodiscard]] Known known(int fd) const;
  struct Running {
    std::uint64_t version;
    int fd;
    AttachedVcpu* vcpu;
  };
  [[nodiscard]] Running look_up(int fd) const;
  [[nodiscard]] std::string all_statistics() const;
  static Known& kept_by_thread();
  [[nodiscard]] Known forget(int fd);
  void remember(int fd, Known what);
  int create_vm(int fd, unsigned long request, std::uintptr_t argument);
  int create_vcpu(const std::shared_ptr<AttachedVm>& vm, int fd, unsigned long request, std::uintptr_t argument);
  int on_vm(const std::shared_ptr<AttachedVm>& vm, int fd, unsigned long request, std::uintptr_t argument);
  int on_vcpu(AttachedVcpu& vcpu, int fd, unsigned long request, std::uintptr_t argument);
  static int check_extension(int fd, unsigned long request, std::uintptr_t capability);
  int supported_cpuid(int fd, unsigned long request, std::uintptr_t argument) const;
  static int get_nested_state(AttachedVcpu& vcpu, int fd, unsigned long request, std::uintptr_t argument);
  static int set_nested_state(AttachedVcpu& vcpu, int fd, unsigned long request, std::uintptr_t argument);
  int feature_msrs(int fd, kvm_msrs& list) const;
  int list_all_msrs(int fd, unsigned long request, std::uintptr_t argument) const;
  int answer(const Result<void>& result, const char* what);
  Result<void> examine(int fd);

  AttachOptions options_;
  std::string statistics_path_;
  Log* log_;
  RdpmcProbe probe_rdpmc_;
  std::once_flag examined_;
  Result<void> fit_{};  ///< What examine() has found.
  mutable std::shared_mutex mutex_;
  std::map<int, Known> known_;            ///< By file descriptor. Under mutex_.
  std::atomic<std::uint64_t> version_{};  ///< Changes with known_; unique among all attachments.
  std::vector<std::string> ended_;        ///< The counters of VMs that the VMM has closed. Under mutex_.
  std::atomic<pid_t> process_{};          ///< The process that opened the descriptors.
};

}  // namespace vmm
