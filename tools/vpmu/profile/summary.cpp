#include "profile/summary.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

namespace vmm::tool {
namespace {

constexpr std::size_t max_summary_functions = 200'000, max_nodes = 400'000, max_addresses = 400'000;

/// Saturates instead of wrapping: periods and latencies come from the guest, and may be any number.
void add_to(std::uint64_t& sum, std::uint64_t value) {
  constexpr std::uint64_t max = std::numeric_limits<std::uint64_t>::max();
  sum = sum > max - value ? max : sum + value;
}

void add_to(Weights& sum, const Weights& values) {
  for (std::size_t i = 0; i < metrics; ++i) add_to(sum[i], values[i]);
}

std::uint64_t product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result{};
  return __builtin_mul_overflow(a, b, &result) ? std::numeric_limits<std::uint64_t>::max() : result;
}

Weights weights_of(const Sample& sample) {
  Weights weights{};
  const auto set = [&weights](Metric metric, std::uint64_t value) {
    weights[static_cast<std::size_t>(metric)] = value;
  };
  switch (sample.aspect) {
    case Aspect::cycles: set(Metric::cycles, sample.period); break;
    case Aspect::mispredictions: set(Metric::mispredictions, sample.period); break;
    case Aspect::loads:
      set(Metric::loads, sample.period);
      set(Metric::latency, product(sample.period, sample.latency));
      break;
  }
  return weights;
}

/// Whether this cannot be a return address: no call is followed by the start of a function.
bool is_no_caller(const SampleFrame& frame) {
  return frame.function.empty() ? frame.module.empty() : frame.offset == 0;
}

/// How many frames, from the innermost on, can be trusted. In code without frame pointers, a chain ends in something
/// that is no caller, or loops until it has perf's maximum length.
std::size_t known_frames(const Sample& sample) {
  constexpr std::size_t max_chain = 127;
  const auto& frames = sample.frames;
  std::size_t count = frames.size();
  if (count >= max_chain)
    while (count > 1 && frames[count - 1].address == frames[count - 2].address) --count;
  while (count > 1 && is_no_caller(frames[count - 1])) --count;
  return count;
}

/// Whether it is in the handler of NMIs, which is perf's: arch/x86/entry/entry_64.S.
bool is_in_nmi_handler(const Sample& sample) {
  constexpr std::array<std::string_view, 4> handlers{"asm_exc_nmi", "exc_nmi", "end_repeat_nmi", "nmi_restore"};
  return std::ranges::any_of(sample.frames, [&](const SampleFrame& frame) {
    return std::ranges::find(handlers, frame.function) != handlers.end() && frame.module.starts_with('[');
  });
}

}  // namespace

std::string_view to_string(LoadLevel level) {
  switch (level) {
    case LoadLevel::l1: return "L1";
    case LoadLevel::fill_buffer: return "fill buffer";
    case LoadLevel::l2: return "L2";
    case LoadLevel::l3: return "L3";
    case LoadLevel::l4: return "L4";
    case LoadLevel::memory: return "memory";
    case LoadLevel::remote_cache: return "another package's cache";
    case LoadLevel::remote_memory: return "another package's memory";
    case LoadLevel::other: return "I/O or uncached";
    case LoadLevel::unknown: return "unknown";
  }
  return "";
}

LoadLevel level_of(std::uint64_t data_source) {
  // include/uapi/linux/perf_event.h: PERF_MEM_LVL_*, from bit 5.
  constexpr unsigned level_shift = 5;
  constexpr std::uint64_t level_mask = 0x3FFF;
  constexpr std::uint64_t hit = 0x02, l1 = 0x08, lfb = 0x10, l2 = 0x20, l3 = 0x40, ram = 0x80, remote_ram = 0x300,
                          remote_cache = 0xC00, other = 0x3000, miss = 0x04;
  const std::uint64_t level = data_source >> level_shift & level_mask;
  if ((level & ram) != 0) return LoadLevel::memory;
  if ((level & remote_ram) != 0) return LoadLevel::remote_memory;
  if ((level & remote_cache) != 0) return LoadLevel::remote_cache;
  if ((level & other) != 0) return LoadLevel::other;
  // Linux reports "L3 miss" for a load that missed the L3 and of which nothing else is known.
  if ((level & hit) == 0 || (level & miss) != 0) return LoadLevel::unknown;
  if ((level & l1) != 0) return LoadLevel::l1;
  if ((level & lfb) != 0) return LoadLevel::fill_buffer;
  if ((level & l2) != 0) return LoadLevel::l2;
  if ((level & l3) != 0) return LoadLevel::l3;
  // PERF_MEM_LVLNUM_L4, from bit 33.
  constexpr unsigned number_shift = 33;
  constexpr std::uint64_t number_mask = 0xF, l4 = 4;
  return (data_source >> number_shift & number_mask) == l4 ? LoadLevel::l4 : LoadLevel::unknown;
}

