#include "shared/machine_options.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include <fmt/format.h>

#include "command_line.hpp"
#include "jail/identity.hpp"
#include "machine/host_check.hpp"
#include "passthrough/pass_through.hpp"
#include "pmu/registry.hpp"
#include "snapshot/snapshot_file.hpp"

namespace vmm::tool {
namespace {

Steward::Duties duties(const OutsideFiles& files) {
  return {.write_statistics = [files](std::string_view text) { return files.statistics->replace(text); },
          .finish_snapshot = [files] { return files.snapshot->finish(); },
          .clean_up =
              [files] {
                files.statistics.reset();
                files.snapshot.reset();
                if (!files.socket.empty()) ::unlink(files.socket.c_str());
              },
          .keeps = {files.statistics ? files.statistics->number() : -1,
                    files.snapshot ? files.snapshot->descriptor().get() : -1}};
}

/// What the machine of a snapshot ran on, which is all that it can go on on. `unfit`: why KVM is not fit here.
Result<ChosenAccel> accel_of_saved(const std::string& path, const std::optional<Finding>& unfit) {
  VMM_ASSIGN(const SnapshotReader snapshot, SnapshotReader::open(path));
  if (snapshot.image().without_kvm)
    return ChosenAccel{.accel = Accel::soft, .reason = "processors by the instruction engine, as it was saved"};
  if (!unfit) return ChosenAccel{.accel = Accel::kvm, .reason = "processors by KVM"};
  return host_error("the machine of " + printable(path) +
                        " goes on on KVM only, and KVM is not fit: " + unfit->subject + ": " + unfit->finding,
                    0, "see `vpmu doctor`; --accel kvm tries it nevertheless");
}

}  // namespace

// In raw mode the terminal adds no carriage return.
Messages::Messages()
    : end_{::isatty(STDERR_FILENO) != 0 ? "\r\n" : "\n"}, writer_{Fd{::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)}} {}

Log Messages::log(bool verbose) {
  return Log{
      [this](LogLevel level, std::string_view line) { print(fmt::format("vpmu: {}: {}", name_of(level), line)); },
      verbose ? LogLevel::debug : LogLevel::warning};
}

std::vector<std::string> source_choices() {
  std::vector<std::string> names{"auto"};
  for (const auto& source : all_sources()) names.emplace_back(source.traits.name);
  names.emplace_back(pass_through_source);
  return names;
}

void add_machine_options(Command& command, const std::shared_ptr<MachineOptions>& options) {
  auto& machine = options->machine;
  command.add_option("--accel", options->accel, "what runs the guest's code: kvm, soft (no KVM; virtual time), auto")
      .shows_default()
      .suggests({"auto", "kvm", "soft"});
  command.add_flag(
      "--no-jit", [options] { options->machine.compiling = vpmu::exec::never_compiling; },
      "interpret everything that the instruction engine runs: the same, slower");
  command.add_option("--epoch", machine.epoch, "with soft: the time of day at the start, in seconds since 1970")
      .shows_default();
  command.add_option(
      "--schedule", options->schedule,
      fmt::format("with soft: CPUs take turns of so many instructions each ({} without it); N:SEED, of N on "
                  "average, as SEED says",
                  Schedule::default_turn));
  command.add_option("--source", machine.source, "what counts: auto, or a source that `vpmu doctor` lists")
      .shows_default()
      .suggests(source_choices());
  command
      .add_option("--events", options->events,
                  "with source kvm, what the guest may count: all, architectural, standard, or a file")
      .shows_default()
      .takes_file()
      .suggests({"all", "architectural", "standard"});
  command.add_option("--stats", options->stats, "write all counters to this file at the end, as JSON").takes_file();
  command
      .add_option("--timeout", options->timeout, "stop the machine after so many seconds of the host's time; 0: never")
      .shows_default()
      .within(0.0, 1e9);
  command.add_option("--kvm", machine.kvm_device, "the KVM device").shows_default().takes_file();
  command.add_option("--user", options->user, "started as root, the machine runs as this user; without it, as nobody");
  command.add_flag("--no-jail", options->no_jail,
                   "leave the machine all rights of this process, and every system call");
  command.add_flag("--verbose", options->verbose, "tell what the guest does that is unusual");
  add_policies(command, options->policies);
}

