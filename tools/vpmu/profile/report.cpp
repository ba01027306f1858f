#include "profile/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

extern "C" const char vpmu_report_page[], vpmu_report_page_end[], vpmu_report_style[], vpmu_report_style_end[],
    vpmu_report_script[], vpmu_report_script_end[];

namespace vmm::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t max_report_functions = 200, max_branches = 50, max_functions_of_loads = 25;
/// A frame with less than 1/4000 of the total is left out of the report: it would be too narrow to see.
constexpr std::uint64_t narrowest = 4000;

template <std::size_t N>
Json numbers(const std::array<std::uint64_t, N>& all) {
  Json json = Json::array();
  for (const std::uint64_t number : all) json.push_back(number);
  return json;
}

Json run_json(const ProfiledRun& run) {
  return {{"vpmu", run.version},      {"model", run.model},     {"accel", run.accel},
          {"source", run.source},     {"time", run.time},       {"set", run.set},
          {"kernel", run.kernel},     {"command", run.command}, {"exit_code", run.exit_code},
          {"sampling", run.sampling}, {"lost", run.lost},       {"stopped", run.is_stopped}};
}

Json events_json(const ProfileReport& report) {
  Json all = Json::array();
  for (const RecordedEvent& event : report.plan.events) {
    const auto aspect = static_cast<std::size_t>(event.aspect);
    const auto metric = event.aspect == Aspect::cycles  ? Metric::cycles
                        : event.aspect == Aspect::loads ? Metric::loads
                                                        : Metric::mispredictions;
    all.push_back({{"aspect", to_string(event.aspect)},
                   {"name", event.name},
                   {"perf", event.perf},
                   {"quality", event.quality},
                   {"precise", event.is_precise},
                   {"period", event.period},
                   {"samples", report.summary->samples()[aspect]},
                   {"total", report.summary->total()[static_cast<std::size_t>(metric)]}});
  }
  return all;
}

/// The functions named in the report, each once, with their index there.
class Names {
 public:
  explicit Names(const ProfileSummary& summary) : summary_{&summary} {}
  std::size_t place_of(std::size_t function) {
    const auto [entry, is_new] = places_.emplace(function, list_.size());
    if (is_new) list_.push_back({summary_->functions()[function].name, summary_->functions()[function].module});
    return entry->second;
  }
  Json take() { return std::move(list_); }

 private:
  const ProfileSummary* summary_;
  std::map<std::size_t, std::size_t> places_;
  Json list_ = Json::array();
};

bool is_seen(const Weights& weights, const Weights& total) {
  for (std::size_t i = 0; i < metrics; ++i)
    if (weights[i] != 0 && weights[i] >= total[i] / narrowest) return true;
  return false;
}

/// [parent, name, total of each metric] for each node, parents before children: a flat list, which is not limited in
/// the depth of calls.
Json nodes_json(const ProfileSummary& summary, Names& names) {
  Json list = Json::array();
  const auto& nodes = summary.nodes();
  std::vector<std::size_t> place(nodes.size());
  std::vector<bool> is_told(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    // The summary, too, lists parents before their children.
    if (i > 0 && (!is_told[nodes[i].parent] || !is_seen(nodes[i].total, summary.total()))) continue;
    is_told[i] = true;
    place[i] = list.size();
    list.push_back({place[nodes[i].parent], names.place_of(nodes[i].function), numbers(nodes[i].total)});
  }
  return list;
}

/// The hottest by each metric.
Json functions_json(const ProfileSummary& summary, Names& names) {
  std::set<std::size_t> chosen;
  for (std::size_t metric = 0; metric < metrics; ++metric)
    for (const std::size_t function : hottest(summary, static_cast<Metric>(metric), max_report_functions / metrics))
      chosen.insert(function);
  Json list = Json::array();
  for (const std::size_t function : chosen) {
    const ProfiledFunction& of = summary.functions()[function];
    list.push_back({{"name", names.place_of(function)}, {"self", numbers(of.self)}, {"total", numbers(of.total)}});
  }
  return list;
}

Json load_json(const LoadCount& count) {
  return {{"samples", count.samples},
          {"loads", count.loads},
          {"latency", count.latency},
          {"longest", count.max},
          {"tlb_misses", count.tlb_misses}};
}

