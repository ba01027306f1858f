#include "test_kernel/merge.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace vmm::tool {
namespace {

/// A property that all shards of one run have in common, with its name for error messages.
struct Common {
  std::string_view name;
  std::string (*of)(const KernelReport& report);
};
constexpr Common commons[] = {
    {"kernel",
     [](const KernelReport& report) {
       return fmt::format("Linux {} of checksum {}", report.version, report.checksum);
     }},
    {"suite", [](const KernelReport& report) { return report.suite; }},
    {"time", [](const KernelReport& report) { return report.time; }},
    {"--set", [](const KernelReport& report) { return report.set.empty() ? std::string{"none"} : report.set; }},
    {"number of shards", [](const KernelReport& report) { return fmt::format("{}", report.shard.count); }},
    {"list of models", [](const KernelReport& report) { return fmt::format("{}", fmt::join(report.asked, ",")); }},
};

Result<void> ensure_same_run(const ShardReport& first, const ShardReport& other) {
  for (const Common& common : commons) {
    const std::string ours = common.of(first.report), theirs = common.of(other.report);
    if (ours != theirs)
      return usage_error(fmt::format("{} has another {} than {}: {}, not {}", printable(other.file), common.name,
                                     printable(first.file), printable(theirs), printable(ours)),
                         "give the reports of one run's shards");
  }
  return {};
}

/// A model's result, and the first file that has it.
struct Found {
  const ModelResult* result{};
  const std::string* file{};
};

Failure differ(const Found& first, const std::string& file, std::string_view model, std::string_view what) {
  return usage_error(
      fmt::format("{} and {} differ in {}{}", printable(*first.file), printable(file), model, printable(what)),
      "give the reports of one run, each shard once");
}

Result<void> ensure_same_result(const Found& first, const ModelResult& other, const std::string& file) {
  const auto& ours = first.result->checks;
  if (ours.size() != other.checks.size())
    return differ(first, file, other.model, fmt::format(": {} checks, and {}", ours.size(), other.checks.size()));
  for (std::size_t i = 0; i < ours.size(); ++i)
    if (ours[i] != other.checks[i])
      return differ(first, file, other.model,
                    fmt::format(" {}: {}, and {} {}", ours[i].name, name_of(ours[i].outcome), other.checks[i].name,
                                name_of(other.checks[i].outcome)));
  return {};
}

/// The model's result in the first report that has it; none if no report has it.
Result<Found> find_model(std::span<const ShardReport> parts, const std::string& model) {
  Found found;
  for (const ShardReport& part : parts) {
    const auto result = std::ranges::find(part.report.models, model, &ModelResult::model);
    if (result == part.report.models.end()) continue;
    if (found.result != nullptr)
      VMM_TRY(ensure_same_result(found, *result, part.file));
    else
      found = {.result = &*result, .file = &part.file};
  }
  return found;
}

ModelResult missing(const std::string& model, Shard shard) {
  return {.model = model,
          .checks = {{.name = std::string{run_check},
                      .outcome = Outcome::fail,
                      .expected = "a report that has this model",
                      .seen = fmt::format("no report of shard {}/{}", shard.number, shard.count)}}};
}

}  // namespace

Result<KernelReport> merge(std::span<const ShardReport> parts) {
  if (parts.empty()) return usage_error("no report to merge", "give one for each shard");
  for (const ShardReport& part : parts) VMM_TRY(ensure_same_run(parts.front(), part));
  KernelReport whole = parts.front().report;
  const std::size_t count = whole.shard.count;
  whole.shard = {};
  whole.models.clear();
  for (std::size_t i = 0; i < whole.asked.size(); ++i) {
    VMM_ASSIGN(const Found found, find_model(parts, whole.asked[i]));
    whole.models.push_back(found.result != nullptr
                               ? *found.result
                               : missing(whole.asked[i], {.number = shard_of(i, count), .count = count}));
  }
  return whole;
}

}  // namespace vmm::tool
