#pragma once
#include "kvm/cpuid_table.hpp"
#include "processor/guest_features.hpp"
#include "processor/interrupt_unit.hpp"
#include "processor/msr_unit.hpp"
#include "processor/soft_state.hpp"
#include "processor/system_unit.hpp"
#include "processor/virtual_time.hpp"
#include "soft/soft_board.hpp"
#include "soft/soft_statistics.hpp"
#include "vcpu/guest_view.hpp"

namespace vmm {

/// A processor without KVM, except for what runs its instructions: its state, its time, and its units, which work on
/// that state.
struct SoftCore {
  /// `backend`, through which `view` reads the registers, `memory` and `board` must outlive it.
  SoftCore(VcpuBackend& backend, LinearMemory& ram, SoftBoard& shared, CpuidTable told, SoftState start,
           std::uint64_t tsc_khz)
      : memory{ram},
        board{shared},
        cpuid{std::move(told)},
        features{cpuid},
        time{board.clock, tsc_khz, board.core_khz},
        state{std::move(start)},
        view{backend, memory},
        interrupts{state, time, &board.interrupts},
        msrs{state, interrupts, features},
        system{state, view, msrs, interrupts, cpuid, features} {}

  /// Has run that many instructions, of a tick each or of so many.
  void pass_time(std::uint64_t instructions) { pass_time(instructions, instructions); }
  void pass_time(std::uint64_t ticks, std::uint64_t instructions) {
    time.pass(ticks);
    board.ran(state.id, cpl_of(state.sregs) == 0, ticks, instructions);
  }
  /// The registers that determine address translation, and as whom a load or store comes.
  [[nodiscard]] vpmu::PagingState paging() const { return paging_state(state.sregs, state.regs, features.paging()); }
  [[nodiscard]] vpmu::PagingPrivilege privilege() const {
    return cpl_of(state.sregs) == 3 ? vpmu::PagingPrivilege::user : vpmu::PagingPrivilege::supervisor;
  }

  /// Whether CPUID of this leaf is SoftStart::mark_leaf's.
  [[nodiscard]] bool is_mark(std::uint32_t leaf) const {
    return marked && leaf == mark_leaf && cpl_of(state.sregs) == 3;
  }

  LinearMemory& memory;
  SoftBoard& board;
  CpuidTable cpuid;
  GuestFeatures features;
  VirtualTime time;
  SoftState state;
  GuestView view;
  InterruptUnit interrupts;
  MsrUnit msrs;
  SystemUnit system;
  SoftStatistics statistics;
  std::uint32_t mark_leaf{};
  std::function<void()> marked;
};

}  // namespace vmm
