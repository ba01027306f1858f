#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "snapshot/byte_stream.hpp"
#include "support/result.hpp"
#include "vcpu/port.hpp"
#include "vpmu/plan.hpp"
#include "vpmu/retirement.hpp"

namespace vmm {

/// What a counting source promises.
struct SourceTraits {
  std::string_view name;
  bool exact_counts{};  ///< Every event is counted; otherwise counts are estimates.
  bool precise_ip{};    ///< Records stand on the instruction that the rules of PEBS give.
  bool latency{};       ///< Load latencies and data sources are known.
  bool needs_host_pmu{};
};

/// A retirement together with the registers that its record shows.
struct Retired {
  vpmu::Retirement what;
  vpmu::PebsRegisters registers;
};

/// Asks Pmu::branches_storable() for a privilege level. Empty: there is no such PMU, and each branch is retired by
/// itself.
using StorableBranches = std::function<std::uint64_t(unsigned cpl)>;

/// Why a source came back.
struct RunEnd {
  std::optional<Exit> exit;        ///< The guest did something that the VMM must answer.
  vpmu::BranchRun passed{};        ///< Of what retired before, unseen one by one; must go to Pmu::record_branches().
  std::optional<Retired> retired;  ///< One instruction retired under the source's eyes; must go to Pmu::retire().
  /// Behind that an interrupt or exception was delivered; must go to Pmu::record_branch(). Only where the plan wants
  /// branches.
  std::optional<vpmu::TakenBranch> delivered;
};

/// Answers "what retired?" for one vCPU, and nothing else: it knows no PEBS, no PMI, no MSRs. Runs on the vCPU's
/// thread.
///
/// The vCPU loop calls program() when the plan changed, run() to let the guest go on, and sync() after each run. When
/// the plan has an armed counter it calls walk() for the instruction that the record will show.
class CountSource {
 public:
  virtual ~CountSource() = default;
  [[nodiscard]] virtual const SourceTraits& traits() const = 0;

  /// What to count from now on. Counts up to now must have been taken by sync().
  virtual Result<void> program(const vpmu::CountPlan& plan) = 0;
  /// Runs the guest until an exit, or until some counter of the plan that wants its overflow is due; never much later.
  /// With `at_most` it comes back after about that much time on the vCPU even if nothing happened.
  virtual Result<RunEnd> run(VcpuPort& port, std::optional<std::chrono::nanoseconds> at_most) = 0;
  /// The events since the last call.
  virtual Result<vpmu::CountDeltas> sync(VcpuPort& port) = 0;
  /// Lets the guest go on to the end of the next instruction that some armed counter of the plan counts. Empty when
  /// that cannot be done now (wrong privilege level, nothing to decode): the loop tries again after a while.
  virtual Result<RunEnd> walk(VcpuPort& port) = 0;
  /// Instead of run() and walk() while the port's kick_flag() is set: gives the port back what the source holds of the
  /// vCPU and lets it run, which gives Interrupted before any instruction. Without an exit only where an instruction
  /// that was open has retired: call it again.
  virtual Result<RunEnd> come_out(VcpuPort& port) { return run(port, std::nullopt); }
  /// Something was raised for the vCPU since the last run, such as a PMI: it must get the chance to take it before its
  /// next instruction.
  virtual void raised() {}
  /// Whether the guest may run without the source until the next program(): there is nothing to count, and run() and
  /// sync() would add nothing.
  [[nodiscard]] virtual bool is_idle() const { return false; }
  /// The guest did, and KVM has not completed the instruction of its last exit yet.
  virtual void left_open() {}
  /// What it has learnt of the guest and goes on from, as bytes: between two runs of the port, of which the last gave
  /// Interrupted; empty where that is nothing. And the reverse, before its first program(): true where the bytes are of
  /// this source, else it begins without.
  virtual Result<Bytes> save(VcpuPort& /*port*/) { return Bytes{}; }
  virtual Result<bool> restore(VcpuPort& /*port*/, std::span<const std::byte> image) { return image.empty(); }
  /// Calls `visit(name, value)` for each statistic of the source.
  virtual void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const = 0;
};

}  // namespace vmm
