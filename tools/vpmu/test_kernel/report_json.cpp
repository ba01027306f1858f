// nlohmann's JSON stays in this file: it costs seconds of compile time.
#include <nlohmann/json.hpp>

#include "test_kernel/report.hpp"

namespace vmm::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* format_name = "vpmu test-kernel";
constexpr unsigned format_version = 1;

Json to_json(const CheckResult& check) {
  return {{"name", check.name},
          {"outcome", std::string{name_of(check.outcome)}},
          {"expected", check.expected},
          {"seen", check.seen}};
}

CheckResult check_from(const Json& json) {
  CheckResult check{.name = clean_text(json.at("name").get<std::string>()),
                    .expected = clean_text(json.at("expected").get<std::string>()),
                    .seen = clean_text(json.at("seen").get<std::string>())};
  if (!read_outcome(json.at("outcome").get<std::string>(), check.outcome))
    throw std::runtime_error{"an outcome that is none"};
  return check;
}

KernelReport report_from(const Json& json) {
  if (json.at("format") != format_name || json.at("version") != format_version)
    throw std::runtime_error{"it is of another format"};
  KernelReport report{.kernel = clean_text(json.at("kernel").get<std::string>()),
                      .version = clean_text(json.at("linux").get<std::string>()),
                      .models = {}};
  for (const Json& each : json.at("models")) {
    ModelResult model{.model = clean_text(each.at("model").get<std::string>()), .checks = {}};
    for (const Json& check : each.at("checks")) model.checks.push_back(check_from(check));
    report.models.push_back(std::move(model));
  }
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
                  {"models", std::move(models)}};
  return json.dump(1) + "\n";
}

Result<KernelReport> read_report(std::string_view text, const std::string& file) try {
  return report_from(Json::parse(text));
} catch (const std::exception& error) {
  return usage_error(printable(file) + " is no report: " + printable(error.what()),
                     "give a file that --format json --output has written");
}

}  // namespace vmm::tool