bool missed_tlb(std::uint64_t data_source) {
  // PERF_MEM_TLB_*, from bit 26.
  constexpr unsigned tlb_shift = 26;
  constexpr std::uint64_t miss = 0x04;
  return (data_source >> tlb_shift & miss) != 0;
}

ProfileSummary::ProfileSummary() {
  functions_.push_back({.name = "all", .module = {}});
  nodes_.push_back({});
}

std::size_t ProfileSummary::function_of(std::string_view name, std::string_view module) {
  key_.assign(name).append(1, '\0').append(module);
  if (const auto known = known_functions_.find(key_); known != known_functions_.end()) return known->second;
  if (functions_.size() >= max_summary_functions) return 0;
  functions_.push_back({.name = std::string{name}, .module = std::string{module}});
  known_functions_.emplace(key_, functions_.size() - 1);
  return functions_.size() - 1;
}

std::size_t ProfileSummary::child_of(std::size_t parent, std::size_t function) {
  const std::pair key{parent, function};
  if (const auto known = known_nodes_.find(key); known != known_nodes_.end()) return known->second;
  if (nodes_.size() >= max_nodes) return parent;
  nodes_.push_back({.function = function, .parent = parent});
  nodes_[parent].children.push_back(nodes_.size() - 1);
  known_nodes_.emplace(key, nodes_.size() - 1);
  return nodes_.size() - 1;
}

void ProfileSummary::add_load(const Sample& sample, std::size_t function, std::uint64_t loads) {
  const LoadLevel level = level_of(sample.data_source);
  for (LoadCount* const count : {&levels_[level], &function_levels_[{function, level}]}) {
    ++count->samples;
    add_to(count->loads, loads);
    add_to(count->latency, product(loads, sample.latency));
    count->max = std::max(count->max, sample.latency);
    if (missed_tlb(sample.data_source)) add_to(count->tlb_misses, loads);
  }
}

void ProfileSummary::add_address(const Sample& sample, std::size_t function, const Weights& weights) {
  const SampleFrame& frame = sample.frames.front();
  const std::pair key{function, frame.offset};
  const bool is_new = !addresses_.contains(key);
  if (is_new && addresses_.size() >= max_addresses) return;
  ProfiledAddress& place = addresses_[key];
  place.offset = frame.offset;
  ++place.samples[static_cast<std::size_t>(sample.aspect)];
  add_to(place.weights, weights);
}

void ProfileSummary::add(const Sample& sample) {
  const Weights weights = weights_of(sample);
  ++samples_[static_cast<std::size_t>(sample.aspect)];
  add_to(nodes_.front().total, weights);
  if (is_in_nmi_handler(sample)) add_to(sampling_, weights);
  add_to(functions_.front().total, weights);
  const std::size_t process = function_of(sample.process, "process");
  std::size_t node = child_of(0, process);
  add_to(nodes_[node].total, weights);
  path_.assign(1, process);
  for (std::size_t i = known_frames(sample); i > 0; --i) {
    const SampleFrame& frame = sample.frames[i - 1];
    const std::size_t function =
        function_of(frame.function.empty() ? std::string_view{"[unknown]"} : frame.function, frame.module);
    if (frame.address > frame.offset && !frame.function.empty())
      functions_[function].start = frame.address - frame.offset;
    path_.push_back(function);
    const std::size_t next = child_of(node, function);
    if (next != node) add_to(nodes_[next].total, weights);
    crowded_ += next == node ? 1 : 0;
    node = next;
  }
  const std::size_t leaf = path_.back();
  add_to(nodes_[node].self, weights);
  add_to(functions_[leaf].self, weights);
  std::ranges::sort(path_);
  for (std::size_t i = 0; i < path_.size(); ++i)
    if (i == 0 || path_[i] != path_[i - 1]) add_to(functions_[path_[i]].total, weights);
  if (sample.aspect == Aspect::loads) add_load(sample, leaf, sample.period);
  if (!sample.frames.empty()) add_address(sample, leaf, weights);
}

std::vector<std::size_t> hottest(const ProfileSummary& summary, Metric metric, std::size_t max) {
  const auto& functions = summary.functions();
  const auto at = static_cast<std::size_t>(metric);
  std::vector<std::size_t> order;
  for (std::size_t i = 1; i < functions.size(); ++i)
    if (functions[i].self[at] != 0) order.push_back(i);
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return functions[a].self[at] > functions[b].self[at]; });
  if (order.size() > max) order.resize(max);
  return order;
}

}  // namespace vmm::tool
