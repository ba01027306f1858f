#include "stat/stat.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "command_line.hpp"
#include "exec/exec.hpp"
#include "exec/perf_there.hpp"
#include "files/input_file.hpp"
#include "files/output_file.hpp"
#include "files/work_directory.hpp"
#include "model/model.hpp"
#include "shared/output.hpp"
#include "snapshot/checksum.hpp"
#include "stat/comparison.hpp"
#include "stat/counts.hpp"
#include "stat/events.hpp"
#include "stat/guest_perf.hpp"
#include "stat/passes.hpp"
#include "stat/progress.hpp"

namespace vmm::tool {
namespace {

/// Where the guest sees the directory of the results. The path of a temporary directory would differ in each run, and
/// with it the command's stack.
constexpr const char* guest_stat_directory = "/run/vpmu-stat";
constexpr const char* file_name = "counts";
constexpr std::uint64_t max_file_bytes = std::uint64_t{1} << 20U;

struct StatArguments : ExecArguments {
  std::string list{default_stat_events}, json, base;
  std::vector<std::string> limits, variables;
  bool quiet{};
};

Result<std::string> read_text(const std::string& path, const FileRole& role) {
  VMM_ASSIGN(const auto bytes, read_whole_file(path, role, max_file_bytes));
  return std::string{reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The environment is on the command's stack, so counts depend on it. A checksum, because its values may be secrets.
std::string checksum_of_environment(const StatArguments& arguments) {
  Checksum sum;
  for (char** variable = ::environ; *variable != nullptr; ++variable)
    if (is_kept_variable(*variable, arguments.variables))
      sum.add(std::as_bytes(std::span{*variable, std::strlen(*variable) + 1}));
  return fmt::format("{:016x}", sum.value());
}

/// The document, without what only the run gives.
StatDocument describe_run(const StatArguments& arguments, const GuestPerfRun& run) {
  return StatDocument{.version = VPMU_VERSION,
                      .model = arguments.machine.model,
                      .accel = run.accel,
                      .source = run.source,
                      .kernel = run.kernel,
                      .time = std::string{name_of(run.time)},
                      .set = run.changes.text(),
                      .memory_bytes = run.memory_bytes,
                      .environment = checksum_of_environment(arguments),
                      .command = arguments.command};
}

/// Runs the command in a guest of its own, where perf counts these events.
Result<int> run_pass(const StatArguments& arguments, const std::vector<StatEvent>& events, StatDocument& document,
                     bool is_first, Progress& progress, const std::function<Result<void>()>& prepare) {
  VMM_ASSIGN(const WorkDirectory directory, WorkDirectory::create());
  StatArguments pass = arguments;
  pass.drops_output = !is_first;  // the first pass has printed it
  pass.elsewhere.push_back({.host = directory.path(), .guest = guest_stat_directory});
  pass.command = {"perf", "stat", "-x", "\t", "-o", fmt::format("{}/{}", guest_stat_directory, file_name)};
  for (const StatEvent& event : events) pass.command.insert(pass.command.end(), {"-e", event.perf});
  pass.command.emplace_back("--");
  pass.command.insert(pass.command.end(), arguments.command.begin(), arguments.command.end());
  VMM_ASSIGN(const int code, in_child(
                                 [&pass, &prepare] {
                                   if (const auto prepared = prepare(); !prepared) {
                                     std::fprintf(stderr, "vpmu stat: %s\n", describe(prepared.error()).c_str());
                                     return int{exec_failed};
                                   }
                                   return run_exec(pass);
                                 },
                                 {.interval = std::chrono::seconds{1}, .act = [&progress] { progress.tick(); }}));
  if (code == exec_failed || code == exec_timed_out) return code;
  // The guest may write anything there; a link could lead to any of our files.
  const std::string results = fmt::format("{}/{}", directory.path(), file_name);
  std::error_code error;
  if (std::filesystem::is_symlink(results, error))
    return host_error("the guest has replaced the file of perf's counts by a link", 0,
                      "do not trust what this guest reports");
  VMM_ASSIGN(const std::string text, read_text(results, {.what = "the file of perf's counts",
                                                         .advice = "see the messages of perf and of the command"}));
  VMM_ASSIGN(const auto counts, read_perf_counts(text, events));
  document.events.insert(document.events.end(), counts.begin(), counts.end());
  return code;
}

Result<int> run_passes(const StatArguments& arguments, const std::vector<StatEvent>& events,
                       const vpmu::GenerationDesc& generation, StatDocument& document) {
  const auto passes = split_into_passes(events, generation);
  const off_t offset = ::lseek(STDIN_FILENO, 0, SEEK_CUR);
  if (passes.size() > 1 && offset < 0 && errno == ESPIPE)
    return usage_error(fmt::format("{} events take {} runs, and this standard input can be read only once",
                                   events.size(), passes.size()),
                       "give a file as standard input, or fewer events");
  Progress progress{arguments.name, arguments.quiet ? Progress::Voice::quiet : Progress::Voice::aloud};
  int code = 0;
  for (std::size_t i = 0; i < passes.size(); ++i) {
    progress.begin(fmt::format("the command runs in a guest, {} of {}", i + 1, passes.size()));
    VMM_ASSIGN(const int now, run_pass(arguments, passes[i], document, i == 0, progress,
                                       [i, offset] { return i == 0 ? Result<void>{} : rewind_input(offset); }));
    if (now == exec_failed || now == exec_timed_out) return now;
    if (i > 0 && now != code)
      return host_error(fmt::format("the command ended with {}, and when it was run again with {}", code, now));
    code = now;
  }
  return code;
}

/// Chooses the time that is open, too: the pipeline's, which takes long, only if it says something else of an event.
Result<std::vector<StatEvent>> choose_events_and_time(StatArguments& arguments, GuestPerfRun& run,
                                                      const vpmu::GenerationDesc& generation) {
  VMM_ASSIGN(auto events, choose_events(arguments.list, generation, run.source, run.time, run.changes));
  if (arguments.time == "auto") {
    VMM_ASSIGN(const auto others,
               choose_events(arguments.list, generation, run.source, TimeModel::instructions, run.changes));
    if (std::ranges::equal(events, others, {}, &StatEvent::quality, &StatEvent::quality))
      run.time = TimeModel::instructions;
    arguments.time = name_of(run.time);
  }
  return events;
}

Result<int> stat(StatArguments arguments) {
  VMM_TRY(check_for_perf(arguments.root));
  const MachineModel* const model = find_machine_model(arguments.machine.model);
  if (model == nullptr) return usage_error("unknown model " + printable(arguments.machine.model), "see `vpmu models`");
  const auto& generation = vpmu::describe(model->generation);
  VMM_ASSIGN(const StatLimits limits, read_limits(arguments.limits));
  VMM_ASSIGN(GuestPerfRun run, describe_guest(arguments));
  VMM_ASSIGN(const auto events, choose_events_and_time(arguments, run, generation));
  StatDocument document = describe_run(arguments, run);
  VMM_TRY(check_limits(limits, events));
  std::optional<StatDocument> base;
  if (!arguments.base.empty()) {
    VMM_ASSIGN(const std::string text,
               read_text(arguments.base, {.what = "the base", .advice = "give a result of --json with --compare"}));
    VMM_ASSIGN(base, read_stat_document(text, arguments.base));
    VMM_TRY(check_comparable(*base, document));
  }
  const bool prints = arguments.json == "-";
  std::optional<OutputFile> file;
  if (!arguments.json.empty() && !prints) {
    VMM_ASSIGN(auto opened,
               OutputFile::open(arguments.json, {.what = "the result", .advice = "give a writable path with --json"}));
    file.emplace(std::move(opened));
  }
  VMM_ASSIGN(const int code, run_passes(arguments, events, generation, document));
  if (code == exec_failed || code == exec_timed_out) return code;
  document.exit_code = code;
  VMM_TRY(write_error(to_table(document)));
  if (file) VMM_TRY(file->replace(to_json(document)));
  if (prints) VMM_TRY(write_out(to_json(document)));
  if (!base) return code;
  const StatComparison comparison = compare(*base, document, limits);
  VMM_TRY(write_error(comparison.report));
  return code == 0 && comparison.rose ? stat_rose : code;
}

int stat_and_report(const StatArguments& arguments) {
  const auto code = stat(arguments);
  if (code) return *code;
  std::fprintf(stderr, "vpmu stat: %s\n", describe(code.error()).c_str());
  return exec_failed;
}

}  // namespace

void add_stat(Command& app, int& exit_code) {
  auto arguments = std::make_shared<StatArguments>();
  arguments->name = "vpmu stat";
  arguments->accel = "soft";
  arguments->machine.source = "exact";
  Command stat = app.add_command("stat", "count a command's events in a guest: the same in each run, on every host");
  stat.add_option("-e,--event", arguments->list, "the events to count, separated by commas").shows_default();
  stat.add_option("--json", arguments->json, "write the counts to this file as JSON; -: to standard output")
      .takes_file();
  const Argument compare =
      stat.add_option("--compare", arguments->base, "a file of --json: fail if a count has risen above its limit")
          .takes_file();
  stat.add_option("--limit", arguments->limits, "how much a count may rise: PERCENT, or EVENT=PERCENT; default: 0")
      .needs(compare);
  stat.add_option("--env", arguments->variables, "also pass on this environment variable");
  stat.add_flag("--quiet", arguments->quiet, "print no progress");
  add_exec_options(stat, arguments);
  arguments->passes_variable = [variables = &arguments->variables](std::string_view variable) {
    return is_kept_variable(variable, *variables);
  };
  stat.set_footer(
      "This machine's perf counts in the guest. For more events than the model has counters, the command is run again, "
      "and its output dropped. With --time auto, cycles come from the model of the core only if an event needs it. The "
      "command's environment has only PATH, HOME, LANG, LANGUAGE, LC_*, TZ, and what --env names.");
  stat.set_exit_codes({{.code = "2", .meaning = "wrong options"},
                       {.code = "3", .meaning = "the command ended with 0, and a count rose above its limit"},
                       {.code = "124", .meaning = "time limit"},
                       {.code = "125", .meaning = "vpmu itself failed"},
                       {.code = "any other", .meaning = "the command's own"}});
  stat.add_example("vpmu stat --model skylake --json counts.json -- ./program",
                   "prints a program's counts, which are the same on each run");
  stat.add_example("vpmu stat --compare counts.json --limit 0.5 -- ./program",
                   "fails if a count has risen by more than 0.5 percent since then");
  stat.when_given([arguments, &exit_code] { exit_code = stat_and_report(*arguments); });
}

}  // namespace vmm::tool
