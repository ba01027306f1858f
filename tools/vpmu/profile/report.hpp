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
  std::string version, model, accel, source, kernel;
  std::vector<std::string> command;
  int exit_code{};
};

/// All that a report tells. Nothing in it is of the moment it is made: two equal runs have the same one.
struct ProfileReport {
  ProfiledRun run;
  RecordingPlan plan;
  const ProfileSummary* summary{};
  std::vector<AnnotatedFunction> annotated;
  std::vector<std::string> notes;  ///< Of what went wrong with the samples, a sentence each.
};

/// The report as JSON. Bytes that are not UTF-8 become U+FFFD.
std::string to_json(const ProfileReport& report);

/// A page that needs no other file, and no server: its data as JSON in a script element.
std::string to_html(const ProfileReport& report);

/// JSON as it may stand in a script element: nothing in it can end that.
std::string for_script_element(std::string_view json);

}  // namespace vmm::tool
