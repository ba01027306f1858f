#include "exec/exec.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <iterator>
#include <memory>
#include <mutex>

#include <fmt/format.h>

#include "command_line.hpp"
#include "control/console.hpp"
#include "exec/guest_cache.hpp"
#include "exec/guest_devices.hpp"
#include "exec/guest_key.hpp"
#include "exec/initramfs.hpp"
#include "exec/kernel.hpp"
#include "exec/modules.hpp"
#include "exec/preparation.hpp"
#include "exec/session.hpp"
#include "shared/process.hpp"
#include "snapshot/snapshot_file.hpp"
#include "tables/models.hpp"

namespace vmm::tool {
namespace {

/// Keeps the end of the guest kernel's console, and writes all of it to a file if there is one.
class KernelLog {
 public:
  explicit KernelLog(std::unique_ptr<BoundedWriter> file) : file_{std::move(file)} {}
  void add(std::string_view text) {
    const std::scoped_lock lock{mutex_};
    if (file_) file_->put(std::string{text});
    last_ += text;
    if (last_.size() > 2 * max) last_.erase(0, last_.size() - max);
  }
  /// What became of the bytes for the file. No more are written.
  BoundedWriter::Totals finish() {
    const std::scoped_lock lock{mutex_};
    return file_ ? file_->finish() : BoundedWriter::Totals{};
  }
  /// The last lines, indented; bytes that are not text are shown as escapes.
  std::vector<std::string> last_lines() {
    constexpr std::size_t max_lines = 15;
    const std::scoped_lock lock{mutex_};
    std::vector<std::string> lines;
    for (std::size_t at = 0; at < last_.size();) {
      const std::size_t end = std::min(last_.find('\n', at), last_.size());
      std::string line = last_.substr(at, end - at);
      std::erase(line, '\r');
      if (!line.empty()) lines.push_back("  | " + printable(line, max_line));
      at = end + 1;
    }
    if (lines.size() > max_lines) lines.erase(lines.begin(), lines.end() - max_lines);
    return lines;
  }
  /// The last that init said there, having nowhere else to say it; empty: nothing.
  std::string said_by_init() {
    constexpr std::string_view begins = "vpmu exec: ";
    const std::scoped_lock lock{mutex_};
    const std::size_t at = last_.rfind(begins);
    if (at == std::string::npos) return {};
    const std::size_t text = at + begins.size();
    return printable(last_.substr(text, last_.find_first_of("\r\n", text) - text), max_line);
  }

