#include "perf/core_pmus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <string_view>

namespace vmm {
namespace {

constexpr std::array kinds{"cpu_core", "cpu_atom", "cpu_lowpower"};
/// More than Linux can have (CONFIG_NR_CPUS).
constexpr unsigned max_online_cpus = 65'536;

std::string first_line(const std::string& path) {
  std::ifstream file{path};
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<unsigned> number(std::string_view text) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// The reverse of parse_cpu_list().
std::string text_of(const std::set<unsigned>& cpus) {
  std::string text;
  for (auto at = cpus.begin(); at != cpus.end();) {
    const unsigned first = *at;
    unsigned last = first;
    for (++at; at != cpus.end() && *at == last + 1; ++at) last = *at;
    text += fmt::format("{}{}", text.empty() ? "" : ",", first);
    if (last != first) text += fmt::format("-{}", last);
  }
  return text;
}

}  // namespace

std::optional<std::set<unsigned>> parse_cpu_list(std::string_view text) {
  std::set<unsigned> cpus;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    const auto first = number(part.substr(0, part.find('-')));
    const auto last = part.find('-') == std::string_view::npos ? first : number(part.substr(part.find('-') + 1));
    if (!first || !last || *first > *last || *last >= max_online_cpus) return std::nullopt;
    for (unsigned cpu = *first; cpu <= *last; ++cpu) cpus.insert(cpu);
  }
  return cpus;
}

std::vector<CorePmu> read_core_pmus(const std::string& devices) {
  std::vector<CorePmu> found;
  for (const char* const kind : kinds) {
    const auto type = number(first_line(fmt::format("{}/{}/type", devices, kind)));
    auto cpus = parse_cpu_list(first_line(fmt::format("{}/{}/cpus", devices, kind)));
    if (type && cpus && !cpus->empty()) found.push_back({.name = kind, .type = *type, .cpus = *std::move(cpus)});
  }
  return found;
}

Result<const CorePmu*> choose_core_pmu(std::span<const CorePmu> pmus, const std::set<unsigned>& allowed) {
  const auto found =
      std::ranges::find_if(pmus, [&](const CorePmu& p) { return std::ranges::includes(p.cpus, allowed); });
  if (!allowed.empty() && found != pmus.end()) return &*found;
  std::string kinds_here;
  for (const CorePmu& p : pmus)
    kinds_here += fmt::format("{}{} on CPUs {}", kinds_here.empty() ? "" : ", ", p.name, text_of(p.cpus));
  return host_error(
      fmt::format("each kind of core of this host has its own PMU ({}), and the thread may run on CPUs {}", kinds_here,
                  text_of(allowed)),
      0,
      pmus.empty() ? std::string{} : fmt::format("keep the VMM on one kind: taskset -c {} ...", text_of(pmus[0].cpus)));
}

}  // namespace vmm