Result<ChosenAccel> choose_accel(const MachineOptions& options) {
  if (options.accel == "kvm") return ChosenAccel{.accel = Accel::kvm};
  if (options.accel == "soft") return ChosenAccel{.accel = Accel::soft};
  if (options.accel != "auto")
    return usage_error("unknown accelerator \"" + printable(options.accel) + "\"",
                       "give one of: auto, kvm, soft with --accel");
  const auto findings = examine_host(options.machine.kvm_device);
  const auto found = std::ranges::find(findings, Finding::Verdict::unfit, &Finding::verdict);
  const auto unfit = found == findings.end() ? std::nullopt : std::optional{*found};
  if (!options.machine.restore.empty()) return accel_of_saved(options.machine.restore, unfit);
  if (!unfit) return ChosenAccel{.accel = Accel::kvm, .reason = "processors by KVM"};
  return ChosenAccel{
      .accel = Accel::soft,
      .reason = "processors by the instruction engine; KVM is not fit: " + unfit->subject + ": " + unfit->finding};
}

Result<std::vector<std::string>> settle(MachineOptions& options) {
  VMM_TRY(apply(options.policies, options.machine));
  VMM_ASSIGN(options.machine.events, read_event_policy(options.events));
  if (options.schedule) {
    VMM_ASSIGN(options.machine.schedule, parse_schedule(*options.schedule));
  }
  VMM_ASSIGN(const auto chosen, choose_accel(options));
  options.machine.accel = chosen.accel;
  std::vector<std::string> lines{chosen.reason};
  const auto settle_it = [&] { lines.push_back(settle_source(options.machine)); };
  if (options.no_jail) {
    settle_it();
  } else {
    VMM_TRY(as_jailed(settle_it));
  }
  std::erase(lines, "");
  return lines;
}

Result<std::optional<OutputFile>> open_output(const std::string& path, const std::string& what,
                                              const std::string& option) {
  std::optional<OutputFile> file;
  if (!path.empty()) {
    VMM_ASSIGN(auto opened, OutputFile::open(path, {.what = what, .advice = "give a writable path with " + option}));
    file.emplace(std::move(opened));
  }
  return file;
}

Result<SessionOptions::Confinement> confine(Confinement& confinement, const MachineOptions& options, Daemons daemons,
                                            const OutsideFiles& files, Log& log) {
  if (options.no_jail) {
    if (!options.user.empty()) return usage_error("--user without the jail", "leave --no-jail away");
    log.warning("--no-jail: a guest that breaks out of its machine has all the rights that this process has");
    return SessionOptions::Confinement{};
  }
  const auto& machine = options.machine;
  VMM_ASSIGN(confinement.jail, Jail::create({.user = options.user,
                                             .cpus = machine.restore.empty() ? machine.cpus : MachineConfig::most_cpus,
                                             .counts_by_perf = machine.source == "perf",
                                             .outside_devices = daemons == Daemons::devices},
                                            log));
  const auto process = [&confinement, files]() -> Result<void> {
    VMM_ASSIGN(confinement.steward, Steward::start(duties(files)));
    if (files.statistics) files.statistics->hand_over();
    if (files.snapshot) files.snapshot->hand_over();
    return confinement.jail->enter();
  };
  return SessionOptions::Confinement{.process = process,
                                     .session = [&confinement] { return confinement.jail->confine_main(); },
                                     .vcpu = [&confinement] { return confinement.jail->confine_vcpu(); },
                                     .removes_socket = true};
}

}  // namespace vmm::tool