 private:
  static constexpr std::size_t max = 16384, max_line = 240;
  std::mutex mutex_;
  std::unique_ptr<BoundedWriter> file_;
  std::string last_;
};

/// What the guest boots from.
struct BootFiles {
  KernelFile kernel;
  ExecModules modules;
};

Result<BootFiles> read_boot_files(const ExecArguments& arguments, const ExecPreparation& preparation) {
  BootFiles files;
  VMM_ASSIGN(files.kernel, look_at_kernel(arguments.machine.kernel));
  VMM_ASSIGN(const auto directory,
             find_module_directory(arguments.modules, arguments.machine.kernel, files.kernel.version));
  if (!directory) return files;
  VMM_ASSIGN(files.modules.first, find_modules(*directory, preparation.modules));
  VMM_ASSIGN(files.modules.later, find_modules(*directory, preparation.later_modules, files.modules.first));
  return files;
}

/// The command's exit code, or why it is not known.
Result<int> exit_code_of(const ExecEnd& end, const ExecArguments& arguments, const std::string& said_by_init) {
  if (end.failure) return Failure{*end.failure};
  if (end.ran_out && (end.exit_code || end.signal)) {
    std::fprintf(stderr, "%s: the command was ended after %g s (--timeout)\n", arguments.name, arguments.timeout);
    return exec_timed_out;
  }
  if (!end.error.empty()) {
    const auto code = end.exit_code.value_or(exec_failed);
    std::fprintf(stderr, "%s: %s\n", arguments.name, end.error.c_str());
    return code;
  }
  if (end.exit_code) return *end.exit_code;
  if (end.signal) return exec_signal_first + *end.signal;
  switch (end.reason) {
    case StopReason::time_limit:
      std::fprintf(stderr, "%s: stopped after %g s (--timeout)\n", arguments.name, arguments.timeout);
      return exec_timed_out;
    case StopReason::user: return host_error("stopped by a signal before the command ended");
    case StopReason::guest_panic:
    case StopReason::reset: return host_error("the guest's kernel panicked", 0, "see the last messages of the kernel");
    case StopReason::triple_fault: return host_error("the guest's kernel ended with a triple fault");
    case StopReason::power_off:
    case StopReason::guest_failed:
    case StopReason::host_failure: break;
  }
  if (!said_by_init.empty()) return host_error(said_by_init);
  return host_error("the guest ended, and did not tell how the command ended", 0,
                    "see the last messages of the kernel");
}

/// What could not be written, each a line: the command's output, and the kernel's log.
std::vector<Error> losses(const GuestDevices& devices, const BoundedWriter::Totals& log) {
  std::vector<Error> all;
  for (const LostOutput& lost : devices.lost_output())
    all.push_back(
        {.kind = ErrorKind::host,
         .what = fmt::format("{} bytes that the command has written to standard {} are lost", lost.bytes, lost.stream),
         .advice = "open it, or give it a file with room",
         .system_errno = lost.error});
  if (log.dropped != 0)
    all.push_back({.kind = ErrorKind::host,
                   .what = fmt::format("{} bytes of the guest kernel's log are lost", log.dropped),
                   .advice = "give a file with room with --console",
                   .system_errno = log.error});
  return all;
}

std::uint64_t nanoseconds_since_1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::nanoseconds{now}.count());
}

/// A guest that is run, once or, if the cache's guest cannot be used, twice.
class ExecRun {
 public:
  explicit ExecRun(ExecArguments& arguments) : arguments_{&arguments} {}

  Result<int> run() {
    set_failure_code(exec_failed);
    VMM_TRY(prepare());
    tell_choices();
    const auto booted = cache_ ? cache_->find(key_) : std::nullopt;
    if (booted) {
      tell("the guest has booted already: " + place());
      arguments_->machine.restore = fmt::format("/proc/self/fd/{}", booted->get());
      auto ended = run_guest();
      if (!is_unusable_) return ended;
      messages_.print(fmt::format("vpmu: {} is not used, and made anew: {}", place(), ended.error().what));
      arguments_->machine.restore.clear();
    }
    return run_guest();
  }

  /// The last messages of the guest's kernel, if they may tell why the guest ended.
  [[nodiscard]] const std::vector<std::string>& kernel_lines() const { return kernel_lines_; }

 private:
  Result<void> prepare() {
    ExecArguments& arguments = *arguments_;
    VMM_ASSIGN(arguments.machine.memory_bytes, parse_size(arguments.memory));
    VMM_ASSIGN(chosen_, choose_automatic(arguments));
    VMM_ASSIGN(arguments.machine.kernel, find_kernel(kernel_places(arguments.kernel)));
    VMM_ASSIGN(preparation_, prepare_exec(arguments));
    VMM_ASSIGN(const BootFiles files, read_boot_files(arguments, preparation_));
    for (const KernelModule& module : files.modules.later) preparation_.request.modules.push_back(file_name(module));
    VMM_ASSIGN(auto initramfs, make_exec_initramfs(files.modules));
    arguments.machine.initrd_content = std::make_shared<const std::vector<std::byte>>(std::move(initramfs));
    // quiet: each line on a serial console costs time. panic=-1: the kernel reboots on a panic, which ends the run.
    // norandmaps: where a program's parts lie does not depend on what else the guest has done, as the name of a
    // directory does.
    arguments.machine.command_line = "console=ttyS0 quiet panic=-1 norandmaps " + arguments.append;
    return open_cache(files);
  }

