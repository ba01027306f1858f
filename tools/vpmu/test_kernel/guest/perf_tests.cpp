#include <algorithm>
#include <array>

#include "test_kernel/guest/checks.hpp"
#include "test_kernel/guest/program.hpp"

namespace vmm::tool::checker {
namespace {

/// One of the tests of `perf test` that a kernel can fail, by its name there.
struct PerfTest {
  std::string_view check, name;
};
constexpr auto perf_tests = std::to_array<PerfTest>({
    {"mmap", "Read samples using the mmap interface"},
    {"records", "PERF_RECORD_* events & perf_sample fields"},
    {"syscall", "Detect openat syscall event"},
    {"tracepoint", "syscalls:sys_enter_openat event fields"},
    {"sched", "Parse sched tracepoints fields"},
    {"sched-switch", "Track with sched_switch"},
    {"breakpoint.signal", "Breakpoint overflow signal handler"},
    {"breakpoint.sampling", "Breakpoint overflow sampling"},
    {"breakpoint.accounting", "Breakpoint accounting"},
    {"breakpoint.modify", "x86 bp modify"},
    {"watchpoint.write", "Write Only Watchpoint"},
    {"watchpoint.both", "Read / Write Watchpoint"},
    {"watchpoint.modify", "Modify Watchpoint"},
    {"clock", "Software clock events period values"},
    {"code", "Object code reading"},
    {"dummy", "Use a dummy software event to keep tracking"},
    {"times", "Event times"},
    {"backward", "Read backward ring buffer"},
    {"tsc", "TSC support"},
    {"sigtrap", "Sigtrap"},
});

/// perf's verdict: "Ok", "Skip (why)", "FAILED!"; empty if perf does not have the test. A line is
/// " 23.2: Write Only Watchpoint     : Ok".
std::string_view verdict_of(std::string_view output, std::string_view name) {
  for (std::string_view line : lines_of(output)) {
    const std::size_t begin = line.find(": ");
    if (begin == std::string_view::npos || !line.substr(begin + 2).starts_with(name)) continue;
    line.remove_prefix(begin + 2 + name.size());
    const std::size_t end = line.find_first_not_of(' ');
    if (end == std::string_view::npos || line[end] != ':' || line.size() <= end + 2) continue;
    return line.substr(end + 2);
  }
  return {};
}

}  // namespace

void check_perfs_tests(Report& report) {
  for (const PerfTest& test : perf_tests) {
    const std::string check = "perf.test." + std::string{test.check};
    const ProgramEnd end = run_program({"perf", "test", std::string{test.name}});
    const std::string_view verdict = verdict_of(end.output, test.name);
    if (verdict.empty() && end.code == 0)
      report.skip(check, "this perf has no such test");
    else if (verdict.starts_with("Skip"))
      report.skip(check, verdict);
    else
      report.check(check, verdict.starts_with("Ok"), "Ok", verdict.empty() ? last_line(end.output) : verdict);
  }
}

}  // namespace vmm::tool::checker
