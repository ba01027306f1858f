#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "memory/linear.hpp"
#include "pmu/msr_router.hpp"
#include "pmu/pmi.hpp"
#include "pmu/rdpmc_gate.hpp"
#include "pmu/task_counts.hpp"
#include "pmu/uncounted_events.hpp"
#include "sources/source.hpp"
#include "sources/source_options.hpp"
#include "support/log.hpp"
#include "support/result.hpp"
#include "vcpu/backend.hpp"
#include "vcpu/breakpoints.hpp"
#include "vcpu/debug_moves.hpp"
#include "vcpu/guest_tsc.hpp"
#include "vcpu/guest_vcpu.hpp"
#include "vcpu/guest_view.hpp"
#include "vcpu/progress_watch.hpp"
#include "vpmu/pmu.hpp"

namespace vmm {

/// What a surrounding VMM wants for an MSR access: nothing; its exit, which is handed on; or, if it has no exits
/// enabled, a #GP.
enum class ForeignMsr : std::uint8_t { none, exits, faults };

/// How one vCPU's PMU is built.
struct PmuVcpuConfig {
  vpmu::PmuConfig pmu{};
  UncoreAccess uncore{};  ///< The package must outlive the vCPU.
  std::string_view source{"clock"};
  SourceOptions source_options{};
  SourceServices source_services{};
  UnknownMsr unknown_msr{UnknownMsr::gp};
  /// Which MSR accesses a surrounding VMM filters, by KVM_MSR_FILTER_* and index. Exits for a reason other than a
  /// filter are its own, too. Empty: there is no such VMM.
  std::function<ForeignMsr(std::uint32_t access, std::uint32_t index)> foreign_msr{};
  /// Counts a command's events beside the guest's PMU, with a source that can; must outlive the vCPU. May be null.
  TaskCounts* tasks{};
  unsigned cpu{};  ///< The vCPU's number, for `tasks`.
};

struct PmuVcpuStatistics {
  std::uint64_t msr_reads{};        ///< RDMSR exits.
  std::uint64_t msr_writes{};       ///< WRMSR exits.
  std::uint64_t debug_exits{};      ///< KVM_EXIT_DEBUG, of ours and the guest's.
  std::uint64_t guest_debug{};      ///< Of these: the guest's own #DB, injected into it.
  std::uint64_t kvm_debug{};        ///< Of these: KVM's own single-steps, which are ignored.
  std::uint64_t kicks{};            ///< Runs ended by a signal.
  std::uint64_t restores_in_use{};  ///< Restores of a state in which the PMU was in use.
  std::uint64_t debugged_runs{};    ///< Runs for a debugger, which are not counted.
};

/// The state of a vCPU's PMU between runs, including what is pending outside of the core. Consists of plain integers,
/// so that it may be restored elsewhere.
struct PmuVcpuState {
  vpmu::PmuSnapshot pmu{};
  std::uint64_t pending_pmi{};
  std::uint64_t unread{};
  std::uint64_t nmi_in_service{};
};

/// One vCPU with its virtual PMU: runs the guest, answers what concerns the PMU, and hands every other exit to the
/// caller. Made, used and destroyed on the vCPU's thread.
class PmuVcpu final : public GuestVcpu {
 public:
  /// Fails when the source is unknown or cannot be had on this host. `backend`, `memory` and `log` must outlive the
  /// result.
  static Result<std::unique_ptr<PmuVcpu>> create(const PmuVcpuConfig& config, VcpuBackend& backend,
                                                 LinearMemory& memory, Log& log);

  Result<Exit> run() override;

  /// Runs the guest while the PMU has nothing to do, at next to no cost beyond KVM's. After DeviceRun::other_exit,
  /// run() must follow; it continues with that exit.
  VcpuBackend::DeviceRun run_to_device();

  /// Like run(), for a debugger that uses the vCPU's debug facilities as `debugging` says: returns its Debug exits.
  /// Nothing is counted meanwhile, but the PMU's MSRs work.
  Result<Exit> run_debugged(const kvm_guest_debug& debugging);

  /// Another user of the vCPU has set KVM's guest debugging: the next run() sets ours again.
  void given_others_debugging() { breakpoints_.given_others(); }

  /// The state between two runs.
  [[nodiscard]] PmuVcpuState state() const;
  /// Takes over a state that state() gave, here or elsewhere; on any status but ok nothing has changed. Statistics of
  /// the core begin anew.
  Result<vpmu::RestoreStatus> restore(const PmuVcpuState& state);
  Result<Bytes> save() override;
  Result<void> restore(std::span<const std::byte> image) override;
  /// Power-up or RESET of the processor.
  Result<void> reset();

  /// Calls `visit(name, value)` for every statistic of this vCPU, in a fixed order. Not synchronised: call it on this
  /// thread.
  void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const override;

  [[nodiscard]] vpmu::Pmu& pmu() { return pmu_; }

