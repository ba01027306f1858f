// nlohmann's JSON stays in this file: it costs seconds of compile time.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "test_kernel/report.hpp"

namespace vmm::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* format_name = "vpmu test-kernel";
constexpr unsigned format_version = 1;
constexpr std::size_t max_models = 1000;

Json to_json(const CheckResult& check) {
  return {{"name", check.name},
          {"outcome", std::string{name_of(check.outcome)}},
          {"expected", check.expected},
          {"seen", check.seen}};
}

std::string text_from(const Json& json, const char* key) { return clean_text(json.at(key).get<std::string>()); }

std::string name_from(const Json& json) {
  auto name = json.get<std::string>();
  if (!is_name(name)) throw std::runtime_error{"a name is not allowed"};
  return name;
}

CheckResult check_from(const Json& json) {
  CheckResult check{
      .name = name_from(json.at("name")), .expected = text_from(json, "expected"), .seen = text_from(json, "seen")};
  if (!read_outcome(json.at("outcome").get<std::string>(), check.outcome))
    throw std::runtime_error{"an outcome is not known"};
  return check;
}

ModelResult model_from(const Json& json) {
  ModelResult model{.model = name_from(json.at("model")), .checks = {}};
  const Json& checks = json.at("checks");
  if (!checks.is_array() || checks.size() > max_checks + 1) throw std::runtime_error{"it has too many checks"};
  for (const Json& each : checks) {
    CheckResult check = check_from(each);
    if (std::ranges::find(model.checks, check.name, &CheckResult::name) != model.checks.end())
      throw std::runtime_error{"a check is there twice"};
    model.checks.push_back(std::move(check));
  }
  return model;
}

Shard shard_from(const Json& json) {
  const Shard shard{.number = json.at("number").get<std::size_t>(), .count = json.at("count").get<std::size_t>()};
  if (shard.number < 1 || shard.number > shard.count || shard.count > max_shards)
    throw std::runtime_error{"a shard's number is out of range"};
  return shard;
}

std::vector<std::string> asked_from(const Json& json) {
  std::vector<std::string> asked;
  if (!json.is_array() || json.size() > max_models) throw std::runtime_error{"it has too many models"};
  for (const Json& each : json) {
    std::string name = name_from(each);
    if (std::ranges::find(asked, name) != asked.end()) throw std::runtime_error{"a model is there twice"};
    asked.push_back(std::move(name));
  }
  return asked;
}

/// The models of a report: each of them must have been requested, and be there once.
std::vector<ModelResult> models_from(const Json& json, const std::vector<std::string>& asked) {
  std::vector<ModelResult> models;
  if (!json.is_array() || json.size() > max_models) throw std::runtime_error{"it has too many models"};
  for (const Json& each : json) {
    ModelResult model = model_from(each);
    if (std::ranges::find(asked, model.model) == asked.end())
      throw std::runtime_error{"a model is there that was not asked for"};
    if (std::ranges::find(models, model.model, &ModelResult::model) != models.end())
      throw std::runtime_error{"a model is there twice"};
    models.push_back(std::move(model));
  }
  return models;
}

KernelReport report_from(const Json& json) {
  if (json.at("format") != format_name || json.at("version") != format_version)
    throw std::runtime_error{"it is of another format"};
  KernelReport report{.kernel = text_from(json, "kernel"),
                      .version = text_from(json, "linux"),
                      .checksum = text_from(json, "checksum"),
                      .suite = text_from(json, "suite"),
                      .time = json.contains("time") ? text_from(json, "time") : "instructions",
                      .set = json.contains("set") ? text_from(json, "set") : "",
                      .shard = shard_from(json.at("shard")),
                      .asked = asked_from(json.at("asked")),
                      .models = {}};
  report.models = models_from(json.at("models"), report.asked);
  return report;
}

}  // namespace

std::string report_as_json(const KernelReport& report) {
  Json models = Json::array();
  for (const ModelResult& model : report.models) {
    Json checks = Json::array();
    for (const CheckResult& check : model.checks) checks.push_back(to_json(check));
    models.push_back({{"model", model.model}, {"checks", std::move(checks)}});
  }
  const Json json{{"format", format_name},
                  {"version", format_version},
                  {"kernel", clean_text(report.kernel)},
                  {"linux", clean_text(report.version)},
                  {"checksum", clean_text(report.checksum)},
                  {"suite", clean_text(report.suite)},
                  {"time", clean_text(report.time)},
                  {"set", clean_text(report.set)},
                  {"shard", {{"number", report.shard.number}, {"count", report.shard.count}}},
                  {"asked", report.asked},
                  {"models", std::move(models)}};
  return json.dump(1) + "\n";
}

Result<KernelReport> read_report(std::string_view text, const std::string& file) try {
  return report_from(Json::parse(text));
} catch (const std::exception& error) {
  return usage_error(printable(file) + " is not a report of `vpmu test-kernel`: " + printable(error.what()),
                     "give a file that --format json --output has written");
}

}  // namespace vmm::tool