  /// Opens the cache unless this guest has to boot, or there can be no cache.
  Result<void> open_cache(const BootFiles& files) {
    if (arguments_->no_cache) return {};
    if (const char* const why = why_it_boots(files)) {
      tell("the guest boots: " + std::string{why});
      return {};
    }
    auto cache = GuestCache::open();
    if (!cache && cache.error().kind == ErrorKind::usage) return Failure{cache.error()};
    if (!cache) {
      tell("the guest boots: " + describe(cache.error()));
      return {};
    }
    VMM_ASSIGN(key_, guest_key(arguments_->machine, files.kernel, describe_devices()));
    cache_.emplace(std::move(*cache));
    return {};
  }

  [[nodiscard]] const char* why_it_boots(const BootFiles& files) const {
    const ExecArguments& arguments = *arguments_;
    if (!arguments.console.empty()) return "--console is to have all that its kernel says";
    if (!arguments.stats.empty()) return "--stats counts from the start";
    if (arguments.machine.bare_metal) return "with --bare-metal it uses the uncore while it boots";
    if (files.modules.later.size() < preparation_.later_modules.size())
      return "its kernel has the driver of a disk or a network built in, and sees these while it boots";
    return nullptr;
  }

  [[nodiscard]] std::string describe_devices() const {
    const GuestDevices::Choice& devices = preparation_.devices;
    std::string text = fmt::format("{} disks, {} networks", devices.disks.size(), devices.network ? 1 : 0);
    for (const GuestDevices::Share& share : devices.shares) text += ", " + share.tag;
    return text;
  }

  [[nodiscard]] std::string place() const { return printable(cache_->path() + "/" + key_); }

  void tell(const std::string& line) {
    if (arguments_->verbose) messages_.print("vpmu: " + line);
  }

  Result<int> run_guest();
  /// Of a guest that has booted, and waits.
  void keep(Machine& machine, std::optional<WholeFile>& file, Confinement& confinement);
  void tell_choices();

  ExecArguments* arguments_;
  Messages messages_;
  Chosen chosen_;
  ExecPreparation preparation_;
  std::optional<GuestCache> cache_;
  std::string key_;
  bool is_unusable_{};  ///< What the cache has for this guest does not hold what its name says: it never ran.
  std::vector<std::string> kernel_lines_;
};

void ExecRun::tell_choices() {
  const ExecArguments& arguments = *arguments_;
  if (arguments.verbose)
    for (const std::string& line : chosen_.lines()) messages_.print("vpmu: " + line);
  else if (chosen_.passes_over_kvm)
    messages_.print("vpmu: " + chosen_.accel);
  // Once for the passes of `vpmu stat`.
  if (!chosen_.set.empty() && !arguments.verbose && !arguments.drops_output)
    messages_.print(fmt::format("vpmu: the model is {} with {}", arguments.machine.model, chosen_.set));
}

void ExecRun::keep(Machine& machine, std::optional<WholeFile>& file, Confinement& confinement) {
  const auto save = [&]() -> Result<void> {
    VMM_ASSIGN(auto part, given_snapshot_file(Fd{::fcntl(file->descriptor().get(), F_DUPFD_CLOEXEC, 0)}));
    VMM_ASSIGN(const MachineImage image, machine.pause());
    VMM_TRY(write_snapshot(std::move(part), image, machine.memory()));
    return confinement.finish(*file);
  };
  const auto kept = save();
  // Nothing that the command does to this process can change the file: it runs from here on.
  file.reset();
  machine.resume();
  if (!kept) messages_.print("vpmu: the booted guest is not kept: " + describe(kept.error()));
}

