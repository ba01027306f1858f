#pragma once
#include <functional>
#include <string>
#include <vector>

#include "machine/config.hpp"
#include "machine/host_check.hpp"
#include "pmu/source_choice.hpp"
#include "support/result.hpp"

namespace vmm {

/// What choose_automatic() asks about the host, only if the answer matters. By default it examines this host.
struct HostQuestions {
  /// Examines KVM at that device, like examine_host().
  std::function<std::vector<Finding>(const std::string& kvm_device)> examine{examine_host};
  /// The best source for a guest with or without KVM, like choose_source(). If it fails, so does choose_automatic().
  std::function<Result<SourceChoice>(bool on_kvm)> choose_source{
      [](bool on_kvm) { return vmm::choose_source(on_kvm); }};
};

/// What choose_automatic() has chosen, and why: each for people, one line without line end. Empty for a choice that was
/// not open.
struct Chosen {
  std::string accel;       ///< "processors by KVM", or by the engine and why not by KVM.
  std::string source;      ///< "clock, ...": its name, and why not another.
  std::string time;        ///< "pipeline: ...".
  std::string set;         ///< "l3=16M,dram=240": what of the processor model is not as in the CPU model; not a choice.
  bool passes_over_kvm{};  ///< There is a KVM, and the engine was chosen: the user should know, as guests get slower.
  /// The lines that are not empty.
  [[nodiscard]] std::vector<std::string> lines() const;
};

/// Makes the choices that a configuration leaves open: the accelerator (Accel::automatic) and the source ("auto"). This
/// is the only place that does: `vpmu run`, `vpmu doctor` and Machine::create() call it.
///
/// The accelerator is KVM if no finding on the host is unfit, else the instruction engine. A machine that continues
/// from a snapshot gets the accelerator that it was saved on. The source is the best one for the accelerator.
///
/// On success `config` leaves neither open. If neither was open, asks and changes nothing. Cost: less than a second if
/// the accelerator was open. Fails with kind host if a snapshot needs KVM and that is unfit; with kind usage if the
/// snapshot cannot be read.
Result<Chosen> choose_automatic(MachineConfig& config, const HostQuestions& host);
/// The same, for this host.
Result<Chosen> choose_automatic(MachineConfig& config);

}  // namespace vmm
