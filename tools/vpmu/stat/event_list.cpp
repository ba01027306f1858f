#include "stat/event_list.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "stat/kernel_events.hpp"
#include "stat/task_events.hpp"
#include "support/letters.hpp"

namespace vmm::tool {
namespace {

constexpr std::size_t max_name_length = 256;
constexpr const char* advice = "give names as `perf list` or `vpmu events` has them, with commas between them";

/// All that can be counted, in small letters where they come from `vpmu events`.
std::vector<std::string> all_names(const vpmu::GenerationDesc& generation) {
  std::vector<std::string> names;
  for (const KernelEvent& event : kernel_events(generation.generation)) names.emplace_back(event.name);
  for (const vpmu::EventDesc& event : generation.events)
    if (task_event(event, {})) names.push_back(in_small_letters(event.name));
  return names;
}

/// The parts between commas that are neither in a group nor between slashes.
std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> parts;
  bool in_slashes = false, in_group = false;
  std::size_t start = 0;
  for (std::size_t at = 0; at <= list.size(); ++at) {
    const char c = at < list.size() ? list[at] : ',';
    if (c == '/') in_slashes = !in_slashes;
    if (c == '{') in_group = true;
    if (c == '}') in_group = false;
    if (at < list.size() && (c != ',' || in_slashes || in_group)) continue;
    parts.push_back(list.substr(start, at - start));
    start = at + 1;
  }
  return parts;
}

class Expansion {
 public:
  explicit Expansion(const vpmu::GenerationDesc& generation) : generation_{&generation} {}

  Result<void> add_item(std::string_view item) {
    if (!item.starts_with('{')) return add(item, {});
    const std::size_t end = item.find('}');
    if (end == std::string_view::npos) return refuse(item, "is a group without an end");
    std::string_view modifier = item.substr(end + 1);
    if (!modifier.empty() && !modifier.starts_with(':')) return refuse(item, "has no colon behind its group");
    if (!modifier.empty()) modifier.remove_prefix(1);
    for (const std::string_view name : split(item.substr(1, end - 1))) VMM_TRY(add(name, modifier));
    return {};
  }
  std::vector<std::string> take() { return std::move(names_); }

 private:
  static Failure refuse(std::string_view item, const char* why) {
    return usage_error(fmt::format("\"{}\" {}", printable(std::string{item.substr(0, max_name_length)}), why), advice);
  }

  Result<void> add(std::string_view name, std::string_view modifier) {
    const auto is_plain = [](char c) { return c > ' ' && c < 0x7F && c != '{' && c != '}'; };
    if (name.empty() || name.size() > max_name_length || !std::ranges::all_of(name, is_plain))
      return refuse(name, "is not the name of an event");
    const bool has_terms = name.find('/') != std::string_view::npos;
    std::string whole{name};
    if (!modifier.empty())
      whole += fmt::format("{}{}", has_terms || name.find(':') != std::string_view::npos ? "" : ":", modifier);
    if (has_terms || name.find_first_of("*?[") == std::string_view::npos) {
      names_.push_back(std::move(whole));
      return {};
    }
    return add_matches(whole);
  }

  Result<void> add_matches(const std::string& whole) {
    const std::size_t colon = std::min(whole.find(':'), whole.size());
    const std::string pattern = in_small_letters(std::string_view{whole}.substr(0, colon));
    bool any = false;
    for (const std::string& name : all_names(*generation_)) {
      if (::fnmatch(pattern.c_str(), in_small_letters(name).c_str(), 0) != 0) continue;
      any = true;
      std::string found = name + whole.substr(colon);
      if (std::ranges::find(names_, found) == names_.end()) names_.push_back(std::move(found));
    }
    return any ? Result<void>{} : refuse(whole, "is like no name of an event");
  }

  const vpmu::GenerationDesc* generation_;
  std::vector<std::string> names_;
};

/// How many letters have to be changed, added or left out.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = std::exchange(row[j + 1], std::min({changed, row[j] + 1, row[j + 1] + 1}));
    }
  }
  return row.back();
}

}  // namespace

Result<std::vector<std::string>> split_event_list(std::string_view list, const vpmu::GenerationDesc& generation) {
  Expansion expansion{generation};
  for (const std::string_view item : split(list)) VMM_TRY(expansion.add_item(item));
  return expansion.take();
}

std::vector<std::string> similar_names(std::string_view name, const vpmu::GenerationDesc& generation) {
  constexpr std::size_t most = 3;
  const std::string small = in_small_letters(name);
  std::vector<std::pair<std::size_t, std::string>> near;
  for (const std::string& other : all_names(generation)) {
    const std::size_t far = distance(small, in_small_letters(other));
    if (far <= small.size() / 3) near.emplace_back(far, other);
  }
  std::ranges::sort(near);
  std::vector<std::string> names;
  for (auto& [far, other] : near)
    if (names.size() < most && std::ranges::find(names, other) == names.end()) names.push_back(std::move(other));
  return names;
}

}  // namespace vmm::tool
