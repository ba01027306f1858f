#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <variant>

#include "snapshot/byte_stream.hpp"
#include "support/result.hpp"
#include "vcpu/backend.hpp"
#include "vpmu/plan.hpp"
#include "vpmu/retirement.hpp"

namespace vmm {

class CodeCounts;

/// What a counting source promises.
struct SourceTraits {
  std::string_view name;
  bool exact_counts{};  ///< Every event is counted; otherwise counts are estimates.
  bool precise_ip{};    ///< Records show the instruction that the PEBS rules require.
  bool latency{};       ///< Load latencies and data sources are known.
  bool needs_host_pmu{};
};

/// A retirement together with the registers that its record shows.
struct Retired {
  vpmu::Retirement what;
  vpmu::PebsRegisters registers;
};

/// Asks Pmu::branches_storable() for a privilege level. Empty: there is no such PMU, and each branch is retired
/// individually.
using StorableBranches = std::function<std::uint64_t(unsigned cpl)>;

/// The guest's kernel has gone on with another stack, as Linux does where it goes from one task to another.
struct StackSwitch {
  std::uint64_t from{}, to{};  ///< RDI and RSI: of Linux, the addresses of both tasks.
  std::uint64_t stack{};       ///< RSP behind it.
};

/// A program has executed XCHG RBX, RBX: the end of a client request of Valgrind's, if what stands before it says so.
struct RbxExchange {
  std::uint64_t behind{};  ///< The next instruction.
  std::uint64_t rax{};     ///< Of a request, where its arguments are.
};

/// Why a source came back.
struct RunEnd {
  std::optional<Exit> exit;        ///< The guest did something that the VMM must answer.
  vpmu::BranchRun passed{};        ///< Branches that retired before, in blocks; must go to Pmu::record_branches().
  std::optional<Retired> retired;  ///< One instruction that the source observed retiring; must go to Pmu::retire().
  /// An interrupt or exception delivered after that instruction; must go to Pmu::record_branch(). Set only if the plan
  /// wants branches.
  std::optional<vpmu::TakenBranch> delivered;
  /// What the last instruction did. Only of a source that counts beside the plan.
  std::variant<std::monostate, StackSwitch, RbxExchange> told;
};

/// Answers "what retired?" for one vCPU, and nothing else: it knows nothing of PEBS, PMIs or MSRs. Runs on the vCPU's
/// thread.
///
/// The vCPU loop calls program() when the plan has changed, run() to run the guest, and sync() after each run. While
/// the plan has an armed counter, the loop calls walk() to find the instruction for the record.
class CountSource {
 public:
  virtual ~CountSource() = default;
  [[nodiscard]] virtual const SourceTraits& traits() const = 0;

  /// What to count from now on. sync() must have taken the counts up to now.
  virtual Result<void> program(const vpmu::CountPlan& plan) = 0;
  /// From the next program() on, these plans are counted as well as that one: for somebody beside the guest's PMU, to
  /// whom no overflow matters. `where`, which must outlive the source if it is not null, is told by which code. A
  /// source that does not return false tells each StackSwitch and RbxExchange, too.
  virtual bool count_beside(std::span<const vpmu::CountPlan> /*plans*/, CodeCounts* /*where*/) { return false; }
  /// As sync(), whose part this is: the events of each of these plans since the last call. Valid until the next one.
  virtual std::span<const vpmu::CountDeltas> sync_beside() { return {}; }
  /// Runs the guest until an exit, or until a counter whose overflow the plan wants is due; never much later. With
  /// `at_most` it returns after about that much time even if nothing happened.
  virtual Result<RunEnd> run(VcpuBackend& backend, std::optional<std::chrono::nanoseconds> at_most) = 0;
  /// The events counted since the last call.
  virtual Result<vpmu::CountDeltas> sync(VcpuBackend& backend) = 0;
  /// Runs the guest up to and including the next instruction that some armed counter of the plan counts. Empty if that
  /// is not possible now (wrong privilege level, nothing to decode): the loop tries again later.
  virtual Result<RunEnd> walk(VcpuBackend& backend) = 0;
  /// Called instead of run() and walk() while the back end's kick_flag() is set. Returns to the back end what the
  /// source holds of the vCPU, and runs the back end, which gives Interrupted before any instruction. The result has no
  /// exit only if an instruction that was open has retired: then call it again.
  virtual Result<RunEnd> come_out(VcpuBackend& backend) { return run(backend, std::nullopt); }
  /// An event such as a PMI was raised for the vCPU since the last run: the vCPU must be able to take it before its
  /// next instruction.
  virtual void raised() {}
  /// Whether the guest may run without the source until the next program(): there is nothing to count, and run() and
  /// sync() would add nothing.
  [[nodiscard]] virtual bool is_idle() const { return false; }
  /// Grows with each instruction that the source runs, whether it retires or is counted in a block. 0 for a source that
  /// leaves all of them to the back end.
  [[nodiscard]] virtual std::uint64_t progress() const { return 0; }
  /// The guest has run without the source; `is_open`: the back end has not completed the instruction of its last exit
  /// yet.
  virtual void missed_runs(bool /*is_open*/) {}
  /// State that the source has built up about the guest, as bytes; empty if none. Call it between two runs of the back
  /// end, after one that returned Interrupted. restore() takes the bytes before the first program(). False: they are
  /// not of this source's format, and the source must not be used.
  virtual Result<Bytes> save(VcpuBackend& /*backend*/) { return Bytes{}; }
  virtual Result<bool> restore(VcpuBackend& /*backend*/, std::span<const std::byte> image) { return image.empty(); }
  /// Calls `visit(name, value)` for each statistic of the source.
  virtual void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const = 0;
};

}  // namespace vmm