Result<int> ExecRun::run_guest() {
  const ExecArguments& arguments = *arguments_;
  const bool on_kvm = arguments.machine.accel == Accel::kvm, goes_on = !arguments.machine.restore.empty();
  // Its kernel has read the time when it booted, and a machine without KVM takes that along.
  if (on_kvm) preparation_.request.clock = goes_on ? std::optional{nanoseconds_since_1970()} : std::nullopt;
  VMM_ASSIGN(std::string request, write_request(preparation_.request));
  request.push_back('\0');
  VMM_ASSIGN(auto devices, GuestDevices::start(preparation_.devices));
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return host_error("socketpair", errno);
  Fd ours{ends[0]}, theirs{ends[1]};
  VMM_TRY(devices.connect(theirs, request, arguments.drops_output));
  VMM_ASSIGN(auto statistics, open_output(arguments.stats, "the statistics file", "--stats"));
  VMM_ASSIGN(auto console_file, open_output(arguments.console, "the kernel's log", "--console"));
  std::unique_ptr<BoundedWriter> console;
  if (console_file) {
    VMM_ASSIGN(Fd fd, console_file->descriptor());
    VMM_TRY(console_file->begin());
    console = std::make_unique<BoundedWriter>(std::move(fd));
  }
  KernelLog kernel_log{std::move(console)};
  Log log = messages_.log(arguments.verbose);
  Confinement confinement;
  const std::string no_socket;
  const bool has_terminal = preparation_.request.terminal.has_value();
  ExecSessionOptions session{.make_devices = devices.factory(arguments.machine.accel),
                             .channel = std::move(ours),
                             .terminal = has_terminal ? STDIN_FILENO : -1,
                             .console = [&kernel_log](std::string_view text) { kernel_log.add(text); },
                             .passed_on = [&devices] { return devices.passed_on(); },
                             .when_input_ends = [&devices](auto told) { devices.when_input_ends(std::move(told)); },
                             .when_ready = [&devices](auto told) { devices.when_ready(std::move(told)); },
                             .timeout = std::chrono::duration<double>{arguments.timeout},
                             .ends_by_signal = arguments.ends_by_signal};
  bool is_made = false;
  session.when_made = [&is_made] { is_made = true; };
  std::optional<WholeFile> booted;
  if (cache_ && arguments.machine.restore.empty()) {
    if (auto file = cache_->add(key_)) {
      booted.emplace(std::move(*file));
      session.keep = [&](Machine& machine) { keep(machine, booted, confinement); };
    } else {
      tell("the booted guest is not kept: " + describe(file.error()));
    }
  }
  VMM_ASSIGN(session.confinement, confine(confinement, arguments, Daemons::devices,
                                          {.socket = no_socket, .statistics = statistics, .snapshot = booted}, log));
  const auto ended = run_exec_session(arguments.machine, std::move(session), log);
  log.tell_held_back();
  // KVM may also refuse what it has saved itself: after an upgrade, or with another TSC. No command runs twice.
  is_unusable_ = goes_on && !is_made && !ended && (ended.error().kind == ErrorKind::usage || on_kvm);
  VMM_ASSIGN(const ExecEnd end, ended);
  if (arguments.when_ended && end.error.empty() && (end.exit_code || end.signal)) arguments.when_ended();
  std::vector<Error> failures;
  if (statistics)
    if (const auto written = confinement.write(*statistics, to_json(end.statistics) + "\n"); !written)
      failures.push_back(written.error());
  if (const auto uncounted = uncounted_events(arguments, end.statistics)) {
    if (arguments.uncounted == "error")
      failures.push_back(*uncounted);
    else
      messages_.print(fmt::format("{}: {}", arguments.name, describe(*uncounted)));
  }
  const bool kernel_knows =
      !end.failure && end.reason != StopReason::user && (!end.started || end.reason != StopReason::time_limit);
  if (!end.exit_code && !end.signal && kernel_knows) kernel_lines_ = kernel_log.last_lines();
  auto code = exit_code_of(end, arguments, kernel_log.said_by_init());
  std::ranges::move(losses(devices, kernel_log.finish()), std::back_inserter(failures));
  for (const Error& failure : failures) {
    std::fprintf(stderr, "%s: %s\n", arguments.name, describe(failure).c_str());
    if (code && *code == 0) code = exec_failed;
  }
  return code;
}

}  // namespace

int run_exec(ExecArguments& arguments) {
  ExecRun run{arguments};
  const auto code = run.run();
  if (!code) std::fprintf(stderr, "%s: %s\n", arguments.name, describe(code.error()).c_str());
  for (const std::string& line : run.kernel_lines()) std::fprintf(stderr, "%s\n", line.c_str());
  return code ? *code : exec_failed;
}

