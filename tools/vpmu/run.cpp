#include "run.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "command_line.hpp"
#include "control/bounded_writer.hpp"
#include "control/session.hpp"
#include "files/distinct_files.hpp"
#include "files/output_file.hpp"
#include "jail/identity.hpp"
#include "jail/jail.hpp"
#include "jail/steward.hpp"
#include "machine/config.hpp"
#include "machine/host_check.hpp"
#include "policy_options.hpp"
#include "virt/import.hpp"

namespace vmm::tool {
namespace {

struct RunArguments {
  MachineConfig machine;
  SessionOptions session;
  PolicyArguments policies;
  std::string memory{"256M"};
  std::string accel{"auto"};
  std::string events{"all"};
  std::string stats;
  std::string model_log;
  std::string domain;
  std::string connect;
  double timeout{};
  std::string user;
  bool no_jail{};
  bool verbose{};
};

/// Standard error, for lines from any thread: no vCPU waits for whoever reads them.
class Messages {
 public:
  void print(const std::string& line) { writer_.put(line + end_); }

 private:
  // In raw mode the terminal adds no carriage return.
  const char* end_{::isatty(STDERR_FILENO) != 0 ? "\r\n" : "\n"};
  BoundedWriter writer_{Fd{::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)}};
};

int exit_code_of(StopReason reason) {
  switch (reason) {
    case StopReason::power_off: return run_power_off;
    case StopReason::reset: return run_reset;
    case StopReason::guest_panic: return run_guest_panic;
    case StopReason::triple_fault: return run_triple_fault;
    case StopReason::user: return run_stopped_by_user;
    case StopReason::time_limit: return run_time_limit;
    case StopReason::host_failure: return run_host_failure;
  }
  return run_host_failure;
}

/// A file to write; none without a path.
Result<std::optional<OutputFile>> open_output(const std::string& path, const std::string& what,
                                              const std::string& option) {
  std::optional<OutputFile> file;
  if (!path.empty()) {
    VMM_ASSIGN(auto opened, OutputFile::open(path, {.what = what, .advice = "give a writable path with " + option}));
    file.emplace(std::move(opened));
  }
  return file;
}

/// The file of --model-log.
class ModelLogFile {
 public:
  /// Takes over `machine`'s log where there is a path.
  static Result<ModelLogFile> open(const std::string& path, MachineConfig& machine) {
    VMM_ASSIGN(auto file, open_output(path, "the model log", "--model-log"));
    ModelLogFile log{std::move(file)};
    if (!log.file_) return log;
    VMM_ASSIGN(Fd fd, log.file_->descriptor());
    log.writer_ = std::make_shared<BoundedWriter>(std::move(fd));
    machine.model_log = [writer = log.writer_](const ModelledAccess& m) { writer->put(describe(m) + "\n"); };
    return log;
  }

  Result<void> begin() { return file_ ? file_->begin() : Result<void>{}; }
  Result<void> finish() {
    const auto totals = writer_ ? writer_->finish() : BoundedWriter::Totals{};
    if (totals.dropped == 0) return {};
    return host_error(fmt::format("{} bytes of the model log are lost: cannot write them", totals.dropped),
                      totals.error, "give a regular file with room with --model-log");
  }

 private:
  explicit ModelLogFile(std::optional<OutputFile> file) : file_{std::move(file)} {}

  std::optional<OutputFile> file_;
  std::shared_ptr<BoundedWriter> writer_;
};

/// Before any of them is opened.
Result<void> check_files(const RunArguments& arguments) {
  const auto& machine = arguments.machine;
  std::error_code error;
  const bool events_are_in_a_file = std::filesystem::is_regular_file(arguments.events, error);
  const std::array read{NamedFile{"--kernel", machine.kernel}, NamedFile{"--initrd", machine.initrd},
                        NamedFile{"--restore", machine.restore},
                        NamedFile{"--events", events_are_in_a_file ? arguments.events : ""}};
  const std::array written{
      NamedFile{"--console", arguments.session.console == "stdio" ? "" : arguments.session.console},
      NamedFile{"--model-log", arguments.model_log}, NamedFile{"--stats", arguments.stats}};
  return check_distinct(read, written);
}

/// What runs the guest's code, and what to tell the user where he left that open.
struct ChosenAccel {
  Accel accel{};
  std::string reason;
};

/// KVM where `vpmu doctor` finds it fit.
Result<ChosenAccel> choose_accel(const RunArguments& arguments) {
  if (arguments.accel == "kvm") return ChosenAccel{.accel = Accel::kvm};
  if (arguments.accel == "soft") return ChosenAccel{.accel = Accel::soft};
  if (arguments.accel != "auto")
    return usage_error("unknown accelerator \"" + printable(arguments.accel) + "\"",
                       "give one of: auto, kvm, soft with --accel");
  const auto findings = examine_host(arguments.machine.kvm_device);
  const auto unfit = std::ranges::find(findings, Finding::Verdict::unfit, &Finding::verdict);
  if (unfit == findings.end()) return ChosenAccel{.accel = Accel::kvm, .reason = "processors by KVM"};
  if (!arguments.machine.restore.empty())
    return host_error("the machine of " + printable(arguments.machine.restore) +
                          " goes on on KVM only, and KVM is not fit: " + unfit->subject + ": " + unfit->finding,
                      0, "see `vpmu doctor`; --accel kvm tries it nevertheless");
  return ChosenAccel{
      .accel = Accel::soft,
      .reason = "processors by the instruction engine; KVM is not fit: " + unfit->subject + ": " + unfit->finding};
}

/// Says what of the guest's output is lost. Fails when the descriptor refused it.
Result<void> tell_of_lost_output(const BoundedWriter::Totals& console, Messages& messages) {
  if (console.dropped == 0) return {};
  const auto lost = fmt::format("{} bytes of the guest's console are lost", console.dropped);
  if (console.error != 0 && console.error != EPIPE)
    return host_error(lost + ": cannot write them", console.error, "give a file with room with --console");
  messages.print(fmt::format(
      "vpmu: {}: {}", lost,
      console.error == EPIPE ? "its reader has gone" : "its reader was too slow; a file loses none: --console FILE"));
  return {};
}

/// The machine's jail, and who does for it what it may not do from there. Neither without the jail.
struct Confinement {
  std::unique_ptr<Jail> jail;
  Steward steward;

