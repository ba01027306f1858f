#pragma once
#include <linux/kvm.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kvm/cpuid_table.hpp"

namespace vmm::test {

/// A KVM made of files: it answers the ioctls of this process on the device at path(), on VMs and on vCPUs, and records them all. One at a time.
/// The program is linked with fake_kvm.cpp, where the C library's syscall() is this.
class FakeKvm {
 public:
  FakeKvm();
  ~FakeKvm();
  FakeKvm(const FakeKvm&) = delete;
  FakeKvm& operator=(const FakeKvm&) = delete;
  FakeKvm(FakeKvm&&) = delete;
  FakeKvm& operator=(FakeKvm&&) = delete;

  /// For MachineConfig::kvm_device.
  [[nodiscard]] std::string path() const;

  // What it is like. To be set before it is used.
  std::map<std::uint32_t, int> capabilities;       ///< KVM_CHECK_EXTENSION; others are 1.
  CpuidTable supported;                            ///< KVM_GET_SUPPORTED_CPUID.
  std::map<std::uint32_t, std::uint64_t> features; ///< Feature MSRs.
  std::vector<std::uint32_t> saved;                ///< KVM_GET_MSR_INDEX_LIST.
  std::map<unsigned long, int> failing;            ///< Requests that fail, with their errno.

  /// One call. What it was given is kept where tests ask for it.
  struct Call {
    unsigned long request{};
    std::uint64_t value{};               ///< An argument that is a number; KVM_ENABLE_CAP's capability.
    std::vector<std::uint64_t> words{};  ///< KVM_SET_PMU_EVENT_FILTER: the whole of it.
  };
  [[nodiscard]] std::vector<Call> calls() const;
  [[nodiscard]] std::size_t count(unsigned long request) const;
  /// Where `request` was first called in the order of all calls; empty if never.
  [[nodiscard]] std::optional<std::size_t> first(unsigned long request) const;
  /// What vCPU 0 was given.
  [[nodiscard]] CpuidTable cpuid() const;
  [[nodiscard]] std::optional<std::uint64_t> msr(std::uint32_t index) const;

  /// An ioctl on `fd`; empty: the descriptor is not of this KVM.
  std::optional<int> ioctl(int fd, unsigned long request, std::uintptr_t argument);

 private:
  int answer(int fd, unsigned long request, std::uintptr_t argument);
  int new_file(std::size_t bytes);
  [[nodiscard]] bool is_ours(int fd) const;

  int device_;
  mutable std::mutex mutex_;
  std::vector<int> files_;                       ///< Of VMs and vCPUs; the users' descriptors.
  std::vector<Call> calls_;
  CpuidTable cpuid_;
  std::map<std::uint32_t, std::uint64_t> msrs_;  ///< Of vCPU 0.
};

}  // namespace vmm::test
