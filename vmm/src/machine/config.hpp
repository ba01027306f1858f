#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/model.hpp"
#include "passthrough/event_policy.hpp"
#include "pmu/msr_router.hpp"
#include "pmu/pmu_vcpu.hpp"
#include "soft/schedule.hpp"
#include "sources/source_options.hpp"
#include "support/result.hpp"
#include "vcpu/guest_clock.hpp"
#include "vpmu/generation.hpp"
#include "vpmu/pmu.hpp"

namespace vmm {

/// What runs a machine's processors.
enum class Accel : std::uint8_t {
  automatic,  ///< Not chosen yet: choose_automatic() takes KVM if it is usable, else the instruction engine.
  kvm,
  soft,  ///< The instruction engine: virtual time, processors take turns, each run is the same.
};

/// "auto", "kvm" or "soft", as on the command line.
std::string_view name_of(Accel accel);

/// Everything that describes a machine. Fill in with designated initialisers; Machine::create checks it once.
struct MachineConfig {
  std::string kernel;     ///< Path of a bzImage or a static 64-bit ELF file.
  std::string restore{};  ///< Path of a snapshot: the machine is made like the saved one, and continues from there; no
                          ///< kernel is loaded.
  std::string initrd{};   ///< Path; empty = none.
  std::shared_ptr<const std::vector<std::byte>> initrd_content{};  ///< Used instead of a path.
  std::string command_line{};
  std::uint64_t memory_bytes{256ULL << 20U};
  unsigned cpus{1};
  unsigned threads_per_core{1};  ///< 2: CPUs are pairs of threads that share a core, and half of its counters each. SDM
                                 ///< 3B 18.2.
  std::string model{"skylake"};
  bool bare_metal{};  ///< CPUID reports no hypervisor: kernels then load drivers that they use on real machines only.
  std::string source{"auto"};  ///< Name of the counting source; "auto" chooses the best that works here.
  SourceOptions
      source_options{};  ///< `compiling` also applies to a guest without KVM. choose_automatic() sets `was_open`.
  EventPolicy events{};  ///< For the source "kvm": which events the guest may count.
  Accel accel{};         ///< Like the source, chosen by machine/automatic.hpp unless it is named.
  std::string kvm_device{"/dev/kvm"};
  UnknownMsr unknown_msr{UnknownMsr::gp};
  TaskCounts* tasks{};  ///< PmuVcpuConfig::tasks, with Accel::soft; must outlive the machine.
  PmuTime pmu_time{PmuTime::hidden};
  vpmu::PmuPolicies pmu_policies{};
  /// The values of RDI and RSI at the entry point of an ELF kernel.
  struct ElfArguments {
    std::uint64_t rdi{};
    std::uint64_t rsi{};
  } elf_arguments{};

  /// With Accel::soft: the time of day at which the guest starts, in seconds since 1970; and how many instructions each
  /// processor may run in total since the start, including those before a snapshot.
  std::int64_t epoch{default_epoch};
  std::uint64_t max_ticks{~0ULL};
  std::optional<Schedule> schedule{};  ///< How its processors take turns; by default as in the snapshot, if there is
                                       ///< one.

  /// 2027-01-01T00:00:00Z: the files of this release are older. The same in each run.
  static constexpr std::int64_t default_epoch = 1'798'761'600;
  static constexpr unsigned max_cpus = 64;
  static constexpr std::int64_t last_epoch =
      253'402'300'799;  ///< The last second of the year 9999: the clock chip has two digits for the century.
};

/// How a user sets a choice, for the end of an advice.
struct ConfigNames {
  std::string_view model{"with --model"};
  std::string_view source{"with --source"};
};

/// The names of a checked configuration, resolved.
struct ResolvedConfig {
  const MachineModel* model{};  ///< Null: the host's own.
  std::string_view source;      ///< A name of the source registry; or pass_through_source.
  [[nodiscard]] bool passes_through() const;
};

/// Checks what can be checked without touching files or the host. Call choose_automatic() before: a source that is
/// still "auto" is refused. While the accelerator is not chosen yet, any source is accepted. Fails with kind usage; the
/// message names the value and the choices, and, from `names`, how to give another.
Result<ResolvedConfig> resolve(const MachineConfig& config, const ConfigNames& names = {});

/// Whether the source has a processor model, whose parameters may be changed. Fails with kind usage.
Result<void> check_model_source(const MachineConfig& config);

/// Bytes of "512M", "1G", "65536K" or a plain number of bytes. Fails with kind usage.
Result<std::uint64_t> parse_size(const std::string& text);

/// The accelerator with that name. Fails with kind usage.
Result<Accel> parse_accel(const std::string& text);

/// The schedule that "N" or "N:SEED" means. Fails with kind usage.
Result<Schedule> parse_schedule(const std::string& text);

}  // namespace vmm
