#include "profile/profile.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "command_line.hpp"
#include "exec/exec.hpp"
#include "exec/perf_there.hpp"
#include "files/output_file.hpp"
#include "files/work_directory.hpp"
#include "model/model.hpp"
#include "profile/branch_profile.hpp"
#include "profile/host_tool.hpp"
#include "profile/report.hpp"
#include "profile/samples.hpp"
#include "stat/guest_perf.hpp"
#include "stat/passes.hpp"
#include "stat/progress.hpp"

namespace vmm::tool {
namespace {

namespace fs = std::filesystem;

/// Where the guest sees the directory of the results. The path of a temporary directory would differ in each run, and
/// with it the command's stack.
constexpr const char* guest_profile_directory = "/run/vpmu-profile";
constexpr const char* data_name = "perf.data";
constexpr const char* symbols_name = "kallsyms";
constexpr const char* report_name = "report.html";
/// perf's own. Of three events it is a sample for some 200,000 cycles, of which perf's work is one percent.
constexpr unsigned usual_frequency = 4000;
constexpr std::uint64_t max_period = 1ULL << 31U;
/// Taken branches for a branch stack, which tells of 16 or 32 of them.
constexpr std::uint64_t usual_branches = 10007;

struct ProfileArguments : ExecArguments {
  std::string output, call_graph{"fp"}, branches;
  std::vector<std::string> variables;
  std::uint64_t period{};
  unsigned frequency{usual_frequency};
  bool quiet{};
};

Result<void> check(const ProfileArguments& arguments) {
  if (arguments.period > max_period)
    return usage_error(fmt::format("--period {} is longer than a counter", arguments.period),
                       fmt::format("give at most {}", max_period));
  if (arguments.call_graph != "fp" && arguments.call_graph != "dwarf" && arguments.call_graph != "lbr")
    return usage_error("--call-graph " + printable(arguments.call_graph) + " is none that perf has",
                       "give fp, dwarf or lbr");
  VMM_TRY(check_for_perf(arguments.root));
  std::error_code error;
  fs::create_directory(arguments.output, error);
  if (!fs::is_directory(arguments.output))
    return usage_error("cannot make the directory " + printable(arguments.output) + ": " +
                           (error ? error.message() : "it is something else"),
                       "give another with --output");
  return {};
}

/// What the guest's perf is told to record.
std::vector<std::string> recording_options(const ProfileArguments& arguments, const RecordingPlan& plan,
                                           const SampleRate& rate) {
  // The kernel reports build IDs with each mapping.
  std::vector<std::string> all{"--buildid-mmap",
                               "--call-graph",
                               arguments.call_graph,
                               "--data",
                               "--weight",
                               "--freq",
                               fmt::format("{}", rate.frequency)};
  for (const RecordedEvent& event : plan.events) all.insert(all.end(), {"-e", event.perf});
  return all;
}

/// Runs perf in the guest, which runs the command. Saves the symbols first: the command may end the machine.
std::vector<std::string> perf_command(const ProfileArguments& arguments, const std::vector<std::string>& options) {
  // perf need not collect the build IDs of sampled files, nor copy the files: that takes longer than many a command.
  std::vector<std::string> all{"sh",
                               "-c",
                               fmt::format(R"(cat /proc/kallsyms >"$0/{}"; exec "$@")", symbols_name),
                               guest_profile_directory,
                               "perf",
                               "record",
                               "--quiet",
                               "--no-buildid",
                               "--no-buildid-cache",
                               "--output",
                               fmt::format("{}/{}", guest_profile_directory, data_name)};
  all.insert(all.end(), options.begin(), options.end());
  all.emplace_back("--");
  all.insert(all.end(), arguments.command.begin(), arguments.command.end());
  return all;
}

/// Runs the command in a guest, where perf writes to `directory`.
Result<int> record(const ProfileArguments& arguments, const std::vector<std::string>& options,
                   const std::string& directory, Progress& progress) {
  ProfileArguments run = arguments;
  run.elsewhere.push_back({.host = directory, .guest = guest_profile_directory});
  run.command = perf_command(arguments, options);
  // perf ends the command, and completes its file.
  run.ends_by_signal = true;
  // A compiler's profile of the kernel has the addresses that its image is linked for.
  if (arguments.branches == "kernel") run.append = "nokaslr " + run.append;
  // Otherwise Linux drops samples: when there are more than 100000 per second of guest time, or when the engine takes
  // long for one. Messages on the console would be in the profile; loglevel=0 still shows those of a panic.
  run.append =
      "sysctl.kernel.perf_event_max_sample_rate=10000000 sysctl.kernel.perf_cpu_time_max_percent=0 loglevel=0 " +
      run.append;
  progress.begin("the command runs in a guest");
  return in_child([&run] { return run_exec(run); },
                  {.interval = std::chrono::seconds{1}, .act = [&progress] { progress.tick(); }});
}

/// Whether perf has ended what it writes, before the guest was stopped.
bool has_recorded(const std::string& directory) {
  std::error_code error;
  const auto size = fs::file_size(fmt::format("{}/{}", directory, data_name), error);
  return !error && size != 0;
}

/// Moves a file that the guest has left in `from` to `to`. The guest may have put anything there; a link could lead to
/// any of our files.
Result<void> keep(const std::string& from, const std::string& to, const char* name) {
  const std::string path = fmt::format("{}/{}", from, name);
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0)
    return host_error(fmt::format("perf has left no {} in the guest", name), 0,
                      "see perf's messages, and those of `vpmu exec -- perf record true`");
  if (!S_ISREG(status.st_mode))
    return host_error(fmt::format("the guest has replaced {} by something that is not a file", name), 0,
                      "do not trust what this guest reports");
  std::error_code error;
  fs::rename(path, fmt::format("{}/{}", to, name), error);
  if (error) return host_error(fmt::format("moving {} to {}", name, printable(to)), error.value());
  return {};
}

/// Runs this machine's `perf script` on perf.data.
Result<void> run_perf_script(const std::string& directory, std::vector<std::string> options, std::string_view fields,
                             const std::function<void(std::string_view)>& take) {
  std::vector<std::string> command{"perf",       "script",
                                   "--input",    fmt::format("{}/{}", directory, data_name),
                                   "--kallsyms", fmt::format("{}/{}", directory, symbols_name),
                                   "--ns",       "--no-inline",
                                   "-F",         std::string{fields}};
  command.insert(command.end(), options.begin(), options.end());
  VMM_ASSIGN(const ToolEnd end, run_tool(command, [&take](std::string_view text) {
               take(text);
               return true;
             }));
  if (end.exit_code == 0) return {};
  return host_error(fmt::format("perf script ended with {}: {}", end.exit_code, printable(end.said)), 0,
                    fmt::format("see `perf script -i {}/{}`", printable(directory), data_name));
}

/// Adds notes about samples that the guest's kernel has dropped. Returns how often it did so.
Result<std::uint64_t> note_what_is_missing(const std::string& directory, std::vector<std::string>& notes) {
  std::string text;
  VMM_ASSIGN(const ToolEnd end,
             run_tool({"perf", "report", "--stats", "--input", fmt::format("{}/{}", directory, data_name)},
                      [&text](std::string_view part) {
                        constexpr std::size_t max = 65536;
                        text += part.substr(0, max - std::min(max, text.size()));
                        return true;
                      }));
  std::uint64_t all = 0;
  if (end.exit_code != 0) return all;
  for (const auto& [kind, what] :
       {std::pair{" THROTTLE", "times Linux has left out samples because there were too many"},
        std::pair{" LOST", "times samples were lost"}})
    if (const std::uint64_t times = count_of(text, kind); times != 0) {
      notes.push_back(fmt::format("{} {}.", times, what));
      all += times;
    }
  return all;
}

/// How much of the cycles are the samples' own interrupts.
std::string share_of_sampling(const ProfileSummary& summary) {
  constexpr double whole = 100.0;
  constexpr auto cycles = static_cast<std::size_t>(Metric::cycles);
  const auto total = static_cast<double>(std::max<std::uint64_t>(summary.total()[cycles], 1));
  return fmt::format("{:.1f} % of the cycles", whole * static_cast<double>(summary.sampling()[cycles]) / total);
}

/// Sums up the samples of perf.data.
Result<ProfileSummary> read_samples(const std::string& directory, ProfileReport& report, Progress& progress) {
  std::vector<std::string>& notes = report.notes;
  progress.begin("perf script reads the samples");
  SampleSites sites;
  VMM_TRY(run_perf_script(directory, {"--hide-call-graph"}, site_fields, [&](std::string_view text) {
    sites.add(text);
    progress.tick();
  }));
  sites.finish();
  ProfileSummary summary;
  std::uint64_t unsure = 0;
  SampleReader reader{[&](Sample& sample) {
    const SampleFrame* const site = sites.next(sample.aspect, sample.time);
    if (site != nullptr) put_on_top(sample.frames, *site);
    unsure += site == nullptr ? 1 : 0;
    summary.add(sample);
  }};
  VMM_TRY(run_perf_script(directory, {}, sample_fields, [&](std::string_view text) {
    reader.add(text);
    progress.tick(fmt::format("{} samples", reader.samples()));
  }));
  reader.finish();
  VMM_ASSIGN(report.run.lost, note_what_is_missing(directory, notes));
  if (reader.unread_lines() != 0)
    notes.push_back(fmt::format("{} lines of perf script could not be read.", reader.unread_lines()));
  if (unsure != 0)
    notes.push_back(fmt::format("{} samples are not precise: they show where the interrupt came.", unsure));
  if (summary.crowded() != 0)
    notes.push_back(fmt::format("{} calls are counted with their callers because there are too many different ones.",
                                summary.crowded()));
  return summary;
}

/// The code of the functions with the highest value of any metric.
std::vector<AnnotatedFunction> annotate_hottest(const ProfileSummary& summary, Progress& progress) {
  progress.begin("objdump reads the hottest functions");
  std::vector<std::size_t> chosen;
  constexpr std::array wanted{std::pair{Metric::cycles, 6U}, std::pair{Metric::latency, 3U},
                              std::pair{Metric::mispredictions, 3U}};
  for (const auto& [metric, max] : wanted)
    for (const std::size_t function : hottest(summary, metric, max))
      if (std::ranges::find(chosen, function) == chosen.end()) chosen.push_back(function);
  std::vector<AnnotatedFunction> all;
  for (const std::size_t function : chosen) {
    all.push_back(annotate(summary, function));
    progress.tick();
  }
  return all;
}

Result<int> profile(const ProfileArguments& arguments) {
  VMM_TRY(check(arguments));
  const MachineModel* const model = find_machine_model(arguments.machine.model);
  if (model == nullptr) return usage_error("unknown model " + printable(arguments.machine.model), "see `vpmu models`");
  VMM_ASSIGN(const GuestPerfRun guest, describe_guest(arguments));
  const SampleRate rate{.period = arguments.period, .frequency = arguments.frequency};
  ProfileReport report;
  VMM_ASSIGN(report.plan, plan_recording(vpmu::describe(model->generation), guest.source, rate, guest.time));
  const std::string report_path = fmt::format("{}/{}", arguments.output, report_name);
  VMM_ASSIGN(auto file, OutputFile::open(report_path, {.what = "the report", .advice = "give another --output"}));
  VMM_ASSIGN(const WorkDirectory results, WorkDirectory::create(fs::absolute(arguments.output).string()));
  Progress progress{arguments.name, arguments.quiet ? Progress::Voice::quiet : Progress::Voice::aloud};
  VMM_ASSIGN(const int code,
             record(arguments, recording_options(arguments, report.plan, rate), results.path(), progress));
  if (code == exec_failed || (code == exec_timed_out && !has_recorded(results.path()))) return code;
  for (const char* const name : {symbols_name, data_name}) VMM_TRY(keep(results.path(), arguments.output, name));
  VMM_ASSIGN(const ProfileSummary summary, read_samples(arguments.output, report, progress));
  report.summary = &summary;
  report.annotated = annotate_hottest(summary, progress);
  report.run = {.version = VPMU_VERSION,
                .model = arguments.machine.model,
                .accel = guest.accel,
                .source = guest.source,
                .time = std::string{name_of(guest.time)},
                .set = guest.changes.text(),
                .kernel = guest.kernel,
                .command = arguments.command,
                .exit_code = code,
                .sampling = share_of_sampling(summary),
                .lost = report.run.lost,
                .is_stopped = code == exec_timed_out};
  VMM_TRY(file.replace(to_html(report)));
  if (!arguments.quiet) std::fprintf(stderr, "%s: the report is in %s\n", arguments.name, report_path.c_str());
  return code;
}

/// Records branch stacks, for compilers and linkers.
Result<int> profile_branches(const ProfileArguments& arguments) {
  VMM_TRY(check(arguments));
  const MachineModel* const model = find_machine_model(arguments.machine.model);
  if (model == nullptr) return usage_error("unknown model " + printable(arguments.machine.model), "see `vpmu models`");
  VMM_ASSIGN(const GuestPerfRun guest, describe_guest(arguments));
  const BranchesOf of = arguments.branches == "kernel" ? BranchesOf::kernel : BranchesOf::user;
  VMM_ASSIGN(const auto options, branch_options(vpmu::describe(model->generation), guest.source, of,
                                                arguments.period != 0 ? arguments.period : usual_branches));
  VMM_ASSIGN(const WorkDirectory results, WorkDirectory::create(fs::absolute(arguments.output).string()));
  Progress progress{arguments.name, arguments.quiet ? Progress::Voice::quiet : Progress::Voice::aloud};
  VMM_ASSIGN(const int code, record(arguments, options, results.path(), progress));
  if (code == exec_failed || (code == exec_timed_out && !has_recorded(results.path()))) return code;
  for (const char* const name : {symbols_name, data_name}) VMM_TRY(keep(results.path(), arguments.output, name));
  const std::string data = fmt::format("{}/{}", arguments.output, data_name);
  VMM_TRY(make_readable(data));
  std::vector<std::string> notes;
  std::vector<MadeProfile> made;
  if (of == BranchesOf::user) {
    progress.begin("the branches are read");
    made = make_profiles(arguments.output, arguments.command.front(), notes);
  }
  if (arguments.quiet) return code;
  std::fprintf(stderr, "%s: the branch stacks are in %s\n", arguments.name, data.c_str());
  for (const MadeProfile& one : made)
    std::fprintf(stderr, "%s: %s is made by: %s\n", arguments.name, printable(one.path).c_str(),
                 printable(one.command).c_str());
  for (const std::string& note : notes) std::fprintf(stderr, "%s: %s\n", arguments.name, note.c_str());
  return code;
}

int profile_and_explain(const ProfileArguments& arguments) {
  const auto code = arguments.branches.empty() ? profile(arguments) : profile_branches(arguments);
  if (code) return *code;
  std::fprintf(stderr, "%s: %s\n", arguments.name, describe(code.error()).c_str());
  return exec_failed;
}

}  // namespace

