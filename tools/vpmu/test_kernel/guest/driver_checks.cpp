#include <algorithm>
#include <array>
#include <bit>
#include <charconv>

#include "test_kernel/guest/checks.hpp"
#include "test_kernel/guest/system_files.hpp"

namespace vmm::tool::checker {
namespace {

constexpr std::string_view driver_line = "Performance Events: ";

/// The kernel's message about the PMU of this processor.
std::string expected_driver(const Processor& processor) {
  std::string text = "PEBS fmt" + decimal(processor.pebs_format) + "+, " + processor.driver;
  // On a model that it does not know, the kernel does not use the LBR.
  if (processor.known) text += ", " + decimal(processor.branches) + "-deep LBR";
  if (processor.full_width) text += ", full-width counters";
  return text + ", Intel PMU driver.";
}

std::string text_behind(const std::vector<std::string>& log, std::string_view begin) {
  const auto line = std::ranges::find_if(log, [&](const std::string& text) { return text.starts_with(begin); });
  return line == log.end() ? std::string{} : line->substr(begin.size());
}

/// The value of a line of the form "... NAME:    VALUE", by any of its names, which differ between kernels.
std::string fact(const std::vector<std::string>& log, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    std::string text = text_behind(log, "... " + std::string{name} + ":");
    text.erase(0, text.find_first_not_of(' '));
    if (text.empty()) continue;
    if (!name.ends_with("bitmap")) return text;
    std::uint64_t bits = 0;
    std::from_chars(text.data(), text.data() + text.size(), bits, 16);
    return decimal(static_cast<unsigned>(std::popcount(bits)));
  }
  return "?";
}

std::string counters_text(std::string_view version, std::string_view counters, std::string_view fixed,
                          std::string_view width) {
  std::string text{"version "};
  text.append(version).append(", ").append(counters).append(" + ").append(fixed).append(" counters of ");
  return text.append(width).append(" bits");
}

/// Whether the kernel complains about the PMU, an interrupt or an access.
bool is_complaint(std::string_view line) {
  constexpr std::array texts{
      "BUG:",          "Oops",       "unchecked MSR access", "irq loop stuck",     "general protection fault",
      "PEBS disabled", "Broken PMU", "PEBS record size",     "failed to register", "Call Trace:"};
  // Other lines contain the word, too: "RETBleed: WARNING: ...".
  if (line.starts_with("WARNING:")) return true;
  return std::ranges::any_of(texts, [line](const char* text) { return line.find(text) != std::string_view::npos; });
}

}  // namespace

void check_driver(const Processor& processor, Report& report) {
  const auto log = kernel_log();
  report.equal("log.driver", expected_driver(processor), text_behind(log, driver_line));
  report.equal(
      "log.counters",
      counters_text(decimal(processor.version), decimal(processor.counters), decimal(processor.fixed),
                    decimal(processor.width)),
      counters_text(fact(log, {"version"}), fact(log, {"generic registers", "generic counters", "generic bitmap"}),
                    fact(log, {"fixed-purpose events", "fixed-purpose counters", "fixed-purpose bitmap"}),
                    fact(log, {"bit width"})));
  // For a processor in none of its tables, the kernel reports that precise events are possible, and refuses every
  // precise event.
  if (!processor.known) return report.skip("sysfs.caps", "Linux has no table of this processor");
  const auto capabilities = [](std::string_view precise, std::string_view branches) {
    return "max_precise " + std::string{precise} + ", branches " + std::string{branches};
  };
  const std::string branches = read_text(core_pmu_path("caps/branches"));
  report.equal("sysfs.caps",
               capabilities(decimal(processor.precise), decimal(processor.known ? processor.branches : 0)),
               capabilities(read_text(core_pmu_path("caps/max_precise")), branches.empty() ? "0" : branches));
}

void check_no_complaint(std::string_view name, std::ptrdiff_t unknown_interrupts, Report& report) {
  const auto log = kernel_log();
  const auto found = std::ranges::find_if(log, [](const std::string& line) { return is_complaint(line); });
  const auto unknown = std::ranges::count_if(
      log, [](const std::string& line) { return line.find("Uhhuh. NMI received") != std::string::npos; });
  std::string seen = "no complaint";
  if (log.empty()) seen = "no log";
  if (unknown > unknown_interrupts) seen = decimal(static_cast<std::uint64_t>(unknown)) + " NMIs of an unknown reason";
  if (found != log.end()) seen = *found;
  report.equal(name, "no complaint", seen);
}

}  // namespace vmm::tool::checker
