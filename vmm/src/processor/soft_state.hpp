#pragma once
#include <linux/kvm.h>

#include <cstdint>
#include <map>
#include <optional>

#include "exec/vector_state.hpp"
#include "processor/local_apic.hpp"
#include "vpmu/bits.hpp"

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
inline constexpr std::uint64_t dr7_gd = vpmu::bit(13);
/// Fields of IA32_APIC_BASE. SDM 3A figure 10-26.
inline constexpr std::uint64_t apic_base_bsp = vpmu::bit(8), apic_base_extd = vpmu::bit(10),
                               apic_base_enabled = vpmu::bit(11), apic_base_address = 0xF'FFFF'F000,
                               apic_base_known = apic_base_bsp | apic_base_extd | apic_base_enabled | apic_base_address;
inline constexpr std::uint8_t vector_de = 0, vector_db = 1, vector_nmi = 2, vector_bp = 3, vector_ud = 6, vector_nm = 7,
                              vector_df = 8, vector_ts = 10, vector_np = 11, vector_ss = 12, vector_gp = 13,
                              vector_pf = 14;
inline constexpr Exception general_protection{.vector = vector_gp, .error_code = 0};
inline constexpr Exception stack_fault{.vector = vector_ss, .error_code = 0};

}  // namespace vmm