Json levels_json(const ProfileSummary& summary) {
  Json list = Json::array();
  for (const auto& [level, count] : summary.levels()) {
    Json entry = load_json(count);
    entry["level"] = to_string(level);
    list.push_back(std::move(entry));
  }
  return list;
}

Json function_levels_json(const ProfileSummary& summary, Names& names) {
  Json list = Json::array();
  for (const std::size_t function : hottest(summary, Metric::latency, max_functions_of_loads)) {
    Json levels = Json::object();
    for (auto at = summary.function_levels().lower_bound({function, LoadLevel{}});
         at != summary.function_levels().end() && at->first.first == function; ++at)
      levels[std::string{to_string(at->first.second)}] = load_json(at->second);
    list.push_back({{"name", names.place_of(function)}, {"levels", std::move(levels)}});
  }
  return list;
}

Json branches_json(const ProfileSummary& summary, Names& names) {
  constexpr auto misses = static_cast<std::size_t>(Metric::mispredictions);
  std::vector<std::pair<std::size_t, const ProfiledAddress*>> all;
  for (const auto& [key, place] : summary.addresses())
    if (place.weights[misses] != 0) all.emplace_back(key.first, &place);
  std::ranges::stable_sort(
      all, [](const auto& a, const auto& b) { return a.second->weights[misses] > b.second->weights[misses]; });
  if (all.size() > max_branches) all.resize(max_branches);
  Json list = Json::array();
  for (const auto& [function, place] : all)
    list.push_back({{"name", names.place_of(function)},
                    {"offset", place->offset},
                    {"samples", place->samples[static_cast<std::size_t>(Aspect::mispredictions)]},
                    {"mispredictions", place->weights[misses]}});
  return list;
}

Json annotated_json(const ProfileReport& report, Names& names) {
  Json list = Json::array();
  for (const AnnotatedFunction& code : report.annotated) {
    Json lines = Json::array();
    for (const CodeLine& line : code.lines)
      lines.push_back({{"address", fmt::format("{:x}", line.address)},
                       {"offset", line.offset},
                       {"text", line.text},
                       {"source", line.source},
                       {"gap", line.follows_gap},
                       {"samples", numbers(line.samples)},
                       {"weights", numbers(line.weights)}});
    list.push_back({{"name", names.place_of(code.function)}, {"why_not", code.why_not}, {"lines", std::move(lines)}});
  }
  return list;
}

std::string_view between(const char* begin, const char* end) { return {begin, static_cast<std::size_t>(end - begin)}; }

/// The template, in which each mark in turn is replaced once.
std::string fill(std::string_view page, std::initializer_list<std::pair<std::string_view, std::string_view>> marks) {
  std::string text;
  for (const auto& [mark, value] : marks) {
    const std::size_t at = page.find(mark);
    if (at == std::string_view::npos) continue;
    text += page.substr(0, at);
    text += value;
    page.remove_prefix(at + mark.size());
  }
  return text += page;
}

}  // namespace

std::string to_json(const ProfileReport& report) {
  const ProfileSummary& summary = *report.summary;
  Names names{summary};
  Json json = {{"run", run_json(report.run)},
               {"events", events_json(report)},
               {"lacking", report.plan.lacking},
               {"notes", report.notes},
               {"total", numbers(summary.total())},
               {"nodes", nodes_json(summary, names)},
               {"functions", functions_json(summary, names)},
               {"levels", levels_json(summary)},
               {"function_levels", function_levels_json(summary, names)},
               {"branches", branches_json(summary, names)},
               {"annotated", annotated_json(report, names)}};
  json["names"] = names.take();
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string for_script_element(std::string_view json) {
  std::string safe;
  for (const char c : json) {
    // In JSON this character appears only in strings.
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string to_html(const ProfileReport& report) {
  return fill(between(vpmu_report_page, vpmu_report_page_end),
              {{"@STYLE@", between(vpmu_report_style, vpmu_report_style_end)},
               {"@DATA@", for_script_element(to_json(report))},
               {"@SCRIPT@", between(vpmu_report_script, vpmu_report_script_end)}});
}

}  // namespace vmm::tool
