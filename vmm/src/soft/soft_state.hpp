#pragma once
#include <linux/kvm.h>

#include <cstdint>
#include <map>
#include <optional>

#include "exec/vector_state.hpp"
#include "soft/local_apic.hpp"

namespace vmm {

/// What a vCPU without KVM consists of, in KVM's own terms.
struct SoftState {
  kvm_regs regs{};
  kvm_sregs sregs{};
  kvm_debugregs debug{};
  kvm_vcpu_events events{};
  SoftApic apic;
  vpmu::exec::VectorState vectors;
  std::map<std::uint32_t, __u64> msrs;  ///< Those that nobody else keeps, by index.
  __u64 tsc{};
  bool halted{};
};

/// An exception to be delivered. SDM 3A table 6-1.
struct Exception {
  std::uint8_t vector{};
  std::optional<std::uint32_t> error_code;
};
inline constexpr std::uint8_t vector_de = 0, vector_db = 1, vector_nmi = 2, vector_bp = 3, vector_ud = 6, vector_nm = 7,
                              vector_df = 8, vector_ts = 10, vector_np = 11, vector_ss = 12, vector_gp = 13,
                              vector_pf = 14;
inline constexpr Exception general_protection{.vector = vector_gp, .error_code = 0};
inline constexpr Exception stack_fault{.vector = vector_ss, .error_code = 0};

}  // namespace vmm
