#pragma once
#include <functional>
#include <string>
#include <vector>

#include "machine/config.hpp"
#include "machine/host_check.hpp"
#include "pmu/source_choice.hpp"
#include "support/result.hpp"

namespace vmm {

/// What settle() asks of the host, and only where the answer decides. By default it looks for itself.
struct HostQuestions {
  /// All about KVM at that device, as examine_host().
  std::function<std::vector<Finding>(const std::string& kvm_device)> examine{examine_host};
  /// Which source is the best for a guest that runs on KVM or not, as choose_source(). A failure is settle()'s.
  std::function<Result<SourceChoice>(bool on_kvm)> choose_source{
      [](bool on_kvm) { return vmm::choose_source(on_kvm); }};
};

/// What settle() has chosen, and why: each for people, one line without its end. Empty where nothing was left open.
struct Settled {
  std::string accel;   ///< "processors by KVM", or by what else, and why not by KVM.
  std::string source;  ///< "clock, ...": its name, and why not another.
  /// Those that are not empty, to be shown one by one.
  [[nodiscard]] std::vector<std::string> lines() const;
};

/// Decides what a configuration leaves open: the accelerator (Accel::automatic) and the source ("auto"). This is the
/// only place that does: `vpmu run` and `vpmu doctor` call it, and Machine::create().
///
/// The accelerator is KVM where no finding on the host is unfit, else the instruction engine. A machine that goes on
/// from a snapshot has the one that it was saved on. The source is the best one for that accelerator.
///
/// On success `config` leaves neither open. Asks nothing, and changes nothing, where neither was. Cost: less than a
/// second where the accelerator was open. Fails with kind host where a snapshot needs KVM and that is not fit; with
/// kind usage where the snapshot cannot be read.
Result<Settled> settle(MachineConfig& config, const HostQuestions& host);
/// The same, by what settle() finds on this host itself.
Result<Settled> settle(MachineConfig& config);

}  // namespace vmm