  Result<void> write(OutputFile& statistics, const std::string& text) {
    return jail ? steward.write_statistics(text) : statistics.replace(text);
  }
};

Steward::Duties duties(const std::string& socket, std::optional<OutputFile>& statistics) {
  return {.write_statistics = [&statistics](std::string_view text) { return statistics->replace(text); },
          .clean_up =
              [&socket, &statistics] {
                statistics.reset();
                if (!socket.empty()) ::unlink(socket.c_str());
              },
          .keeps = statistics ? statistics->number() : -1};
}

/// Tells the session what it is confined by. The confinement and the file must outlive it.
Result<void> prepare(Confinement& confinement, RunArguments& arguments, std::optional<OutputFile>& statistics,
                     Log& log) {
  if (arguments.no_jail) {
    if (!arguments.user.empty()) return usage_error("--user without the jail", "leave --no-jail away");
    log.warning("--no-jail: a guest that breaks out of its machine has all the rights that this process has");
    return {};
  }
  const auto& machine = arguments.machine;
  VMM_ASSIGN(confinement.jail, Jail::create({.user = arguments.user,
                                             .cpus = machine.restore.empty() ? machine.cpus : MachineConfig::most_cpus,
                                             .counts_by_perf = machine.source == "perf"},
                                            log));
  const auto process = [&confinement, &statistics, &socket = arguments.session.control_path]() -> Result<void> {
    VMM_ASSIGN(confinement.steward, Steward::start(duties(socket, statistics)));
    if (statistics) statistics->hand_over();
    return confinement.jail->enter();
  };
  arguments.session.confinement = {.process = process,
                                   .session = [&confinement] { return confinement.jail->confine_main(); },
                                   .vcpu = [&confinement] { return confinement.jail->confine_vcpu(); },
                                   .removes_socket = true};
  return {};
}

Result<int> run(RunArguments& arguments, Messages& messages) {
  VMM_ASSIGN(arguments.machine.memory_bytes, parse_size(arguments.memory));
  if (!arguments.domain.empty()) {
    VMM_ASSIGN(const auto domains, connect_to_libvirt(arguments.connect));
    VMM_TRY(take_domain(*domains, arguments.domain, arguments.machine));
  }
  VMM_TRY(apply(arguments.policies, arguments.machine));
  VMM_ASSIGN(arguments.machine.events, read_event_policy(arguments.events));
  VMM_TRY(check_files(arguments));
  arguments.session.timeout = std::chrono::duration<double>{arguments.timeout};
  VMM_ASSIGN(auto statistics, open_output(arguments.stats, "the statistics file", "--stats"));
  VMM_ASSIGN(auto model_log, ModelLogFile::open(arguments.model_log, arguments.machine));
  VMM_ASSIGN(const auto chosen, choose_accel(arguments));
  arguments.machine.accel = chosen.accel;
  std::string source;
  const auto settle = [&] { source = settle_source(arguments.machine); };
  if (arguments.no_jail) {
    settle();
  } else {
    VMM_TRY(as_jailed(settle));
  }
  arguments.session.starting = [&]() -> Result<void> {
    for (const std::string& line : {chosen.reason, source})
      if (!line.empty()) messages.print("vpmu: " + line);
    return model_log.begin();
  };
  Log log{[&messages](LogLevel level, std::string_view line) {
            messages.print(fmt::format("vpmu: {}: {}", name_of(level), line));
          },
          arguments.verbose ? LogLevel::debug : LogLevel::warning};
  Confinement confinement;
  VMM_TRY(prepare(confinement, arguments, statistics, log));
  VMM_ASSIGN(const auto end, run_session(arguments.machine, arguments.session, log));
  // The first failure is the run's; each has a line.
  Result<void> all_done = end.failure ? Failure{*end.failure} : Result<void>{};
  const auto expect = [&all_done, &messages](const Result<void>& done) {
    if (done) return;
    if (!all_done) messages.print("vpmu run: " + describe(done.error()));
    if (all_done) all_done = done;
  };
  if (statistics) expect(confinement.write(*statistics, to_json(end.statistics) + "\n"));
  expect(model_log.finish());
  expect(tell_of_lost_output(end.console, messages));
  VMM_TRY(all_done);
  if (end.reason == StopReason::time_limit)
    messages.print(
        fmt::format("vpmu: stopped after {} s (--timeout); a Linux that panicked stands still for ever, unless it has "
                    "panic=-1 in --append",
                    arguments.timeout));
  return exit_code_of(end.reason);
}

int run_and_report(RunArguments& arguments) {
  Messages messages;
  const auto code = run(arguments, messages);
  if (code) {
    return *code;
  }
  messages.print("vpmu run: " + describe(code.error()));
  return code.error().kind == ErrorKind::usage ? run_usage : run_host_failure;
}

}  // namespace

