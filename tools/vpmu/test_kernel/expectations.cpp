#include "test_kernel/expectations.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace vmm::tool {
namespace {

/// Found by the start of the PMU's name. Linux arch/x86/events/intel/core.c, intel_pmu_init(): Nehalem and Haswell have
/// a least period of 32; precise distribution is used from Ivy Bridge on.
struct DriverRow {
  std::string_view pmu;
  LinuxDriver driver;
};
constexpr auto drivers = std::to_array<DriverRow>({
    {"nehalem", {.name = "Nehalem events", .known = true, .precise = 2, .period_of_one = false}},
    {"westmere", {.name = "Westmere events", .known = true, .precise = 2, .period_of_one = true}},
    {"sandybridge", {.name = "SandyBridge events", .known = true, .precise = 2, .period_of_one = true}},
    {"ivybridge", {.name = "IvyBridge events", .known = true, .precise = 3, .period_of_one = true}},
    {"haswell", {.name = "Haswell events", .known = true, .precise = 3, .period_of_one = false}},
    {"broadwell", {.name = "Broadwell events", .known = true, .precise = 3, .period_of_one = true}},
    {"skylake", {.name = "Skylake events", .known = true, .precise = 3, .period_of_one = true}},
});
constexpr LinuxDriver unknown{
    .name = "generic architected perfmon", .known = false, .precise = 0, .period_of_one = true};
// Never sold, and in no table of Linux.
constexpr std::string_view unknown_model = "nehalem-havendale";

constexpr std::uint64_t all_stores = 0x82D0;  // MEM_UOPS_RETIRED.ALL_STORES, with the address. SDM 3B 18.11.3
constexpr std::uint64_t demand_data_read = 1;
constexpr std::uint64_t every_answer = 0xFF00;  // all responses, if no single bit means any. SDM 3B table 18-26

std::uint64_t event(std::uint8_t code, std::uint8_t umask) {
  constexpr std::uint64_t first_of_umask = 256;
  return code + umask * first_of_umask;
}

std::uint64_t stores_of(const vpmu::GenerationDesc& pmu) {
  if (pmu.precise_store_code != 0) return event(pmu.precise_store_code, pmu.precise_store_umask);
  return pmu.features.data_la ? all_stores : 0;
}

}  // namespace

LinuxDriver linux_driver(const MachineModel& model) {
  if (model.name == unknown_model) return unknown;
  const std::string_view pmu = vpmu::describe(model.generation).name;
  const auto* const row =
      std::ranges::find_if(drivers, [pmu](const DriverRow& each) { return pmu.starts_with(each.pmu); });
  return row == drivers.end() ? unknown : row->driver;
}

std::vector<std::string> checker_arguments(const MachineModel& model, unsigned threads_per_core) {
  const vpmu::GenerationDesc& pmu = vpmu::describe(model.generation);
  const LinuxDriver driver = linux_driver(model);
  std::vector<std::string> all;
  const auto add = [&all](std::string_view name, std::uint64_t value) {
    all.push_back(fmt::format("{}={}", name, value));
  };
  all.push_back(fmt::format("driver={}", driver.name));
  add("known", driver.known);
  add("version", pmu.perfmon_version);
  add("counters", threads_per_core == 1 ? pmu.gp_counters_no_smt : pmu.gp_counters);
  add("fixed", pmu.fixed_counters);
  add("width", pmu.counter_width);
  add("full-width", pmu.features.full_width_write);
  add("pebs-format", pmu.pebs_format);
  add("precise", driver.precise);
  add("branches", pmu.lbr_depth);
  add("call-stack", pmu.features.lbr_callstack);
  add("branch-trace", driver.period_of_one);
  add("loads", event(pmu.load_latency_code, pmu.load_latency_umask));
  add("stores", stores_of(pmu));
  add("frontend", pmu.features.frontend);
  add("offcore", demand_data_read | (pmu.offcore.any_response != 0 ? pmu.offcore.any_response : every_answer));
  return all;
}

}  // namespace vmm::tool