void add_profile(Command& app, int& exit_code) {
  auto arguments = std::make_shared<ProfileArguments>();
  arguments->name = "vpmu profile";
  arguments->accel = "soft";
  arguments->machine.source = "exact";
  Command profile =
      app.add_command("profile", "profile a command in a guest: its time, loads and mispredicted branches");
  profile.add_option("-o,--output", arguments->output, "the directory for perf.data, kallsyms and report.html")
      .required()
      .takes_file();
  const Argument period = profile.add_option(
      "--period", arguments->period,
      "cycles per sample, instead of a frequency; loads and mispredictions are sampled more often. A short "
      "program has more samples with 10007, and the cost of each is in the profile");
  profile.add_option("--frequency", arguments->frequency, "samples of each event per second of guest time")
      .shows_default()
      .within(1U, 100000U)
      .excludes(period);
  profile
      .add_option("--branches", arguments->branches,
                  "record branch stacks of user or kernel instead, for compilers and linkers: one for so many taken "
                  "branches as --period says (10007). Makes no report, but perf.data, and of it NAME.fdata (BOLT) "
                  "and NAME.prof (clang), if perf2bolt and llvm-profgen are installed")
      .one_of({"user", "kernel"});
  profile.add_option("--call-graph", arguments->call_graph, "how perf finds callers: fp, dwarf or lbr")
      .shows_default()
      .suggests({"fp", "dwarf", "lbr"});
  profile.add_option("--env", arguments->variables, "also pass on this environment variable");
  profile.add_flag("--quiet", arguments->quiet, "print no progress");
  add_exec_options(profile, arguments);
  arguments->passes_variable = [variables = &arguments->variables](std::string_view variable) {
    return is_kept_variable(variable, *variables);
  };
  profile.set_footer(
      "This machine's perf records in the guest, and reads perf.data here. The command's environment has only PATH, "
      "HOME, LANG, LANGUAGE, LC_*, TZ, and what --env names.");
  profile.set_exit_codes({{.code = "2", .meaning = "wrong options"},
                          {.code = "124", .meaning = "time limit"},
                          {.code = "125", .meaning = "vpmu itself failed"},
                          {.code = "any other", .meaning = "the command's own"}});
  profile.add_example("vpmu profile --output DIR -- ./program",
                      "writes a page and perf.data: where a program's time goes, its loads, its mispredicted branches");
  profile.add_example("vpmu profile --model haswell --branches user --output DIR -- ./program",
                      "writes branch profiles from which BOLT and clang lay out the program's code");
  profile.when_given([arguments, &exit_code] { exit_code = profile_and_explain(*arguments); });
}

}  // namespace vmm::tool
