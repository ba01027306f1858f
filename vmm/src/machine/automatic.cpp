#include "machine/automatic.hpp"

#include <algorithm>
#include <optional>

#include "snapshot/snapshot_file.hpp"

namespace vmm {
namespace {

struct AccelChoice {
  Accel accel{};
  std::string why;
  bool passes_over_kvm{};
};

AccelChoice kvm() { return {.accel = Accel::kvm, .why = "processors by KVM"}; }

/// The accelerator that the machine of a snapshot ran on, which it needs. `unfit`: why KVM is not usable here.
Result<AccelChoice> accel_of_saved(const std::string& path, const std::optional<Finding>& unfit) {
  VMM_ASSIGN(const SnapshotReader snapshot, SnapshotReader::open(path));
  if (snapshot.image().without_kvm)
    return AccelChoice{.accel = Accel::soft, .why = "processors by the instruction engine, as it was saved"};
  if (!unfit) return kvm();
  return host_error("the machine of " + printable(path) +
                        " goes on on KVM only, and KVM is not fit: " + unfit->subject + ": " + unfit->finding,
                    0, "see `vpmu doctor`; --accel kvm tries it nevertheless");
}

Result<AccelChoice> choose_accel(const MachineConfig& config, const std::vector<Finding>& findings) {
  const auto found = std::ranges::find(findings, Finding::Verdict::unfit, &Finding::verdict);
  const auto unfit = found == findings.end() ? std::nullopt : std::optional{*found};
  if (!config.restore.empty()) return accel_of_saved(config.restore, unfit);
  if (!unfit) return kvm();
  return AccelChoice{
      .accel = Accel::soft,
      .why = "processors by the instruction engine; KVM is not fit: " + unfit->subject + ": " + unfit->finding,
      .passes_over_kvm = unfit->subject != config.kvm_device};
}

}  // namespace

std::vector<std::string> Chosen::lines() const {
  std::vector<std::string> all;
  if (!accel.empty()) all.push_back(accel);
  if (!source.empty()) all.push_back("source " + source);
  if (!time.empty()) all.push_back("time " + time);
  if (!set.empty()) all.push_back("set " + set);
  return all;
}

Result<Chosen> choose_automatic(MachineConfig& config, const HostQuestions& host) {
  Chosen chosen;
  Accel accel = config.accel;
  if (accel == Accel::automatic) {
    VMM_ASSIGN(AccelChoice choice, choose_accel(config, host.examine(config.kvm_device)));
    accel = choice.accel;
    chosen.accel = std::move(choice.why);
    chosen.passes_over_kvm = choice.passes_over_kvm;
  }
  if (config.source_options.time == TimeModel::pipeline) {
    if (config.source == "auto") {
      config.source = "exact";
      chosen.source = "exact: only it keeps the time of a pipeline";
    } else if (config.source != "exact") {
      return usage_error(fmt::format("source {} keeps no time of a pipeline", printable(config.source)),
                         "give --source exact with --time pipeline");
    }
  }
  if (!config.source_options.changes.empty()) {
    if (config.source == "auto") {
      config.source = "exact";
      chosen.source = "exact: only it has a processor model, whose parameters are set";
    }
    VMM_TRY(check_model_source(config));
    chosen.set = config.source_options.changes.text();
  }
  if (config.source == "auto") {
    VMM_ASSIGN(SourceChoice choice, host.choose_source(accel == Accel::kvm));
    config.source = choice.name;
    config.source_options.was_open = true;
    chosen.source = std::move(choice.why);
  }
  config.accel = accel;
  return chosen;
}

Result<Chosen> choose_automatic(MachineConfig& config) { return choose_automatic(config, HostQuestions{}); }

}  // namespace vmm
