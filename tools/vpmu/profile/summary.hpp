#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "profile/samples.hpp"

namespace vmm::tool {

/// What is counted for each place in the program. Latency is the sum of its loads' latencies, in cycles.
enum class Metric : std::uint8_t { cycles, loads, latency, mispredictions };
inline constexpr std::size_t metrics = 4;
using Weights = std::array<std::uint64_t, metrics>;

/// Where a load was served.
enum class LoadLevel : std::uint8_t {
  l1,
  fill_buffer,
  l2,
  l3,
  l4,
  memory,
  remote_cache,
  remote_memory,
  other,
  unknown
};
std::string_view to_string(LoadLevel level);
/// From Linux's perf_mem_data_src.
LoadLevel level_of(std::uint64_t data_source);
/// Whether the load missed the last level of the TLBs.
bool missed_tlb(std::uint64_t data_source);

/// A function of a module.
struct ProfiledFunction {
  std::string name, module;
  Weights self{}, total{};
  std::uint64_t start{};  ///< Of a program or library: in its file. 0: not known.
};

/// A function in the call tree, as called by the nodes above it.
struct CallNode {
  std::size_t function{};  ///< Of ProfileSummary::functions.
  std::size_t parent{};
  Weights self{}, total{};
  std::vector<std::size_t> children;
};

/// Loads of one level, or of one function from one level.
struct LoadCount {
  std::uint64_t samples{}, loads{}, latency{}, tlb_misses{}, max{};
};

/// An instruction with samples of its own.
struct ProfiledAddress {
  std::uint64_t offset{};  ///< From the start of the function.
  std::array<std::uint64_t, aspects> samples{};
  Weights weights{};
};

/// The sum of a profile's samples. Its size is bounded, whatever is added: when there is no more room, a sample counts
/// for its caller.
class ProfileSummary {
 public:
  ProfileSummary();
  void add(const Sample& sample);

  [[nodiscard]] const std::vector<ProfiledFunction>& functions() const { return functions_; }
  /// The first is the root: its function is the whole program.
  [[nodiscard]] const std::vector<CallNode>& nodes() const { return nodes_; }
  [[nodiscard]] const std::map<LoadLevel, LoadCount>& levels() const { return levels_; }
  [[nodiscard]] const std::map<std::pair<std::size_t, LoadLevel>, LoadCount>& function_levels() const {
    return function_levels_;
  }
  /// By function and offset.
  [[nodiscard]] const std::map<std::pair<std::size_t, std::uint64_t>, ProfiledAddress>& addresses() const {
    return addresses_;
  }
  [[nodiscard]] const std::array<std::uint64_t, aspects>& samples() const { return samples_; }
  [[nodiscard]] const Weights& total() const { return nodes_.front().total; }
  /// The part of the total in which Linux served the interrupts of the samples themselves.
  [[nodiscard]] const Weights& sampling() const { return sampling_; }
  /// Samples that were counted for a caller because there was no more room.
  [[nodiscard]] std::uint64_t crowded() const { return crowded_; }

 private:
  std::size_t function_of(std::string_view name, std::string_view module);
  std::size_t child_of(std::size_t parent, std::size_t function);
  void add_load(const Sample& sample, std::size_t function, std::uint64_t loads);
  void add_address(const Sample& sample, std::size_t function, const Weights& weights);

  std::vector<ProfiledFunction> functions_;
  std::vector<CallNode> nodes_;
  std::unordered_map<std::string, std::size_t> known_functions_;  ///< By name, a NUL, and module.
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> known_nodes_;
  std::map<LoadLevel, LoadCount> levels_;
  std::map<std::pair<std::size_t, LoadLevel>, LoadCount> function_levels_;
  std::map<std::pair<std::size_t, std::uint64_t>, ProfiledAddress> addresses_;
  std::array<std::uint64_t, aspects> samples_{};
  Weights sampling_{};
  std::string key_;                ///< As path_.
  std::vector<std::size_t> path_;  ///< Of the sample that is being added: a member, to reuse its memory.
  std::uint64_t crowded_{};
};

/// The functions with the highest self value of a metric, at most `most`; those with 0 are left out.
std::vector<std::size_t> hottest(const ProfileSummary& summary, Metric metric, std::size_t max);

}  // namespace vmm::tool
