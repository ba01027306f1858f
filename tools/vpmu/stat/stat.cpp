#include "stat/stat.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
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
#include "kvm/fd.hpp"
#include "model/clocks.hpp"
#include "model/model.hpp"
#include "shared/output.hpp"
#include "snapshot/checksum.hpp"
#include "stat/comparison.hpp"
#include "stat/counted_run.hpp"
#include "stat/counts.hpp"
#include "stat/event_list.hpp"
#include "stat/events.hpp"
#include "stat/formats.hpp"
#include "stat/guest_perf.hpp"
#include "stat/metrics.hpp"
#include "stat/passes.hpp"
#include "stat/progress.hpp"
#include "stat/recorded_run.hpp"

namespace vmm::tool {
namespace {

/// Where the guest sees the directory of the results. The path of a temporary directory would differ in each run, and
/// with it the command's stack.
constexpr const char* guest_stat_directory = "/run/vpmu-stat";
constexpr const char* file_name = "counts";
constexpr std::uint64_t max_file_bytes = std::uint64_t{1} << 20U;

struct StatArguments : ExecArguments {
  std::vector<std::string> lists, metrics, limits, variables;
  std::string json, record, base, report, output;
  std::optional<std::string> separator;
  unsigned runs{1};
  bool topdown{}, detailed{}, json_lines{}, quiet{};
};

/// Of perf stat.
struct RefusedOption {
  const char *names, *why;
};
constexpr const char* all_tasks_why =
    "vpmu stat counts the command and what it makes; `vpmu exec -- perf stat -a` counts the whole guest";
constexpr const char* running_why = "a guest has nothing that runs already: give a command";
constexpr std::array refused_options{
    RefusedOption{"-a,--all-cpus", all_tasks_why},
    RefusedOption{"-C,--cpu", all_tasks_why},
    RefusedOption{"-A,--no-aggr", all_tasks_why},
    RefusedOption{"-p,--pid", running_why},
    RefusedOption{"-t,--tid", running_why},
    RefusedOption{"-G,--cgroup", running_why},
    RefusedOption{"-I,--interval-print",
                  "the counts are those of the whole command; `vpmu exec -- perf stat -I` prints them meanwhile"},
    RefusedOption{"-D,--delay", "the counts are those of the whole command; `vpmu exec -- perf stat -D` begins later"},
    RefusedOption{"-i,--no-inherit", "what the command makes is counted; `vpmu exec -- perf stat -i` leaves it out"},
    RefusedOption{"-b,--bpf-prog", "`vpmu exec -- perf stat -b` counts BPF programs"}};

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
                      .command = arguments.command,
                      .runs = arguments.runs};
}

