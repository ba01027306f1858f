#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kvm/cpuid_table.hpp"
#include "kvm/fd.hpp"
#include "support/result.hpp"

namespace vmm {

class Vm;

/// /dev/kvm, opened. Thin typed wrapper without policy.
class System {
 public:
  /// Opens the device and checks that it speaks KVM API version 12.
  /// Fails (kind host) when the file is missing, is not KVM's, or may not be opened; the text says which and what to
  /// do.
  static Result<System> open(const std::string& path = "/dev/kvm");

  /// Takes over `fd`, the device as somebody else has opened it.
  explicit System(Fd fd) : fd_{std::move(fd)} {}

  /// KVM_CHECK_EXTENSION: 0 when `capability` is absent, otherwise what the API documents for it.
  [[nodiscard]] int check(std::uint32_t capability) const;
  /// The CPUID leaves that KVM can give to a guest on this host.
  [[nodiscard]] Result<CpuidTable> supported_cpuid() const;
  /// A feature MSR: its value says what KVM supports and is the guests' default (KVM_CAP_GET_MSR_FEATURES). Fails if
  /// `index` is no feature MSR.
  [[nodiscard]] Result<std::uint64_t> feature_msr(std::uint32_t index) const;
  /// The MSRs that KVM_GET_MSRS and KVM_SET_MSRS carry for a vCPU on this host.
  [[nodiscard]] Result<std::vector<std::uint32_t>> saved_msrs() const;
  /// Creates an empty VM.
  [[nodiscard]] Result<Vm> create_vm() const;
  /// Bytes of each vCPU's kvm_run mapping.
  [[nodiscard]] Result<std::size_t> run_mapping_size() const;

 private:
  Fd fd_;
};

}  // namespace vmm
