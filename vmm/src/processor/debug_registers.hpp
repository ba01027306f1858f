#pragma once
#include <span>

#include "processor/soft_state.hpp"

namespace vmm {

/// One memory access of an instruction.
struct Access {
  std::uint64_t at{};
  std::uint16_t bytes{};
  bool write{};
  bool stack{};  ///< Through SS: a noncanonical address raises #SS.
};

/// The debug facilities in force: the host's (KVM_SET_GUEST_DEBUG) or the guest's.
struct Watch {
  std::array<std::uint64_t, 4> at{};
  std::uint64_t dr7{};
  bool host_step{};   ///< KVM_GUESTDBG_SINGLESTEP.
  bool guest_step{};  ///< The guest's RFLAGS.TF.
  bool to_host{};     ///< A hit is an exit, not a #DB of the guest.

  [[nodiscard]] bool any() const { return host_step || guest_step || (dr7 & 0xFF) != 0; }
};

Watch watch_of(const SoftState& state, const kvm_guest_debug& host);
/// The guest's breakpoints alone.
Watch watch_of(const kvm_debugregs& guest);
/// Whether any breakpoint is a data breakpoint.
bool watches_data(const Watch& watch);
/// Whether any data breakpoint is less than `distance` bytes below or above `at`.
bool watches_data_near(const Watch& watch, std::uint64_t at, std::uint64_t distance);
/// Breakpoints on execution at `rip`, as bits of DR6. SDM 3B 17.2.
std::uint64_t execution_hits(const Watch& watch, std::uint64_t rip);
/// Breakpoints on the data that an instruction has accessed, as bits of DR6.
std::uint64_t data_hits(const Watch& watch, std::span<const Access> accesses);
/// I/O breakpoints on a port access, as bits of DR6; they exist while CR4.DE is set.
std::uint64_t port_hits(const Watch& watch, std::uint16_t port, std::uint8_t bytes);

}  // namespace vmm
