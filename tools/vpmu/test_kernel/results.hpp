#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace vmm::tool {

enum class Outcome { pass, fail, skip };

/// What one check has found.
struct CheckResult {
  std::string name;  ///< "precise.2": letters, digits, dots and dashes.
  Outcome outcome{};
  std::string expected;  ///< Of one that was skipped: why.
  std::string seen;
  bool operator==(const CheckResult&) const = default;
};

/// What was found on one CPU model.
struct ModelResult {
  std::string model;
  std::vector<CheckResult> checks;
  bool operator==(const ModelResult&) const = default;
};

/// The I-th of N machines that share the models.
struct Shard {
  std::size_t number{1}, count{1};
  bool operator==(const Shard&) const = default;
};
inline constexpr std::size_t most_shards = 1000;
/// Whose turn the model at this place of all is.
constexpr std::size_t shard_of(std::size_t place, std::size_t count) { return place % count + 1; }

/// What was found of a kernel.
struct KernelReport {
  std::string kernel;    ///< Its file.
  std::string version;   ///< As it tells it itself.
  std::string checksum;  ///< Of the file: two builds may tell the same version.
  std::string suite;
  Shard shard;
  std::vector<std::string> asked;   ///< The models of all shards together.
  std::vector<ModelResult> models;  ///< Those of this one.
  bool operator==(const KernelReport&) const = default;
};

/// How a guest has ended.
struct GuestEnd {
  std::string output;    ///< What the checker has printed.
  std::string messages;  ///< What `vpmu exec` has said.
  std::string how;       ///< "exit code 0".
  bool is_success{};
};

/// The name of the check that tells whether the guest ran to its end.
inline constexpr std::string_view run_check = "run";

/// "pass", "fail" or "skip".
std::string_view name_of(Outcome outcome);
/// False where it is none of these.
bool read_outcome(std::string_view text, Outcome& outcome);
/// Text as a report can have it: what is not printable ASCII is '?'; cut to 1000 characters.
std::string clean_text(std::string_view text);

/// Whether it is one of a check or a model: up to 40 letters, digits, dots and dashes.
bool is_name(std::string_view text);
inline constexpr std::size_t most_checks = 1000;  ///< Of one model.

/// The checks of one guest, `run_check` first: it fails where the guest did not end well, a line of the checker cannot
/// be read, a check is there twice, or lines are missing.
ModelResult result_of(std::string_view model, const GuestEnd& end);

/// How many checks of a report have ended so.
unsigned count(const KernelReport& report, Outcome outcome);
/// Whether any checker has said anything.
bool has_run(const KernelReport& report);

}  // namespace vmm::tool
