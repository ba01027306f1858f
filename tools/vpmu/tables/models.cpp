#include "tables/models.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <memory>
#include <nlohmann/json.hpp>

#include "command_line.hpp"
#include "model/model.hpp"
#include "processor/guest_features.hpp"
#include "shared/output.hpp"
#include "timing/core_timer.hpp"
#include "uarch/path_history.hpp"
#include "uarch/profiles.hpp"

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

std::string describe_cache(const vpmu::uarch::Shape& shape, std::uint32_t cycles) {
  const std::uint64_t kib = shape.entries() * vpmu::uarch::line_bytes >> 10;
  const std::string size = kib % 1024 == 0 ? fmt::format("{} MiB", kib >> 10) : fmt::format("{} KiB", kib);
  return fmt::format("{} of {} ways, {} cycles", size, shape.ways, cycles);
}

std::string describe_history(const vpmu::uarch::BranchShapes& shapes) {
  if (shapes.outcomes == 0) return fmt::format("{} taken branches", vpmu::uarch::PathHistory::lengths.back());
  return fmt::format("{} outcomes{}", shapes.outcomes, shapes.loops != 0 ? " and counters of loops" : "");
}

/// What the models of time know of the processor, and where that is from.
std::string describe_time(const vpmu::GenerationDesc& pmu) {
  const vpmu::uarch::Profile* const p = vpmu::uarch::find_profile(pmu.name);
  if (p == nullptr) return {};
  const vpmu::timing::Microarchitecture& core = vpmu::timing::microarchitecture_of(pmu.name);
  const vpmu::uarch::Latencies& l = p->latency;
  const bool is_victim = p->last_level == vpmu::uarch::LastLevel::victim;
  constexpr std::array replacements{"LRU", "by a tree", "adaptive"};
  const auto replacement = [&](vpmu::uarch::Replacement of) { return replacements.at(static_cast<std::size_t>(of)); };
  std::string text = fmt::format(
      "    caches (248966 chapter 2, 7-cpu.com; replacement: uops.info, Wong): L1D {}; L2 {}, replacement {}; L3 {}, "
      "{}, replacement {}\n",
      describe_cache(p->l1d, l.l1), describe_cache(p->l2, l.l2), replacement(p->l2_replacement),
      describe_cache(p->l3, l.l3), is_victim ? "a victim cache" : "inclusive", replacement(p->l3_replacement));
  text += fmt::format(
      "    memory (7-cpu.com, Intel; of servers an estimate): {} ns behind the L3, {} cycles in all at {} MHz, a line "
      "in {} ps\n",
      p->memory.ns, l.dram, p->mhz, p->memory.line_ps);
  text +=
      fmt::format("    TLB (248966 chapter 2): {} entries for 4 KiB, {} for 2 MiB, {} in the second level, {} cycles\n",
                  p->dtlb.small.entries(), p->dtlb.large.entries(), p->stlb.shared.entries(), l.stlb_hit);
  text += fmt::format(
      "    branches (A. Fog, jia.je, Half&Half, M. Godbolt): history of {}, {} known targets, {} indirect, {} "
      "returns\n",
      describe_history(p->branches), p->branches.buffer.entries(), p->branches.targets.entries(),
      p->branches.return_stack);
  text += fmt::format(
      "    core (248966 chapter 2, LLVM, uiCA{}): {} issued a cycle, reorder buffer {}, scheduler {}, loads {}, "
      "stores {}, fill buffers {}, lines from beyond the L2 {}, misprediction {} cycles\n",
      core.is_compared ? "; compared with measured blocks" : "; not compared with measured blocks", core.issue_width,
      core.reorder_buffer, core.scheduler, core.load_buffer, core.store_buffer, core.fill_buffers, core.super_queue,
      core.refill);
  return text;
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
    text += describe_time(pmu);
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
  models.add_flag(
      "-v,--verbose", *verbose,
      "also the features of each CPU, which of them guests without KVM lack, and the sizes and times of its model");
  models.set_exit_codes(exit_codes_of_printing());
  models.add_example("vpmu models", "the CPUs that a guest can have, from Nehalem to Kaby Lake");
  models.add_example("vpmu models -v", "the same with their features, caches and times");
  models.when_given([as_json, verbose, &exit_code] {
    exit_code = print_or_explain("vpmu models", *as_json ? list_models_as_json() : list_models(*verbose));
  });
}

}  // namespace vmm::tool
