#include "run/run.hpp"

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
#include "machine/config.hpp"
#include "shared/machine_options.hpp"
#include "snapshot/snapshot_file.hpp"
#include "tables/models.hpp"
#include "virt/import.hpp"

namespace vmm::tool {
namespace {

struct RunArguments : MachineOptions {
  SessionOptions session;
  std::string model_log;
  std::string domain;
  std::string connect;
  std::optional<std::uint64_t> after;
  std::string save;
};

int exit_code_of(StopReason reason) {
  switch (reason) {
    case StopReason::power_off: return run_power_off;
    case StopReason::reset: return run_reset;
    case StopReason::guest_panic: return run_guest_panic;
    case StopReason::guest_failed: return run_guest_failed;
    case StopReason::triple_fault: return run_triple_fault;
    case StopReason::user: return run_stopped_by_user;
    case StopReason::time_limit: return run_time_limit;
    case StopReason::host_failure: return run_host_failure;
  }
  return run_host_failure;
}

/// The file of --model-log.
class ModelLogFile {
 public:
  /// Sets `machine`'s log if there is a path.
  static Result<ModelLogFile> open(const std::string& path, MachineConfig& machine) {
    VMM_ASSIGN(auto file, open_output(path, "the model log", "--model-log"));
    ModelLogFile log{std::move(file)};
    if (!log.file_) return log;
    VMM_ASSIGN(Fd fd, log.file_->descriptor());
    log.writer_ = std::make_shared<BoundedWriter>(std::move(fd));
    machine.source_options.model_log = [writer = log.writer_](const ModelledAccess& m) {
      writer->put(describe(m) + "\n");
    };
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

/// Checks that no two options name the same file, before any file is opened.
Result<void> check_files(const RunArguments& arguments) {
  const auto& machine = arguments.machine;
  std::error_code error;
  const bool events_are_in_a_file = std::filesystem::is_regular_file(arguments.events, error);
  const std::array read{NamedFile{"--kernel", machine.kernel}, NamedFile{"--initrd", machine.initrd},
                        NamedFile{"--restore", machine.restore},
                        NamedFile{"--events", events_are_in_a_file ? arguments.events : ""}};
  const std::array written{
      NamedFile{"--console", arguments.session.console == "stdio" ? "" : arguments.session.console},
      NamedFile{"--model-log", arguments.model_log}, NamedFile{"--stats", arguments.stats},
      NamedFile{"--save", arguments.save}};
  return check_distinct(read, written);
}

/// Says how much of the guest's output was lost. Fails if writing to the descriptor failed.
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

Result<int> run(RunArguments& arguments, Messages& messages) {
  VMM_ASSIGN(arguments.machine.memory_bytes, parse_size(arguments.memory));
  if (!arguments.domain.empty()) {
    VMM_ASSIGN(const auto domains, connect_to_libvirt(arguments.connect));
    VMM_TRY(take_domain(*domains, arguments.domain, arguments.machine));
  }
  VMM_TRY(check_files(arguments));
  arguments.session.timeout = std::chrono::duration<double>{arguments.timeout};
  VMM_ASSIGN(auto statistics, open_output(arguments.stats, "the statistics file", "--stats"));
  VMM_ASSIGN(auto model_log, ModelLogFile::open(arguments.model_log, arguments.machine));
  VMM_ASSIGN(const auto chosen, choose_automatic(arguments));
  if (arguments.after && arguments.machine.accel != Accel::soft)
    return usage_error("--after counts instructions, which only processors without KVM do by themselves",
                       "give --accel soft, or save the machine by `vpmu ctl SOCKET suspend FILE`");
  arguments.machine.max_ticks = arguments.after.value_or(~0ULL);
  std::optional<WholeFile> snapshot;
  if (!arguments.save.empty()) {
    VMM_ASSIGN(auto file, new_snapshot_file(arguments.save));
    arguments.session.save_to = &snapshot.emplace(std::move(file)).descriptor();
  }
  arguments.session.starting = [&]() -> Result<void> {
    for (const std::string& line : chosen.lines()) messages.print("vpmu: " + line);
    return model_log.begin();
  };
  Log log = messages.log(arguments.verbose);
  Confinement confinement;
  VMM_ASSIGN(arguments.session.confinement,
             confine(confinement, arguments, Daemons::none,
                     {.socket = arguments.session.control_path, .statistics = statistics, .snapshot = snapshot}, log));
  const auto ended = run_session(arguments.machine, arguments.session, log);
  log.tell_held_back();
  VMM_ASSIGN(const auto end, ended);
  // The first failure decides the exit code; each failure is printed.
  Result<void> all_done = end.failure ? Failure{*end.failure} : Result<void>{};
  const auto expect = [&all_done, &messages](const Result<void>& done) {
    if (done) return;
    if (!all_done) messages.print("vpmu run: " + describe(done.error()));
    if (all_done) all_done = done;
  };
  if (statistics) expect(confinement.write(*statistics, to_json(end.statistics) + "\n"));
  if (end.saved) expect(confinement.finish(*snapshot));
  if (snapshot && !end.saved && !end.failure)
    messages.print(fmt::format("vpmu: the machine ended before a CPU had run {} instructions: {} is not written",
                               *arguments.after, printable(arguments.save)));
  if (const auto uncounted = uncounted_events(arguments, end.statistics)) {
    if (arguments.uncounted == "error")
      expect(Failure{*uncounted});
    else
      messages.print("vpmu run: " + describe(*uncounted));
  }
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

/// What the help and the manual say besides the options.
void describe_run(Command& run) {
  run.set_footer("Ctrl-A X quits.");
  run.set_exit_codes({{.code = "0", .meaning = "power-off"},
                      {.code = "1", .meaning = "host failure"},
                      {.code = "2", .meaning = "wrong use"},
                      {.code = "3", .meaning = "reset"},
                      {.code = "4", .meaning = "guest panic"},
                      {.code = "5", .meaning = "triple fault"},
                      {.code = "6", .meaning = "stopped"},
                      {.code = "7", .meaning = "time limit"},
                      {.code = "8", .meaning = "the test kernel failed"}});
  run.add_example("vpmu run --model skylake --kernel vmlinuz ...", "boots a machine, on KVM or without it");
  run.add_example("vpmu run --kernel x86/pmu.flat", "the same with a kvm-unit-test, or another multiboot kernel");
  run.add_example("vpmu run --accel soft ...",
                  "without any KVM: virtual time, CPUs that take turns, every run the same");
  run.add_example("vpmu run --accel soft --after N --save FILE ...", "saves the machine at instruction N");
  run.add_example("vpmu run --restore FILE", "continues a saved machine, with its PMU as it was");
  run.add_example("vpmu run --libvirt DOMAIN ...", "boots the kernel that a libvirt domain's definition names");
}

}  // namespace

void add_run(Command& app, int& exit_code) {
  auto arguments = std::make_shared<RunArguments>();
  auto& machine = arguments->machine;
  Command run = app.add_command("run", "boot a guest that has a virtual PMU; its serial console is this terminal");
  Command from = run.add_group("start", "a kernel, a domain of libvirt's, or a machine that was saved");
  from.add_option("--kernel", machine.kernel, "bzImage, static 64-bit ELF file, or multiboot kernel").takes_file();
  const Argument domain = from.add_option("--libvirt", arguments->domain,
                                          "kernel, initrd, command line, memory and CPUs of this domain of libvirt's");
  const Argument restore =
      from.add_option("--restore", machine.restore, "continue a snapshot (--save, or `vpmu ctl SOCKET snapshot FILE`)")
          .takes_file();
  from.require_options(1);
  /// For options whose values come from a domain, or from a saved machine.
  const auto told = [domain, restore](Argument option) { option.excludes(domain).excludes(restore); };
  told(run.add_option("--initrd", machine.initrd, "initial RAM disk").takes_file());
  run.add_option("--append", machine.command_line,
                 "kernel command line; with panic=-1 Linux ends the run when it panics")
      .excludes(restore);
  run.add_option("--model", machine.model, "CPU model").shows_default().excludes(restore).suggests(model_names());
  told(run.add_option("--memory", arguments->memory, "guest memory: a number and K, M or G").shows_default());
  told(run.add_option("--cpus", machine.cpus, "virtual CPUs").shows_default());
  told(run.add_option("--threads", machine.threads_per_core,
                      "threads per core; 2: SMT, pairs of CPUs share a core's caches, and from Sandy Bridge on halve "
                      "its counters")
           .shows_default());
  run.add_flag("--bare-metal", machine.bare_metal,
               "hide the hypervisor from the guest, whose kernel then uses the uncore, too");
  run.add_option("--connect", arguments->connect, "with --libvirt: libvirt's URI; default: the one that virsh takes")
      .needs(domain);
  add_machine_options(run, arguments);
  run.begin_section("Look on, stop and save");
  run.add_option("--model-log", arguments->model_log,
                 "log to this file how the processor model served each access that may be sampled")
      .takes_file();
  run.add_option("--control", arguments->session.control_path, "serve a control socket here, for `vpmu ctl`")
      .takes_file();
  const Argument after = run.add_option(
      "--after", arguments->after,
      "with soft: stop when a CPU has run N instructions since the guest's start (exit code 6); with --time "
      "pipeline, N cycles while something counts");
  run.add_option("--save", arguments->save, "with --after: then save the machine to this file, for --restore")
      .needs(after)
      .takes_file();
  run.add_option("--console", arguments->session.console, "stdio, or a file for the output")
      .shows_default()
      .takes_file()
      .suggests({"stdio"});
  describe_run(run);
  run.when_given([arguments, &exit_code] { exit_code = run_and_report(*arguments); });
}

}  // namespace vmm::tool