void add_run(Command& app, int& exit_code) {
  auto arguments = std::make_shared<RunArguments>();
  auto& machine = arguments->machine;
  Command run = app.add_command("run", "boot a guest that has a virtual PMU; its serial console is this terminal");
  Command from = run.add_group("start", "a kernel, a domain of libvirt's, or a machine that was saved");
  from.add_option("--kernel", machine.kernel, "bzImage, or a static 64-bit ELF file");
  const Argument domain = from.add_option("--libvirt", arguments->domain,
                                          "kernel, initrd, command line, memory and CPUs of this domain of libvirt's");
  const Argument restore =
      from.add_option("--restore", machine.restore, "go on from a snapshot (`vpmu ctl SOCKET snapshot FILE`)");
  from.require_options(1);
  run.add_option("--connect", arguments->connect, "with --libvirt: its URI; without it, the one that virsh takes")
      .needs(domain);
  /// What a domain tells, and a saved machine.
  const auto told = [domain, restore](Argument option) { option.excludes(domain).excludes(restore); };
  told(run.add_option("--initrd", machine.initrd, "initial RAM disk"));
  run.add_option("--append", machine.command_line,
                 "kernel command line; with panic=-1 Linux ends the run when it panics")
      .excludes(restore);
  run.add_option("--model", machine.model, "CPU model").shows_default().excludes(restore);
  told(run.add_option("--memory", arguments->memory, "guest memory: a number and K, M or G").shows_default());
  told(run.add_option("--cpus", machine.cpus, "virtual CPUs").shows_default());
  told(run.add_option("--threads", machine.threads_per_core,
                      "threads of a core; 1: no SMT, all counters of the core for its CPU")
           .shows_default());
  run.add_flag("--bare-metal", machine.bare_metal,
               "do not tell the guest that it is one: its kernel uses the uncore, too");
  run.add_option("--accel", arguments->accel,
                 "what runs the guest's code: kvm, soft (no KVM; one CPU, virtual time), auto")
      .shows_default();
  run.add_flag(
      "--no-jit", [arguments] { arguments->machine.compiling = vpmu::exec::never_compiling; },
      "interpret everything that the instruction engine runs: the same, slower");
  run.add_option("--epoch", machine.epoch, "with soft: the time of day at the start, in seconds since 1970")
      .shows_default();
  run.add_option("--source", machine.source, "what counts: auto, or a source that `vpmu doctor` lists").shows_default();
  run.add_option("--events", arguments->events,
                 "with source kvm, what the guest may count: all, architectural, standard, or a file")
      .shows_default();
  run.add_option("--stats", arguments->stats, "write all counters to this file at the end, as JSON");
  run.add_option("--model-log", arguments->model_log,
                 "write what the processor model says of accesses that may be sampled to this file");
  run.add_option("--timeout", arguments->timeout, "stop the machine after so many seconds of the host's time; 0: never")
      .shows_default()
      .within(0.0, 1e9);
  run.add_option("--control", arguments->session.control_path, "serve a control socket here, for `vpmu ctl`");
  run.add_option("--console", arguments->session.console, "stdio, or a file for the output").shows_default();
  run.add_option("--kvm", machine.kvm_device, "the KVM device").shows_default();
  run.add_option("--user", arguments->user, "started as root, the machine runs as this user; without it, as nobody");
  run.add_flag("--no-jail", arguments->no_jail, "leave the machine all rights of this process, and every system call");
  run.add_flag("--verbose", arguments->verbose, "tell what the guest does that is unusual");
  add_policies(run, arguments->policies);
  run.set_footer(
      "Ctrl-A X quits. Exit codes: 0 power-off, 1 host failure, 2 wrong use, 3 reset, 4 guest panic, 5 triple fault, 6 "
      "stopped, 7 time limit.");
  run.when_given([arguments, &exit_code] { exit_code = run_and_report(*arguments); });
}

}  // namespace vmm::tool
