#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace vmm::tool {

enum class Outcome { pass, fail, skip };

/// The result of one check.
struct CheckResult {
  std::string name;  ///< "precise.2": letters, digits, dots and dashes.
  Outcome outcome{};
  std::string expected;  ///< For a skipped check: why.
  std::string seen;
  bool operator==(const CheckResult&) const = default;
};

/// The results on one CPU model.
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
inline constexpr std::size_t max_shards = 1000;
/// Which shard tests the model with this index, from 1 to `count`.
constexpr std::size_t shard_of(std::size_t place, std::size_t count) { return place % count + 1; }

/// The results for a kernel.
struct KernelReport {
  std::string kernel;    ///< Its file.
  std::string version;   ///< As the kernel names it.
  std::string checksum;  ///< Of the file: two builds may have the same version.
  std::string suite;
  std::string time{"instructions"};  ///< How long instructions took, as --time has it.
  std::string set{};                 ///< What --set has changed of the models, as ProfileChanges::text().
  Shard shard;
  std::vector<std::string> asked;   ///< The models of all shards together.
  std::vector<ModelResult> models;  ///< The results of this shard.
  bool operator==(const KernelReport&) const = default;
};

/// How a guest ended.
struct GuestEnd {
  std::string output;    ///< The checker's output.
  std::string messages;  ///< The messages of `vpmu exec`.
  std::string how;       ///< "exit code 0".
  bool is_success{};
};

/// The name of the check whether the guest ran to its end.
inline constexpr std::string_view run_check = "run";

/// "pass", "fail" or "skip".
std::string_view name_of(Outcome outcome);
/// False if the text is none of these.
bool read_outcome(std::string_view text, Outcome& outcome);
/// Cleans text for a report: replaces what is not printable ASCII by '?', and cuts it to 1000 characters.
std::string clean_text(std::string_view text);

/// Whether it can be the name of a check or a model: up to 40 letters, digits, dots and dashes.
bool is_name(std::string_view text);
inline constexpr std::size_t max_checks = 1000;  ///< Of one model.

/// The checks of one guest, `run_check` first: it fails if the guest did not end well, a line of the checker cannot
/// be read, a check occurs twice, or lines are missing.
ModelResult result_of(std::string_view model, const GuestEnd& end);

/// The number of checks with this outcome.
unsigned count(const KernelReport& report, Outcome outcome);
/// Whether any checker has printed anything.
bool has_run(const KernelReport& report);

}  // namespace vmm::tool
