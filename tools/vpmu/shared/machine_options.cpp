#include "shared/machine_options.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <utility>

#include "command_line.hpp"
#include "jail/identity.hpp"
#include "model/model.hpp"
#include "model/own_part.hpp"
#include "passthrough/pass_through.hpp"
#include "pmu/registry.hpp"
#include "pmu/uncounted_events.hpp"
#include "shared/set_option.hpp"
#include "timing/core_timer.hpp"
#include "vpmu/generation.hpp"

namespace vmm::tool {
namespace {

Broker::Duties duties(const OutsideFiles& files) {
  return {.write_statistics = [files](std::string_view text) { return files.statistics->replace(text); },
          .finish_snapshot = [files] { return files.snapshot->finish(); },
          .open_event = linux_event_opener(),
          .clean_up =
              [files] {
                files.statistics.reset();
                files.snapshot.reset();
                if (!files.socket.empty()) ::unlink(files.socket.c_str());
              },
          .keeps = {files.statistics ? files.statistics->number() : -1,
                    files.snapshot ? files.snapshot->descriptor().get() : -1}};
}

/// The best source that works: the broker keeps this process's right to open events. To measure a single command,
/// exact counts are wanted, not the clock's estimates: then `exact` replaces the clock.
Result<SourceChoice> choose_source_for(const MachineOptions& options, bool on_kvm) {
  SourceChoice choice = choose_source(on_kvm);
  if (options.counts_one_command && choice.name == "clock")
    return SourceChoice{.name = "exact",
                        .why = "exact: what is counted is run by the engine; --source clock is faster, and estimates"};
  return choice;
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

namespace {

constexpr std::array time_names{std::pair{"instructions", TimeModel::instructions},
                                std::pair{"pipeline", TimeModel::pipeline}};

Result<TimeModel> parse_time(std::string_view name) {
  for (const auto& [known, time] : time_names)
    if (known == name) return time;
  return usage_error(fmt::format("unknown time \"{}\"", name), "give auto, instructions or pipeline with --time");
}

/// Whether `auto` is the pipeline's time: it says what a CPU would, where that was compared with one.
bool has_compared_time(const MachineConfig& machine) {
  const MachineModel* const model = find_machine_model(machine.model);
  return machine.source == "exact" && machine.restore.empty() && model != nullptr &&
         vpmu::timing::microarchitecture_of(vpmu::describe(model->generation).name).is_compared;
}

}  // namespace

std::string_view name_of(TimeModel time) {
  for (const auto& [name, known] : time_names)
    if (known == time) return name;
  return {};
}

std::vector<std::string> source_choices() {
  std::vector<std::string> names{"auto"};
  for (const auto& source : all_sources()) names.emplace_back(source.traits.name);
  names.emplace_back(pass_through_source);
  return names;
}

void add_machine_options(Command& command, const std::shared_ptr<MachineOptions>& options) {
  auto& machine = options->machine;
  command.begin_section("Counting and time");
  command.add_option("--source", machine.source, "what counts: auto, or a source that `vpmu doctor` lists")
      .shows_default()
      .suggests(source_choices());
  command
      .add_option(
          "--time", options->time,
          "with source exact, how long instructions take: instructions, a cycle each; pipeline, by a model of "
          "the core, slower; auto, pipeline where its error is known. A restored machine goes on as it was saved")
      .shows_default()
      .suggests({"auto", "instructions", "pipeline"});
  add_set_option(command, options->set);
  command.add_option("--stats", options->stats, "write all counters to this file at the end, as JSON").takes_file();
  add_policies(command, options->policies);
  command
      .add_option("--events", options->events,
                  "with source kvm, what the guest may count: all, architectural, standard, or a file")
      .shows_default()
      .takes_file()
      .suggests({"all", "architectural", "standard"});
  command
      .add_option("--uncounted", options->uncounted,
                  "if the guest counts an event that the source does not deliver, and so reads 0: warn, error (fail at "
                  "the end) or silent")
      .shows_default()
      .one_of({"warn", "error", "silent"});
  command.begin_section("How the guest's code runs");
  command.add_option("--accel", options->accel, "what runs the guest's code: kvm, soft (no KVM; virtual time), auto")
      .shows_default()
      .suggests({"auto", "kvm", "soft"});
  command.add_option("--timeout", options->timeout, "stop the machine after N seconds of the host's time; 0: never")
      .shows_default()
      .within(0.0, 1e9);
  command.add_option("--schedule", options->schedule,
                     fmt::format("with soft: CPUs take turns of N ticks each, an instruction or, with --time pipeline, "
                                 "its cycles (default {}); N:SEED: of N on average, "
                                 "at random from this seed",
                                 Schedule::default_quantum));
  command.add_option("--epoch", machine.epoch, "with soft: the time of day at the start, in seconds since 1970")
      .shows_default();
  command.add_flag(
      "--no-jit", [options] { options->machine.source_options.compiling = vpmu::exec::never_compiling; },
      "do not compile code in the instruction engine: the same results, slower");
  command.add_option("--kvm", machine.kvm_device, "the KVM device").shows_default().takes_file();
  command.add_option("--user", options->user, "if started as root, run the machine as this user; default: nobody");
  command.add_flag("--no-jail", options->no_jail,
                   "let the machine keep all rights of this process, and every system call");
  command.add_flag("--verbose", options->verbose, "also print what the guest does that is unusual");
}

std::optional<Error> uncounted_events(const MachineOptions& options, const MachineStatistics& statistics) {
  constexpr std::size_t most = 8;
  std::set<std::string> names;
  for (const VcpuStatistics& vcpu : statistics.vcpus)
    for (const Statistic& one : vcpu.counters)
      if (one.name.starts_with(UncountedEvents::prefix))
        names.insert(std::string{one.name.substr(UncountedEvents::prefix.size())});
  if (names.empty() || options.uncounted == "silent") return std::nullopt;
  std::vector<std::string> shown{names.begin(),
                                 std::next(names.begin(), static_cast<std::ptrdiff_t>(std::min(most, names.size())))};
  if (names.size() > most) shown.push_back(fmt::format("{} more", names.size() - most));
  const bool has_time = options.machine.source_options.time == TimeModel::pipeline;
  return Error{.kind = ErrorKind::host,
               .what = fmt::format("the guest has counted events that the source {} does not deliver, and read 0: {}",
                                   options.machine.source, fmt::join(shown, ", ")),
               .advice = fmt::format("see `vpmu events --model {}`{}", options.machine.model,
                                     has_time ? "" : "; --time pipeline delivers more")};
}

Result<Chosen> choose_automatic(MachineOptions& options) {
  VMM_TRY(apply(options.policies, options.machine));
  VMM_ASSIGN(options.machine.events, read_event_policy(options.events));
  if (options.time != "auto") {
    VMM_ASSIGN(options.machine.source_options.time, parse_time(options.time));
  }
  VMM_ASSIGN(options.machine.source_options.changes, read_changes(options.set));
  // A saved machine's model is known only when it is read.
  if (const MachineModel* const model = find_machine_model(options.machine.model);
      model != nullptr && options.machine.restore.empty())
    VMM_TRY(changed_profile(vpmu::describe(model->generation), options.machine.source_options.changes));
  if (options.schedule) {
    VMM_ASSIGN(options.machine.schedule, parse_schedule(*options.schedule));
  }
  VMM_ASSIGN(options.machine.accel, parse_accel(options.accel));
  VMM_ASSIGN(Chosen chosen, choose_automatic(options.machine, {.choose_source = [&](bool on_kvm) {
                                               return choose_source_for(options, on_kvm);
                                             }}));
  if (options.time == "auto" && has_compared_time(options.machine)) {
    options.machine.source_options.time = TimeModel::pipeline;
    chosen.time = "pipeline: cycles by a model of the core; --time instructions is faster, a cycle each";
  }
  return chosen;
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
                                             .cpus = machine.restore.empty() ? machine.cpus : MachineConfig::max_cpus,
                                             .counts_by_perf = machine.source == "perf",
                                             .outside_devices = daemons == Daemons::devices},
                                            log));
  const auto process = [&confinement, files]() -> Result<void> {
    VMM_ASSIGN(confinement.broker, Broker::start(duties(files)));
    if (files.statistics) files.statistics->hand_over();
    if (files.snapshot) files.snapshot->hand_over();
    return confinement.jail->enter();
  };
  return SessionOptions::Confinement{
      .process = process,
      .session = [&confinement] { return confinement.jail->confine_main(); },
      .vcpu = [&confinement] { return confinement.jail->confine_vcpu(); },
      .perf_hosts = linux_perf_hosts([&confinement](const PerfEventSpec& spec, pid_t thread) {
        return confinement.broker.open_event(spec, thread);
      }),
      .removes_socket = true};
}

}  // namespace vmm::tool
