#pragma once
#include <map>
#include <string>
#include <string_view>

#include "exec/engine.hpp"
#include "lockstep/lockstep_compare.hpp"
#include "lockstep/lockstep_path.hpp"
#include "lockstep/overlay_ram.hpp"
#include "memory/host_code.hpp"
#include "perf/cpu_timer.hpp"
#include "vcpu/breakpoints.hpp"
#include "vcpu/guest_view.hpp"

namespace vmm {

struct LockstepStatistics {
  std::uint64_t compared{};    ///< Instructions with the same result by the engine and by KVM.
  std::uint64_t user{};        ///< Of these: in user mode.
  std::uint64_t one_by_one{};  ///< Of these: which the engine ran one by one.
  std::uint64_t stepped{};     ///< Of these: each compared by itself.
  std::uint64_t runs{};        ///< Runs of them, each compared at its end.
  std::uint64_t vectors{};     ///< Of these: which used vector or x87 registers.
  std::uint64_t left{};        ///< Instructions that the engine did not run.
  std::uint64_t unclear{};     ///< Instructions not compared because of an exit or an interrupt.
  std::uint64_t not_begun{};   ///< Runs of which KVM did nothing, because the host gave it no time.
  std::uint64_t lost_ways{};   ///< Times that the engine's path did not match the decoded code.
  std::uint64_t windows{};
  std::map<std::string_view, std::uint64_t> mnemonics;  ///< Of those compared.
  std::map<std::string_view, std::uint64_t>
      left_by_mnemonic;  ///< If the engine knows the mnemonic, it would have faulted.
};

/// Keeps the vector state for an engine that must not change the vCPU's.
class LockstepPlatform final : public vpmu::exec::NoPlatform {
 public:
  /// Drops the copies: the state comes from `backend` again.
  void begin(VcpuBackend& backend) {
    backend_ = &backend;
    before_.reset();
    now_.reset();
  }
  void rewind() { now_.reset(); }
  vpmu::exec::VectorState* vectors() override;
  /// The state after the engine's run; null if the engine did not need it.
  [[nodiscard]] const vpmu::exec::VectorState* used() const { return now_ ? &*now_ : nullptr; }
  [[nodiscard]] const vpmu::exec::VectorState* before() const { return before_ ? &*before_ : nullptr; }

 private:
  VcpuBackend* backend_{};
  std::optional<vpmu::exec::VectorState> before_, now_;
};

/// Has the engine and KVM do the same runs of thousands of instructions, each without a stop, and compares the results:
/// general registers, RIP, RFLAGS, segment bases, all memory that the engine touched, and vector and x87 registers
/// where it used them.
///
/// The engine runs first, on copies, and a breakpoint ends KVM's run where the engine's ended. Nothing comes in
/// between: interrupts are held off. The engine does not run instructions by which the guest could notice that, so they
/// end a run. If the results differ, shorter runs from the same beginning find the instruction at which they diverge.
class LockstepRuns {
 public:
  /// All must outlive it.
  LockstepRuns(CpuTimer& timer, Breakpoints& breakpoints, GuestView& view, const LinearMemory& memory,
               LockstepStatistics& statistics)
      : timer_{&timer},
        breakpoints_{&breakpoints},
        ram_{memory},
        path_{memory, statistics.mnemonics},
        view_{&view},
        statistics_{&statistics} {
    scout_.observe(&path_);
  }

  struct Outcome {
    bool passed{};             ///< The vCPU is at the end of a run; if false, it has not moved.
    bool left{};               ///< The engine does not run its next instruction.
    bool round_and_round{};    ///< It is in a loop, and no farther place is found: nothing to learn here for a while.
    std::optional<Exit> exit;  ///< An exit that came in between.
  };
  /// Fails if the results differ. No event may be pending that comes before the vCPU's next instruction.
  Result<Outcome> run(VcpuBackend& backend);

  [[nodiscard]] OverlayRam& ram() { return ram_; }
  [[nodiscard]] LockstepPlatform& platform() { return platform_; }
  [[nodiscard]] vpmu::exec::Engine& engine() { return engine_; }

 private:
  enum class Pace : std::uint8_t { in_one_go, one_by_one };
  /// What a run starts from.
  struct Start {
    kvm_regs regs;
    kvm_sregs sregs;
    kvm_vcpu_events events;
    vpmu::exec::CpuState state;
    Pace pace;
  };
  struct Verdict {
    std::optional<Difference> difference;
    std::optional<Exit> exit;  ///< The exit that ended the run early, or a kick that did not.
    bool unclear{};
    bool has_begun{true};  ///< KVM has run something.
  };

  Place scout(const VcpuBackend& backend, const Start& start);
  void run_engine(const Start& start, const Place& to);
  Result<Verdict> try_to(VcpuBackend& backend, const Start& start, const Place& to);
  Result<Verdict> run_kvm(VcpuBackend& backend, const Start& start, const Place& to);
  Result<std::optional<Difference>> compare(VcpuBackend& backend, const Place& to);
  Result<void> restore(VcpuBackend& backend, const Start& start);
  Result<std::string> explain(VcpuBackend& backend, Start start, const Place& end, const Difference& difference);
  void count(const Start& start, const Place& to);

  CpuTimer* timer_;
  Breakpoints* breakpoints_;
  OverlayRam ram_;
  LockstepPlatform platform_;
  MappedHostCode scout_code_, host_code_;
  vpmu::exec::Engine scout_{ram_, platform_, &scout_code_};
  vpmu::exec::Engine engine_{ram_, platform_, &host_code_};
  LockstepPath path_;
  GuestView* view_;
  LockstepStatistics* statistics_;
  bool scout_left_{};
  bool is_way_{};
  bool is_round_and_round_{};
};

}  // namespace vmm
