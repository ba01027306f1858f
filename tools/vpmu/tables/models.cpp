#include "tables/models.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "command_line.hpp"
#include "model/model.hpp"
#include "processor/guest_features.hpp"
#include "shared/output.hpp"

namespace vmm::tool {
namespace {

constexpr auto columns = "{:<18} {:<9} {:<16} {:<5} {:<5} {:<4} {}\n";

/// Family, model and stepping as the manual writes them: 06_5EH/3. SDM 2A CPUID.
std::string describe_signature(std::uint32_t signature) {
  const std::uint32_t family = signature >> 8 & 0xF, model = (signature >> 4 & 0xF) | (signature >> 12 & 0xF0);
  return fmt::format("{:02X}_{:02X}H/{}", family, model, signature & 0xF);
}

std::string describe_counters(const vpmu::GenerationDesc& pmu) {
  if (pmu.gp_counters == pmu.gp_counters_no_smt) return fmt::format("{}", pmu.gp_counters);
  return fmt::format("{}/{}", pmu.gp_counters, pmu.gp_counters_no_smt);
}

}  // namespace

std::string list_models(bool features) {
  std::string text = fmt::format(columns, "MODEL", "CPU", "PMU", "PMCS", "PEBS", "LBR", "BRAND");
  for (const MachineModel& model : all_machine_models()) {
    const vpmu::GenerationDesc& pmu = vpmu::describe(model.generation);
    text += fmt::format(columns, model.name, describe_signature(model.signature), pmu.name, describe_counters(pmu),
                        fmt::format("fmt{}", pmu.pebs_format), pmu.lbr_depth, model.brand);
    if (!features) continue;
    const CpuidTable table = feature_table(model);
    text += fmt::format("    features: {}\n", fmt::join(feature_names(table), " "));
    text += fmt::format("    not with --accel soft: {}\n", fmt::join(hidden_features(table), " "));
    if (const auto lost = lost_features(table); !lost.empty())
      text += fmt::format("    nor on this host: {}\n", fmt::join(lost, " "));
  }
  return text;
}

std::string list_models_as_json() {
  auto models = nlohmann::ordered_json::array();
  for (const MachineModel& model : all_machine_models()) {
    const vpmu::GenerationDesc& pmu = vpmu::describe(model.generation);
    models.push_back({{"model", model.name},
                      {"cpu", describe_signature(model.signature)},
                      {"pmu", pmu.name},
                      {"pmcs", pmu.gp_counters},
                      {"pmcs_no_smt", pmu.gp_counters_no_smt},
                      {"pebs_format", pmu.pebs_format},
                      {"lbr_depth", pmu.lbr_depth},
                      {"features", feature_names(feature_table(model))},
                      {"brand", model.brand}});
  }
  return models.dump(1) + '\n';
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const MachineModel& model : all_machine_models()) names.emplace_back(model.name);
  return names;
}

void add_models(Command& app, int& exit_code) {
  auto as_json = std::make_shared<bool>(false), verbose = std::make_shared<bool>(false);
  Command models = app.add_command("models", "list the CPU models that a guest can be given");
  models.add_flag("--json", *as_json, "as JSON");
  models.add_flag("-v,--verbose", *verbose, "also the features of each CPU, and which of them guests without KVM lack");
  models.set_exit_codes(exit_codes_of_printing());
  models.add_example("vpmu models", "the CPUs that a guest can have, from Nehalem to Kaby Lake");
  models.add_example("vpmu models -v", "the same with their features");
  models.when_given([as_json, verbose, &exit_code] {
    exit_code = print_or_explain("vpmu models", *as_json ? list_models_as_json() : list_models(*verbose));
  });
}

}  // namespace vmm::tool
