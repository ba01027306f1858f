#include "machine/config.hpp"

#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "memory/guest_memory.hpp"
#include "model/model.hpp"
#include "model/own_part.hpp"
#include "passthrough/pass_through.hpp"
#include "pmu/registry.hpp"

namespace vmm {
namespace {

std::string model_names() {
  std::vector<std::string_view> names;
  for (const MachineModel& model : all_machine_models()) {
    names.push_back(model.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string source_names() {
  std::vector<std::string_view> names{"auto"};
  for (const auto& row : all_sources()) {
    names.push_back(row.traits.name);
  }
  names.push_back(pass_through_source);
  return fmt::format("{}", fmt::join(names, ", "));
}

Result<std::string_view> resolve_source(const MachineConfig& config, const ConfigNames& names) {
  const bool on_kvm = config.accel != Accel::soft;
  const bool passes_through = config.source == pass_through_source;
  if (config.source == "auto")
    return usage_error("the source is still open", "choose_automatic() the configuration first");
  const auto* const row = find_source(config.source);
  if (row == nullptr && !passes_through) {
    return usage_error(fmt::format("unknown source \"{}\"", printable(config.source)),
                       fmt::format("give one of: {} {}", source_names(), names.source));
  }
  if (!on_kvm && (passes_through || row->traits.needs_host_pmu)) {
    return usage_error(
        fmt::format("source \"{}\" counts what the host's processor runs, and this guest does not run there",
                    config.source),
        "give another with --source, or --accel kvm");
  }
  return passes_through ? pass_through_source : row->traits.name;
}

}  // namespace

std::string_view name_of(Accel accel) {
  switch (accel) {
    case Accel::automatic: return "auto";
    case Accel::kvm: return "kvm";
    case Accel::soft: return "soft";
  }
  return "auto";
}

Result<void> check_model_source(const MachineConfig& config) {
  if (config.source == "exact") return {};
  return usage_error(fmt::format("source {} has no processor model, of which {} could be set", printable(config.source),
                                 config.source_options.changes.text()),
                     "give --source exact with --set");
}

bool ResolvedConfig::passes_through() const { return source == pass_through_source; }

Result<ResolvedConfig> resolve(const MachineConfig& config, const ConfigNames& names) {
  const bool passes_through = config.source == pass_through_source;
  const MachineModel* const model = find_machine_model(config.model);
  if (model == nullptr && config.model == host_model_name && !passes_through) {
    return usage_error("model \"host\" is for the source kvm, which passes the host's own PMU through",
                       fmt::format("give one of: {} {}, or with \"host\" the source kvm {}", model_names(), names.model,
                                   names.source));
  }
  if (model == nullptr && config.model != host_model_name) {
    return usage_error(fmt::format("unknown model \"{}\"", printable(config.model)),
                       fmt::format("give one of: {} {}", model_names(), names.model));
  }
  VMM_ASSIGN(const std::string_view source, resolve_source(config, names));
  if (!config.source_options.changes.empty()) {
    VMM_TRY(check_model_source(config));
    VMM_TRY(changed_profile(vpmu::describe(model->generation), config.source_options.changes));
  }
  if (config.events != EventPolicy{} && !passes_through)
    return usage_error("a policy of events is for the source kvm", "give --source kvm with --events, or --events all");
  if (config.cpus < 1 || config.cpus > MachineConfig::max_cpus) {
    return usage_error(fmt::format("bad number of CPUs {}", config.cpus),
                       fmt::format("give 1 to {} with --cpus", MachineConfig::max_cpus));
  }
  if (config.threads_per_core != 1 && config.threads_per_core != 2) {
    return usage_error(fmt::format("bad number of threads of a core {}", config.threads_per_core),
                       "give --threads 1 or 2");
  }
  if (config.memory_bytes < GuestMemory::min_bytes || config.memory_bytes > GuestMemory::max_bytes) {
    return usage_error(fmt::format("bad memory size of {} bytes", config.memory_bytes),
                       "give 16M to 256G, for example --memory 512M");
  }
  if (config.epoch < 0 || config.epoch > MachineConfig::last_epoch) {
    return usage_error(fmt::format("bad time of day {}", config.epoch),
                       fmt::format("give 0 to {}, the end of the year 9999, with --epoch", MachineConfig::last_epoch));
  }
  return ResolvedConfig{.model = model, .source = source};
}

Result<std::uint64_t> parse_size(const std::string& text) {
  const auto failure = usage_error(fmt::format("bad size \"{}\"", printable(text)),
                                   "give a whole number and K, M or G, for example --memory 512M");
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) {
    return failure;
  }
  const std::string_view unit{end, static_cast<std::size_t>(text.data() + text.size() - end)};
  unsigned shift = 0;
  if (unit == "K" || unit == "k") {
    shift = 10;
  } else if (unit == "M" || unit == "m") {
    shift = 20;
  } else if (unit == "G" || unit == "g") {
    shift = 30;
  } else if (!unit.empty()) {
    return failure;
  }
  if (value > (~std::uint64_t{0} >> shift)) {
    return failure;
  }
  return value << shift;
}

Result<Accel> parse_accel(const std::string& text) {
  for (const Accel accel : {Accel::automatic, Accel::kvm, Accel::soft})
    if (text == name_of(accel)) return accel;
  return usage_error(fmt::format("unknown accelerator \"{}\"", printable(text)),
                     "give one of: auto, kvm, soft with --accel");
}

Result<Schedule> parse_schedule(const std::string& text) {
  Schedule schedule;
  const char* const end = text.data() + text.size();
  const auto number = std::from_chars(text.data(), end, schedule.turn);
  bool is_one = number.ec == std::errc{} && schedule.is_possible();
  if (is_one && number.ptr != end) {
    const auto seed = std::from_chars(number.ptr + 1, end, schedule.seed);
    is_one = *number.ptr == ':' && seed.ec == std::errc{} && seed.ptr == end && schedule.seed != 0;
  }
  if (is_one) return schedule;
  return usage_error(fmt::format("bad schedule \"{}\"", printable(text)),
                     fmt::format("give a number of ticks, 1 to {}, with --schedule, and after a colon a seed that "
                                 "is not 0 if turns are to differ: 50000:1",
                                 Schedule::max_quantum));
}

}  // namespace vmm