 private:
  /// The environment in which the core runs.
  class Env final : public vpmu::GuestEnv {
   public:
    explicit Env(PmuVcpu& owner) : owner_{&owner} {}
    vpmu::AccessResult read_linear(vpmu::GuestLinear at, std::span<std::byte> out) override {
      return owner_->view_.read(at, out);
    }
    vpmu::AccessResult write_linear(vpmu::GuestLinear at, std::span<const std::byte> in) override {
      return owner_->view_.write(at, in);
    }
    vpmu::AccessResult probe_linear(vpmu::GuestLinear at, std::uint64_t size, vpmu::AccessKind kind) override {
      return owner_->view_.probe(at, size, kind);
    }
    std::uint64_t tsc() override;
    void request_pmi() override { owner_->pmi_.request(); }

   private:
    PmuVcpu* owner_;
  };

  /// The last exit, and its instruction:
  ///
  ///     completed --run()--> open ------complete_exit(), run()-----> completed
  ///     completed --run_to_device()--> open, or waiting --run()--> open, or completed
  enum class LastExit : std::uint8_t {
    completed,  ///< Nothing is left to do for it.
    open,       ///< KVM has not completed the instruction yet.
    waiting,    ///< run_to_device() has left it for run() to handle.
  };
  /// What the source was last given, and what has happened since.
  struct SourcePlan {
    bool armed{};          ///< It has an armed counter.
    bool caches_wanted{};  ///< CountPlan::caches_wanted.
    bool stale{};          ///< The source must be given the plan again.
    bool missed_runs{};    ///< The guest has run without the source.
  };
  /// Walks of the source to the instruction that an armed counter waits for.
  struct Walks {
    bool wait{};       ///< The last one did not end in a record: the guest goes on a little before the next.
    unsigned tries{};  ///< Those that failed since the last that found its instruction.
  };

  PmuVcpu(const PmuVcpuConfig& config, VcpuBackend& backend, LinearMemory& memory, Log& log);
  /// The row of the MSR that an exit wrote to, if it was looked up already.
  using WrittenMsr = std::optional<MsrRouter::Target>;
  [[nodiscard]] bool is_idle() const;
  [[nodiscard]] bool caches_wanted() const { return uncore_.package != nullptr && uncore_.package->counts_caches(); }
  /// One run of the guest; empty when its exit was the PMU's and has been answered.
  Result<std::optional<Exit>> go_on();
  Result<void> look_at_progress();
  Result<void> prepare();
  Result<void> look_at_uncore();
  Result<void> look_at_halt();
  Result<void> deliver_pmis();
  Result<bool> is_leaving_nmi_handler();
  Result<RunEnd> let_run();
  Result<bool> waits_for_handler();
  Result<void> account(const RunEnd& end, const WrittenMsr& written);
  void retire(const Retired& retired);
  [[nodiscard]] ForeignMsr others(const Exit& exit) const;
  /// True when the exit was the PMU's and has been answered.
  Result<bool> handle(const Exit& exit, const WrittenMsr& written = {});
  Result<bool> on_debug(const Debug& exit);
  Result<bool> on_debug_move(const Debug& exit);
  std::optional<std::byte> code_at(std::uint64_t at);
  Result<bool> may_be_kvms(const Debug& exit, const kvm_regs& regs);
  bool stands_at_int1(const Debug& exit, const kvm_regs& regs);
  Result<void> on_read(const MsrRead& access);
  Result<void> on_rdpmc(const CounterRead& access);
  Result<void> follow_use(const MsrWrite& write);
  Result<void> use(bool in_use);
  std::optional<std::uint64_t> rdpmc(std::uint32_t ecx, unsigned cpl, bool pce);
  void was_read(vpmu::CounterId counter);

  VcpuBackend* backend_;
  Log* log_;
  GuestTsc tsc_;
  vpmu::Pmu pmu_;
  GuestView view_;
  Breakpoints breakpoints_;
  RdpmcGate gate_;
  DebugMoves debug_moves_;
  Pmi pmi_;
  UncoreAccess uncore_;
  MsrRouter router_;
  Env env_;
  std::function<ForeignMsr(std::uint32_t access, std::uint32_t index)> foreign_msr_;
  std::unique_ptr<CountSource> source_;
  UncountedEvents uncounted_;
  std::unique_ptr<TaskCounter> tasks_;  ///< Null: nothing is counted beside the PMU.
  vpmu::CounterSet unread_;  ///< Counters that have counted, been written or been deselected since the guest last read
                             ///< them at rest.
  vpmu::CounterSet selected_;  ///< Pmu::selected() after the last write.
  SourcePlan plan_;
  LastExit last_exit_{LastExit::completed};
  Walks walks_;
  bool nmi_in_service_{};  ///< A PMI has been delivered as NMI, and the guest has neither restarted its counters since
                           ///< nor unmasked LVTPC.
  bool got_on_{};          ///< An instruction has retired or an event was delivered in this round of run()'s loop.
  ProgressWatch progress_;
  PmuVcpuStatistics statistics_{};
};

}  // namespace vmm