/// Runs the command in a guest of its own, where perf counts these events.
Result<int> run_pass(const StatArguments& arguments, const std::vector<StatEvent>& events, StatDocument& document,
                     bool is_first, Progress& progress, const std::function<Result<void>()>& prepare) {
  VMM_ASSIGN(const WorkDirectory directory, WorkDirectory::create());
  StatArguments pass = arguments;
  pass.drops_output = !is_first;  // the first pass has printed it
  pass.uncounted = "silent";      // the table has them
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

/// What the command writes to standard output goes to standard error meanwhile, so that it is not mixed with our own.
class OutputAside {
 public:
  static Result<OutputAside> begin() {
    OutputAside aside;
    std::fflush(stdout);
    aside.ours_ = Fd{::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)};
    if (!aside.ours_.valid() || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
      return host_error("setting up standard output", errno);
    return aside;
  }
  Result<void> end() {
    if (::dup2(ours_.get(), STDOUT_FILENO) < 0) return host_error("going back to standard output", errno);
    return {};
  }

 private:
  Fd ours_;
};

/// Whether the VMM counts all of them itself, so that nothing in the guest is disturbed.
bool counts_beside(const GuestPerfRun& run, std::span<const StatEvent> events) {
  return run.accel == "soft" && run.source == "exact" && std::ranges::none_of(events, [](const StatEvent& event) {
           return std::holds_alternative<std::monostate>(event.beside);
         });
}

/// What is known of the run besides its counts.
Result<void> describe_recorded(const StatArguments& arguments, const std::vector<StatEvent>& events,
                               const TaskTotals& totals, StatDocument& document, Progress& progress) {
  std::error_code error;
  const FileRoot root{.root = arguments.root, .directory = std::filesystem::current_path(error).string()};
  progress.begin("the functions are looked for");
  document.files = given_files(totals.files, root);
  document.lost_files = totals.files.lost;
  std::string kallsyms;
  if (std::ranges::any_of(totals.code, [](const TaskCode& code) { return code.place.is_kernels(); })) {
    VMM_ASSIGN(kallsyms,
               read_kernel_symbols(arguments, {.interval = std::chrono::seconds{1}, .act = [&] { progress.tick(); }}));
  }
  document.functions = functions_of(totals, events, document.files, kallsyms);
  return {};
}

/// Counts all events in one run.
Result<int> run_beside(const StatArguments& arguments, const std::vector<StatEvent>& events, const MachineModel& model,
                       StatDocument& document) {
  std::vector<TaskEvent> selected;
  for (const StatEvent& event : events)
    if (const auto* const select = std::get_if<TaskEvent>(&event.beside)) selected.push_back(*select);
  Progress progress{arguments.name, arguments.quiet ? Progress::Voice::quiet : Progress::Voice::aloud};
  progress.begin("the command runs in a guest");
  VMM_ASSIGN(const CountedRun run,
             run_counted(arguments, selected, arguments.record.empty() ? Recording::no : Recording::yes,
                         {.interval = std::chrono::seconds{1}, .act = [&] { progress.tick(); }}));
  if (run.totals) {
    document.events = counts_of(*run.totals, events, nominal_tsc_khz(model));
    document.regions = regions_of(*run.totals, events);
    if (run.totals->lost_regions != 0)
      return host_error(fmt::format("the command has begun {} regions too many", run.totals->lost_regions), 0,
                        fmt::format("use at most {} labels, and {} regions in each other", TaskCounts::max_regions,
                                    TaskCounts::max_depth));
    if (!arguments.record.empty()) VMM_TRY(describe_recorded(arguments, events, *run.totals, document, progress));
  }
  return run.code;
}

/// What is counted, and what follows from it.
struct Choice {
  std::vector<StatEvent> events;
  std::vector<std::string> metrics;
};

/// Chooses the time that is open, too: the pipeline's, which takes long, only if it says something else of an event.
Result<Choice> choose_events_and_time(StatArguments& arguments, GuestPerfRun& run,
                                      const vpmu::GenerationDesc& generation) {
  Choice choice;
  std::string metrics = fmt::format("{}", fmt::join(arguments.metrics, ","));
  if (arguments.topdown) metrics += fmt::format("{}{}", metrics.empty() ? "" : ",", topdown_metrics);
  VMM_ASSIGN(choice.metrics, choose_metrics(metrics, generation));
  std::string list = fmt::format("{}", fmt::join(arguments.lists, ","));
  if (list.empty() && (choice.metrics.empty() || arguments.detailed)) list = default_stat_events;
  if (arguments.detailed) list += fmt::format(",{}", detailed_stat_events);
  VMM_ASSIGN(const auto names, list.empty() ? std::vector<std::string>{} : split_event_list(list, generation));
  const auto more = events_of(choice.metrics, names);
  if (!more.empty()) list += fmt::format("{}{}", list.empty() ? "" : ",", fmt::join(more, ","));
  VMM_ASSIGN(choice.events, choose_events(list, generation, run.source, run.time, run.changes));
  if (arguments.time == "auto") {
    VMM_ASSIGN(const auto others, choose_events(list, generation, run.source, TimeModel::instructions, run.changes));
    if (std::ranges::equal(choice.events, others, {}, &StatEvent::quality, &StatEvent::quality))
      run.time = TimeModel::instructions;
    arguments.time = name_of(run.time);
  }
  return choice;
}

Result<std::optional<OutputFile>> open_output(const std::string& path, const FileRole& role) {
  std::optional<OutputFile> file;
  if (path.empty() || path == "-") return file;
  VMM_ASSIGN(auto opened, OutputFile::open(path, role));
  file.emplace(std::move(opened));
  return file;
}

std::string text_of(const StatArguments& arguments, const StatDocument& document) {
  if (arguments.separator) return to_fields(document, *arguments.separator);
  return arguments.json_lines ? to_json_lines(document) : to_table(document);
}

/// Runs the command as often as it is to be, and puts the counts' mean into the document. Its events stay empty if the
/// command has not run to its end.
Result<int> run_all(const StatArguments& arguments, const std::vector<StatEvent>& events, const MachineModel& model,
                    StatDocument& document) {
  const off_t offset = ::lseek(STDIN_FILENO, 0, SEEK_CUR);
  const bool is_stream = offset < 0 && errno == ESPIPE;
  if (arguments.runs > 1 && is_stream)
    return usage_error(fmt::format("{} runs, and this standard input can be read only once", arguments.runs),
                       "give a file as standard input, or no -r");
  std::vector<std::vector<StatCount>> runs;
  int code = 0;
  for (unsigned run = 0; run < arguments.runs; ++run) {
    if (run > 0) VMM_TRY(rewind_input(offset));
    document.events.clear();
    VMM_ASSIGN(const int now, document.counter == "vmm"
                                  ? run_beside(arguments, events, model, document)
                                  : run_passes(arguments, events, vpmu::describe(model.generation), document));
    if (document.events.empty()) return now;
    if (run > 0 && now != code)
      return host_error(fmt::format("the command ended with {}, and when it was run again with {}", code, now));
    code = now;
    runs.push_back(document.events);
  }
  document.events = mean_of(runs);
  return code;
}

Result<int> stat(StatArguments arguments) {
  const MachineModel* const model = find_machine_model(arguments.machine.model);
  if (model == nullptr) return usage_error("unknown model " + printable(arguments.machine.model), "see `vpmu models`");
  const auto& generation = vpmu::describe(model->generation);
  VMM_ASSIGN(const StatLimits limits, read_limits(arguments.limits));
  VMM_ASSIGN(GuestPerfRun run, describe_guest(arguments));
  VMM_ASSIGN(const Choice choice, choose_events_and_time(arguments, run, generation));
  StatDocument document = describe_run(arguments, run);
  document.counter = counts_beside(run, choice.events) ? "vmm" : "perf";
  if (document.counter == "perf") VMM_TRY(check_for_perf(arguments.root));
  if (document.counter == "perf" && !arguments.record.empty())
    return usage_error("--record needs counts of the VMM: perf in the guest counts here",
                       "leave out the events that only the guest's kernel has, and use --accel soft --source exact");
  VMM_TRY(check_limits(limits, choice.events));
  std::optional<StatDocument> base;
  if (!arguments.base.empty()) {
    VMM_ASSIGN(base, read_measurement(arguments.base));
    VMM_TRY(check_comparable(*base, document));
  }
  VMM_ASSIGN(auto file,
             open_output(arguments.json, {.what = "the result", .advice = "give a writable path with --json"}));
  VMM_ASSIGN(auto record,
             open_output(arguments.record, {.what = "the record", .advice = "give a writable path with --record"}));
  VMM_ASSIGN(auto output,
             open_output(arguments.output, {.what = "the output", .advice = "give a writable path with -o"}));
  VMM_ASSIGN(auto report,
             open_output(arguments.report, {.what = "the comparison", .advice = "give a writable path with --report"}));
  const bool prints = arguments.json == "-";
  std::optional<OutputAside> aside;
  if (prints) {
    VMM_ASSIGN(aside, OutputAside::begin());
  }
  VMM_ASSIGN(const int code, run_all(arguments, choice.events, *model, document));
  if (aside) VMM_TRY(aside->end());
  if (document.events.empty()) return code;
  document.exit_code = code;
  document.metrics = compute_metrics(choice.metrics, document);
  VMM_TRY(output ? output->replace(text_of(arguments, document)) : write_error(text_of(arguments, document)));
  if (file) VMM_TRY(file->replace(to_json(document)));
  if (record) VMM_TRY(record->replace(to_json(document)));
  if (prints) VMM_TRY(write_out(to_json(document)));
  if (!base) return code;
  const StatComparison comparison = compare(*base, document, limits);
  VMM_TRY(write_error(to_text(comparison)));
  if (report)
    VMM_TRY(report->replace(arguments.report.ends_with(".json") ? to_json(comparison) : to_markdown(comparison)));
  return code == 0 && (comparison.rose || base->exit_code != code) ? stat_rose : code;
}

int stat_and_report(StatArguments arguments) {
  // What programs read has only that in it.
  arguments.quiet = arguments.quiet || arguments.separator || arguments.json_lines;
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
  stat.add_option("-e,--event", arguments->lists,
                  fmt::format("the events to count, separated by commas; default: {}", default_stat_events));
  stat.add_flag("-d,--detailed", arguments->detailed, fmt::format("also count {}", detailed_stat_events));
  stat.add_option("-M,--metrics", arguments->metrics, "print metrics: IPC, CPI, TopdownL1 or one of its four");
  stat.add_flag("--topdown", arguments->topdown, "the same as -M TopdownL1");
  stat.add_option("-r,--repeat", arguments->runs, "run the command so many times, and print the mean")
      .within(1U, 1000U);
  const Argument separator = stat.add_option("-x,--field-separator", arguments->separator,
                                             "print fields with this text between them, as perf does");
  stat.add_flag("-j,--json-output", arguments->json_lines, "print a line of JSON for each event, as perf does")
      .excludes(separator);
  stat.add_option("-o,--output", arguments->output, "print the counts to this file, not to standard error")
      .takes_file();
  for (const RefusedOption& option : refused_options) stat.refuse_option(option.names, option.why);
  stat.add_option("--json", arguments->json,
                  "write the counts to this file as JSON; -: to standard output, and what the command writes there to "
                  "standard error")
      .takes_file();
  stat.add_option("--record", arguments->record,
                  "the same, and which functions have counted what, and the files that the command has read, for "
                  "`vpmu compare`")
      .takes_file();
  const Argument compare =
      stat.add_option("--compare", arguments->base, "a file of --json: fail if a count has risen above its limit")
          .takes_file();
  stat.add_option("--limit", arguments->limits, "how much a count may rise: PERCENT, or EVENT=PERCENT; default: 0")
      .needs(compare);
  stat.add_option("--report", arguments->report,
                  "write the comparison to this file: as JSON if its name ends in .json, else as Markdown")
      .takes_file()
      .needs(compare);
  stat.add_option("--env", arguments->variables, "also pass on this environment variable");
  stat.add_flag("--quiet", arguments->quiet, "print no progress");
  add_exec_options(stat, arguments);
  arguments->passes_variable = [variables = &arguments->variables](std::string_view variable) {
    return is_kept_variable(variable, *variables);
  };
  stat.set_footer(
      "The VMM counts all events in one run, beside the guest's PMU; this machine's perf does in the guest, if an "
      "event "
      "is the kernel's own or with --accel kvm, and then more events than counters take more runs, whose output is "
      "dropped. With --time auto, cycles come from the model of the core only if an event needs it. The "
      "command's environment has only PATH, HOME, LANG, LANGUAGE, LC_*, TZ, and what --env names.");
  stat.set_exit_codes(
      {{.code = "2", .meaning = "wrong options"},
       {.code = "3",
        .meaning = "the command ended with 0, and a count rose above its limit, or the base's command did not"},
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
