#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "profile/disassembly.hpp"
#include "profile/recorded_events.hpp"
#include "profile/summary.hpp"

namespace vmm::tool {

/// What was run, and how.
struct ProfiledRun {
  std::string version, model, accel, source, time, set, kernel;
  std::vector<std::string> command;
  int exit_code{};
  std::string sampling{};  ///< How much of the cycles are the samples' own interrupts.
  std::uint64_t lost{};    ///< Times that samples were lost, or left out because there were too many.
  bool is_stopped{};       ///< By --timeout: the report has what had been recorded.
};

/// Everything in a report. It contains nothing of the time at which it is made: two equal runs give equal reports.
struct ProfileReport {
  ProfiledRun run;
  RecordingPlan plan;
  const ProfileSummary* summary{};
  std::vector<AnnotatedFunction> annotated;
  std::vector<std::string> notes;  ///< Problems with the samples, a sentence each.
};

/// The report as JSON. Bytes that are not UTF-8 become U+FFFD.
std::string to_json(const ProfileReport& report);

/// An HTML page that needs no other file and no server: its data is JSON in a script element.
std::string to_html(const ProfileReport& report);

/// Escapes JSON for a script element, so that nothing in it can end the element.
std::string for_script_element(std::string_view json);

}  // namespace vmm::tool
