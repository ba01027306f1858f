#include "shared/policy_options.hpp"
#include "command_line.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <span>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace vmm::tool {
namespace {

/// One choice that the manual leaves open, or that a user may want otherwise.
struct PolicyRow {
  std::string_view name;
  std::string_view values;                                     ///< For help, the default first.
  bool (*set)(MachineConfig& config, std::string_view value);  ///< False on an unknown value.
};

/// Sets `target` to the meaning of a named value; false if the name is unknown.
template <class Value>
bool choose(Value& target, std::string_view value, std::initializer_list<std::pair<std::string_view, Value>> known) {
  for (const auto& [name, meaning] : known) {
    if (name == value) {
      target = meaning;
      return true;
    }
  }
  return false;
}

bool set_number(std::uint32_t& target, std::string_view value) {
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), target);
  return error == std::errc{} && end == value.data() + value.size();
}

using Config = MachineConfig;
using Value = std::string_view;

constexpr std::array policies{
    PolicyRow{"skid", "0|EVENTS", [](Config& c, Value v) { return set_number(c.pmu_policies.skid_events, v); }},
    PolicyRow{"load_tag_interval", "1|LOADS",
              [](Config& c, Value v) {
                return set_number(c.pmu_policies.load_tag_interval, v) && c.pmu_policies.load_tag_interval > 0;
              }},
    PolicyRow{"pmu_time", "hidden|real",
              [](Config& c, Value v) {
                return choose(c.pmu_time, v, {{"hidden", PmuTime::hidden}, {"real", PmuTime::real}});
              }},
    PolicyRow{"unknown_msr", "gp|ignore",
              [](Config& c, Value v) {
                return choose(c.unknown_msr, v, {{"gp", UnknownMsr::gp}, {"ignore", UnknownMsr::ignore}});
              }},
};

std::string all_policies() {
  std::vector<std::string> texts;
  for (const auto& row : policies) {
    texts.push_back(fmt::format("{}={}", row.name, row.values));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

/// The settings whose values are names. A value in capitals is a placeholder for a number.
std::vector<std::string> named_settings() {
  std::vector<std::string> settings;
  for (const auto& row : policies) {
    for (std::string_view left = row.values; !left.empty();) {
      const std::string_view value = left.substr(0, left.find('|'));
      left.remove_prefix(std::min(value.size() + 1, left.size()));
      const bool placeholder = value.front() >= 'A' && value.front() <= 'Z';
      if (!placeholder) settings.push_back(fmt::format("{}={}", row.name, value));
    }
  }
  return settings;
}

}  // namespace

void add_policies(Command& command, PolicyArguments& arguments) {
  command
      .add_option("--policy", arguments.settings, "NAME=VALUE, may be repeated; the default first: " + all_policies())
      .suggests(named_settings());
}

Result<void> apply(const PolicyArguments& arguments, MachineConfig& config) {
  std::map<std::string_view, std::string_view> given;
  for (const std::string_view setting : arguments.settings) {
    const auto equals = setting.find('=');
    const auto name = setting.substr(0, equals);
    const auto value = equals == std::string_view::npos ? std::string_view{} : setting.substr(equals + 1);
    const auto* const row = std::ranges::find(policies, name, &PolicyRow::name);
    if (row == policies.end()) {
      return usage_error(fmt::format("unknown policy \"{}\"", printable(name)), "give one of: " + all_policies());
    }
    const auto [before, first] = given.emplace(name, value);
    if (!first && before->second != value) {
      return usage_error(fmt::format(R"(policy {} is given twice, as "{}" and as "{}")", name,
                                     printable(before->second), printable(value)),
                         fmt::format("give --policy {}={} once", name, row->values));
    }
    if (!row->set(config, value)) {
      return usage_error(fmt::format("policy {} has no value \"{}\"", name, printable(value)),
                         fmt::format("give --policy {}={}", name, row->values));
    }
  }
  return {};
}

}  // namespace vmm::tool
