#pragma once
#include <cstdint>

#include "kvm/exit.hpp"
#include "pmu/package_uncore.hpp"
#include "support/log.hpp"
#include "support/result.hpp"
#include "vcpu/backend.hpp"
#include "vcpu/guest_tsc.hpp"
#include "vpmu/pmu.hpp"

namespace vmm {

/// What a guest gets for an MSR that nobody knows.
enum class UnknownMsr : std::uint8_t {
  gp,      ///< #GP(0), as on hardware.
  ignore,  ///< Reads 0, writes vanish.
};

struct MsrStatistics {
  std::uint64_t pmu_reads{};
  std::uint64_t pmu_writes{};
  std::uint64_t faults{};
  std::uint64_t unknown{};
  std::uint64_t lost_branch_stepping{};  ///< Writes of DEBUGCTL.BTF that KVM did not accept.
};

/// A vCPU's view of the uncore. Without one its MSRs are unknown.
struct UncoreAccess {
  PackageUncore* package{};
  unsigned id{};             ///< Of the vCPU.
  std::uint64_t core_khz{};  ///< The frequency of the cores; 0: the TSC's.
};

/// Answers the guest's RDMSR and WRMSR that come to user space: the PMU first, the uncore and
/// power management of the package, then policy. The first
/// access to each unknown MSR is logged.
class MsrRouter {
 public:
  MsrRouter(vpmu::Pmu& pmu, UncoreAccess uncore, VcpuBackend& backend, GuestTsc& tsc, UnknownMsr unknown, Log& log)
      : pmu_{&pmu}, uncore_{uncore}, backend_{&backend}, tsc_{&tsc}, unknown_{unknown}, log_{&log} {}

  /// Who answers for an MSR, looked up once per access.
  struct Target {
    vpmu::MsrIndex index;
    vpmu::FoundMsr core;   ///< Empty: not the PMU; the uncore or nobody.
    bool is_p6_counter{};  ///< A P6 counter or select that the PMU lacks: it holds nothing.
  };
  [[nodiscard]] Target find(std::uint32_t index) const;

  void read(const MsrRead& access);
  /// May change the guest's BTF setting in KVM: DEBUGCTL[1] works in KVM, the rest of the register in the PMU.
  void write(const MsrWrite& access, const Target& target);

  /// Call when #DB is about to be injected: clears DEBUGCTL.BTF as the CPU would, in KVM too (rule Z11).
  void on_debug_exception();
  /// Sets BTF in KVM, as write() of DEBUGCTL does; for a guest from a snapshot.
  void set_branch_stepping(bool on);

  /// Whether write() will answer with #GP.
  [[nodiscard]] bool faults(const MsrWrite& access, const Target& target) const;

  [[nodiscard]] const MsrStatistics& statistics() const { return statistics_; }

 private:
  void unknown(std::uint32_t index, const char* what, const MsrReply& reply);
  [[nodiscard]] vpmu::MsrReadResult read_from(const Target& target);
  void note_cleared_btf();
  vpmu::MsrStatus write_to(const Target& target, std::uint64_t value);

  vpmu::Pmu* pmu_;
  UncoreAccess uncore_;
  VcpuBackend* backend_;
  GuestTsc* tsc_;
  UnknownMsr unknown_;
  Log* log_;
  bool btf_{};  ///< BTF is set in KVM, or was until a #DB.
  MsrStatistics statistics_{};
};

}  // namespace vmm
