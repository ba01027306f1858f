#include <link.h>
#include <sys/auxv.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <optional>

#include "test_kernel/guest/checks.hpp"
#include "test_kernel/guest/program.hpp"
#include "test_kernel/guest/work.hpp"

namespace vmm::tool::checker {
namespace {

constexpr const char* data_file = "/tmp/vpmu-kernel-checker.data";
constexpr std::uint64_t perf_period = 10'048;   // a multiple of 64, as Broadwell requires
constexpr std::uint64_t branch_period = 1'009;  // of the loop's branch
constexpr std::uint64_t max_around = 100'000;   // instructions of a program that does nothing: an upper limit

using Words = std::vector<std::string>;

Words joined(Words first, const Words& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// The samples that perf recorded, as `perf script` prints them: a line or a paragraph for each.
struct Script {
  bool was_recorded{};
  std::string text;  ///< If recording or printing failed: perf's messages.
};

/// Runs `perf RECORDER... -o FILE -- WORK`, and then prints these fields of the samples.
Script record_by_perf(const Words& recorder, std::string_view work, std::string_view fields) {
  const Words command = joined(joined({"perf"}, recorder), {"-o", data_file, "--"});
  const ProgramEnd recorded = run_program(joined(command, work_command(work)));
  if (recorded.code != 0) return {.was_recorded = false, .text = std::string{last_line(recorded.output)}};
  ProgramEnd printed = run_program({"perf", "script", "-i", data_file, "-F", std::string{fields}});
  if (printed.code != 0) return {.was_recorded = false, .text = std::string{last_line(printed.output)}};
  return {.was_recorded = true, .text = std::move(printed.output)};
}

/// The first hexadecimal number of a text, with or without 0x before it.
std::optional<std::uint64_t> first_number(std::string_view text) {
  constexpr int sixteen = 16;
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  if (text.starts_with("0x")) text.remove_prefix(2);
  std::uint64_t number = 0;
  const auto [stopped, error] = std::from_chars(text.data(), text.data() + text.size(), number, sixteen);
  if (error != std::errc{}) return std::nullopt;
  return number;
}

/// Checks that nearly all samples are right, that the others are in the code around the work, and that there are
/// enough of them.
void check_script(Report& report, std::string_view name, const Script& script, std::uint64_t expected,
                  const std::function<bool(std::string_view sample)>& is_right) {
  const std::string wanted = decimal(expected) + " samples or some more, so many of them right";
  if (!script.was_recorded) return report.check(name, false, wanted, script.text);
  std::uint64_t all = 0, right = 0;
  for (const std::string_view line : lines_of(script.text)) {
    if (line.find_first_not_of(' ') == std::string_view::npos) continue;
    ++all;
    right += is_right(line) ? 1 : 0;
  }
  // One fewer is right: the first period may begin before the work, and the last one end after it.
  const bool holds = expected > 1 && right + 1 >= expected && all <= expected + expected / 4 + 2;
  report.check(name, holds, wanted, decimal(all) + " samples, " + decimal(right) + " of them right");
}

/// Whether the processor has the facility. If not, checks that the kernel refused it to perf.
bool is_there(bool there, Report& report, std::string_view name, const Script& script) {
  if (!there) report.check(name, !script.was_recorded, "refused", script.was_recorded ? "recorded" : "refused");
  return there;
}

void check_stat(Report& report) {
  const Words command{"perf", "stat", "-x", ",", "-e", "instructions:u", "--"};
  const ProgramEnd end = run_program(joined(command, work_command(loop_work)));
  const std::uint64_t min = long_loop.instructions();
  std::uint64_t count = 0;
  for (const std::string_view line : lines_of(end.output))
    if (line.find(",instructions:u,") != std::string_view::npos)
      std::from_chars(line.data(), line.data() + line.size(), count);
  report.check("perf.stat", end.code == 0 && count >= min && count <= min + max_around,
               decimal(min) + " to " + decimal(min + max_around), decimal(count));
}

void check_record(const Processor& processor, Report& report) {
  struct Level {
    unsigned precise;
    const char *check, *event;
  };
  // For the highest level Linux requires INST_RETIRED.PREC_DIST.
  constexpr auto levels = std::to_array<Level>({{0, "perf.record.0", "instructions:u"},
                                                {1, "perf.record.1", "instructions:up"},
                                                {2, "perf.record.2", "instructions:upp"},
                                                {3, "perf.record.3", "cpu/event=0xc0,umask=1/uppp"}});
  for (const Level& level : levels) {
    const Script script =
        record_by_perf({"record", "-q", "-e", level.event, "-c", decimal(perf_period)}, loop_work, "ip");
    if (!is_there(level.precise <= processor.precise, report, level.check, script)) continue;
    check_script(report, level.check, script, long_loop.instructions() / (perf_period + 1),
                 [](std::string_view sample) { return KnownLoop::has(first_number(sample).value_or(0)); });
  }
}

/// How `perf mem` and `perf c2c` record loads here. Of the loop's 200,000 loads the processor follows only some.
const Words load_options{"--ldlat", "3", "-c", "1009"};
constexpr std::uint64_t min_loads = 20;

/// The number of samples of the loop's load that hit the L1.
std::uint64_t loads_of_loop(const Script& script) {
  std::uint64_t right = 0;
  for (const std::string_view line : lines_of(script.text)) {
    const std::size_t source = line.find("|OP LOAD|LVL L1");
    const std::size_t ip = line.find_last_of(' ');
    if (source == std::string_view::npos || ip == std::string_view::npos) continue;
    right += first_number(line.substr(ip)) == address_of(vpmu_known_load) ? 1 : 0;
  }
  return script.was_recorded ? right : 0;
}

void check_mem(const Processor& processor, Report& report) {
  const Script script = record_by_perf(joined({"mem", "record", "-t", "load"}, load_options), loop_work, "ip,data_src");
  if (!is_there(processor.known, report, "perf.mem", script)) return;
  const std::uint64_t right = loads_of_loop(script);
  report.check("perf.mem", right >= min_loads, decimal(min_loads) + " loads of the loop or more, from the L1",
               script.was_recorded ? decimal(right) : script.text);
}

/// "  Load Operations    :   12" of `perf c2c report --stats`.
std::uint64_t statistic(std::string_view text, std::string_view name) {
  for (std::string_view line : lines_of(text)) {
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    if (!line.starts_with(name)) continue;
    line.remove_prefix(std::min(line.find_last_of(" :") + 1, line.size()));
    std::uint64_t number = 0;
    std::from_chars(line.data(), line.data() + line.size(), number);
    return number;
  }
  return 0;
}

void check_c2c(const Processor& processor, Report& report) {
  // perf records on every CPU here. Programs only: if the kernel's interrupt handler makes more loads than a period
  // has, each interrupt would cause the next one.
  const Script script = record_by_perf(joined({"c2c", "record", "--all-user"}, load_options), loop_work, "ip,data_src");
  if (!is_there(processor.known && processor.stores != 0, report, "perf.c2c", script)) return;
  const ProgramEnd end = run_program({"perf", "c2c", "report", "-i", data_file, "--stats", "--stdio"});
  const std::uint64_t right = loads_of_loop(script);
  const std::uint64_t loads = statistic(end.output, "Load Operations");
  const std::uint64_t unread = statistic(end.output, "Unable to parse data source");
  report.check("perf.c2c", end.code == 0 && right >= min_loads && loads >= right && unread == 0,
               decimal(min_loads) + " loads of the loop or more, and all data sources known to perf",
               script.was_recorded
                   ? decimal(right) + " of " + decimal(loads) + " loads, " + decimal(unread) + " unknown"
                   : script.text);
}

void check_branch_stack(const Processor& processor, Report& report) {
  const Script script = record_by_perf(
      {"record", "-q", "-j", "any,u", "-e", "branches:u", "-c", decimal(branch_period)}, loop_work, "brstack");
  if (!is_there(processor.known, report, "perf.branches", script)) return;
  check_script(report, "perf.branches", script, long_loop.branches() / branch_period, [](std::string_view sample) {
    const std::size_t to = sample.find('/');
    return first_number(sample) == address_of(vpmu_known_jump) && to != std::string_view::npos &&
           first_number(sample.substr(to + 1)) == address_of(vpmu_known_load);
  });
}

/// The samples of `perf script -F ip` with callers, each on one line, its frames separated by spaces.
std::string on_one_line_each(std::string_view text) {
  std::string all;
  for (const std::string_view line : lines_of(text)) {
    const std::size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string_view::npos)
      all += '\n';
    else
      all += std::string{line.substr(begin)} + ' ';
  }
  return all;
}

/// The address in the program's file: with callers, perf prints these.
std::uint64_t place_in_file(const void* place) {
  const std::uint64_t address = address_of(place);
  const auto* const header = reinterpret_cast<const ElfW(Phdr)*>(::getauxval(AT_PHDR));
  for (std::uint64_t i = 0; i < ::getauxval(AT_PHNUM); ++i)
    if (header[i].p_type == PT_LOAD && address - header[i].p_vaddr < header[i].p_memsz)
      return address - header[i].p_vaddr + header[i].p_offset;
  return 0;
}

/// `way`: how perf finds callers.
void check_callers(const char* way, bool there, std::string_view name, Report& report) {
  Script script = record_by_perf(
      {"record", "-q", "--call-graph", way, "-e", "instructions:u", "-c", decimal(perf_period)}, frames_work, "ip");
  if (!is_there(there, report, name, script)) return;
  if (script.was_recorded) script.text = on_one_line_each(script.text);
  check_script(report, name, script, 2 * std::uint64_t{frames_work_rounds} / perf_period, [](std::string_view sample) {
    const std::uint64_t at = first_number(sample).value_or(0);
    if (at < place_in_file(vpmu_known_framed) || at > place_in_file(vpmu_known_framed_end)) return false;
    sample.remove_prefix(std::min(sample.find(' '), sample.size()));
    const std::uint64_t caller = first_number(sample).value_or(0);
    return caller == place_in_file(vpmu_known_frame_call) || caller == place_in_file(vpmu_known_frame_return);
  });
}

}  // namespace

void check_perf(const Processor& processor, Report& report) {
  check_stat(report);
  check_record(processor, report);
  check_mem(processor, report);
  check_c2c(processor, report);
  check_branch_stack(processor, report);
  check_callers("fp", true, "perf.callers.fp", report);
  check_callers("lbr", processor.call_stack, "perf.callers.lbr", report);
}

}  // namespace vmm::tool::checker