void add_exec_options(Command& exec, const std::shared_ptr<ExecArguments>& arguments) {
  exec.add_option("command", arguments->command, "the command, after a --").required().takes_command();
  auto& machine = arguments->machine;
  exec.begin_section("The guest's processor and memory");
  exec.add_option("--model", machine.model, "CPU model").shows_default().suggests(model_names());
  exec.add_option("--cpus", machine.cpus, "virtual CPUs").shows_default();
  exec.add_option(
          "--threads", machine.threads_per_core,
          "threads per core; 2: SMT, pairs of CPUs share a core's caches, and from Sandy Bridge on halve its counters")
      .shows_default();
  exec.add_option("--memory", arguments->memory, "guest memory: a number and K, M or G").shows_default();
  exec.add_flag("--bare-metal", machine.bare_metal,
                "hide the hypervisor from the guest, whose kernel then uses the uncore, too");
  exec.begin_section("Its files and network");
  const Argument writable =
      exec.add_option("--rw", arguments->writable,
                      "a directory that the command can write to, but no setuid or setgid bits and no device nodes")
          .takes_file();
  exec.add_flag("--rw-special", arguments->special_files,
                "with --rw: those, too; if started as root, the guest can then make itself root on this host")
      .needs(writable);
  exec.add_flag("--net", arguments->net, "a network, through passt; this host is 10.0.2.2");
  exec.add_option("--net-socket", arguments->net_socket, "the same network, through your own passt at this socket")
      .takes_file();
  exec.add_option("--root", arguments->root,
                  "the guest's root, read-only: a directory, or an image of ext4, given as with --disk")
      .shows_default()
      .takes_file();
  exec.add_option("--root-socket", arguments->root_socket,
                  "the guest's root is what your own virtiofsd serves at this socket")
      .takes_file();
  exec.add_option("--disk", arguments->disks,
                  "a disk: IMAGE[,ro][,format=raw|qcow2]; raw, unless its name ends in .qcow2");
  exec.add_option("--disk-socket", arguments->disk_sockets, "a disk that your own daemon serves at this socket")
      .takes_file();
  exec.begin_section("Its kernel");
  exec.add_option("--kernel", arguments->kernel,
                  "bzImage; default: this host's kernel, or the one that tools/dev/bed/fetch has fetched")
      .takes_file();
  exec.add_option("--modules", arguments->modules, "the kernel's module directory; default: where packages have it")
      .takes_file();
  exec.add_option("--append", arguments->append, "added to the kernel's command line");
  exec.add_option("--add-module", arguments->more_modules, "also load this kernel module");
  exec.add_flag("--no-cache", arguments->no_cache, no_cache_help);
  exec.add_option("--console", arguments->console, "write the guest kernel's console to this file").takes_file();
  add_machine_options(exec, arguments);
}

void add_exec(Command& app, int& exit_code) {
  auto arguments = std::make_shared<ExecArguments>();
  Command exec = app.add_command("exec", "run a command on this machine's root, in a guest that has a virtual PMU");
  add_exec_options(exec, arguments);
  exec.set_footer("What the command writes is lost, except in the directories of --rw and on disks.");
  exec.set_exit_codes({{.code = "2", .meaning = "wrong options"},
                       {.code = "124", .meaning = "time limit"},
                       {.code = "125", .meaning = "vpmu itself failed"},
                       {.code = "126", .meaning = "the command cannot be executed"},
                       {.code = "127", .meaning = "the command was not found"},
                       {.code = "128 + N", .meaning = "signal N ended the command"},
                       {.code = "any other", .meaning = "the command's own"}});
  exec.add_example("vpmu exec --model haswell -- perf stat ./program",
                   "runs a command in a guest with this machine's root, and ends with the command's exit code");
  exec.when_given([arguments, &exit_code] { exit_code = run_exec(*arguments); });
}

}  // namespace vmm::tool
