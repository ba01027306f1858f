#pragma once
#include <linux/kvm.h>

#include <cstdint>
#include <map>
#include <optional>

#include "exec/state/vector_state.hpp"
#include "processor/local_apic.hpp"
#include "support/x86.hpp"

namespace vmm {

/// The state of a vCPU without KVM, in KVM's structures.
struct SoftState {
  kvm_regs regs{};
  kvm_sregs sregs{};
  kvm_debugregs debug{};
  kvm_vcpu_events events{};
  SoftApic apic;
  vpmu::exec::VectorState vectors;
  std::map<std::uint32_t, __u64> msrs;  ///< MSRs that no other member holds, by index.
  std::uint32_t id{};                   ///< APIC id of the processor.
  bool halted{};
  bool waits_for_start{};                     ///< In the wait-for-SIPI state after INIT. SDM 3A 8.4.
  bool init_pending{};                        ///< INIT has arrived.
  std::optional<std::uint8_t> start_pending;  ///< A start-up IPI with this vector has arrived.
};

/// Makes an NMI pending; at most one waits while another is in service. SDM 3A 6.7.1.
void add_nmi(SoftState& s);
/// The state after INIT: real mode, waiting for a start-up IPI, which names the address. MSRs, vector registers and the
/// TSC are unchanged. SDM 3A table 9-1.
void reset_by_init(SoftState& s);
/// Start-up IPI: real mode, at the start of page `vector`. SDM 3A 8.4.4.
void start_at_page(SoftState& s, std::uint8_t vector);

/// An exception to be delivered. SDM 3A table 6-1.
struct Exception {
  std::uint8_t vector{};
  std::optional<std::uint32_t> error_code;
};
inline constexpr Exception general_protection{.vector = x86::vector::GP, .error_code = 0};
inline constexpr Exception stack_fault{.vector = x86::vector::SS, .error_code = 0};
inline constexpr Exception alignment_check{.vector = x86::vector::AC, .error_code = 0};

}  // namespace vmm
