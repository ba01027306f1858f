#pragma once
#include <span>

#include "processor/soft_state.hpp"

namespace vmm {

/// One memory access of an instruction.
struct Access {
  std::uint64_t at{};
  std::uint16_t bytes{};
  bool write{};
  bool stack{};  ///< Through SS: what is not canonical is #SS.
};

/// The debug facilities that are in force: the host's (KVM_SET_GUEST_DEBUG) or the guest's.
struct Watch {
  std::array<std::uint64_t, 4> at{};
  std::uint64_t dr7{};
  bool host_step{};   ///< KVM_GUESTDBG_SINGLESTEP.
  bool guest_step{};  ///< The guest's RFLAGS.TF.
  bool to_host{};     ///< A hit is an exit, not the guest's #DB.

  [[nodiscard]] bool any() const { return host_step || guest_step || (dr7 & 0xFF) != 0; }
};

Watch watch_of(const SoftState& state, const kvm_guest_debug& host);
/// The guest's breakpoints alone.
Watch watch_of(const kvm_debugregs& guest);
/// Whether any breakpoint is on data.
bool watches_data(const Watch& watch);
/// Whether any of these is less than `distance` bytes from `at`, before or behind it.
bool watches_data_near(const Watch& watch, std::uint64_t at, std::uint64_t distance);
/// Breakpoints on execution at `rip`, as bits of DR6. SDM 3B 17.2.
std::uint64_t execution_hits(const Watch& watch, std::uint64_t rip);
/// Breakpoints on the data that an instruction has touched.
std::uint64_t data_hits(const Watch& watch, std::span<const Access> accesses);

}  // namespace vmm
