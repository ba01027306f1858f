#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "uarch/profiles.hpp"

namespace vpmu::uarch {

/// What users may change of a profile, to have the part that is in their own machine. In the order in which text() has
/// them; parameter_names() has their names.
enum class Parameter : std::uint8_t {
  l1d,           ///< Bytes of the L1D. Its sets remain: ways come and go.
  l2,            ///< Bytes of the L2.
  l3,            ///< Bytes of the L3, all of which a core sees.
  stlb,          ///< Entries of the second level TLB.
  l2_cycles,     ///< Until a load has its data from the L2.
  l3_cycles,     ///< The same of the L3.
  dram,          ///< The same of memory: core cycles in all.
  mem_ns,        ///< Instead of dram: nanoseconds, after the L3 has missed.
  line_ps,       ///< Picoseconds for which a line occupies the channels of memory.
  mhz,           ///< Of the core: how many cycles memory's nanoseconds are.
  fill_buffers,  ///< Lines that may be on their way to the L1D.
  prefetch_off,  ///< Hardware prefetchers that never work: bits as in reg::misc_feature_control.
};
inline constexpr std::size_t parameter_count = 12;

/// "l1d, l2, l3": the names of all parameters.
std::string parameter_names();

/// Why a change is impossible, for people.
struct ChangeRefusal {
  std::string what;    ///< What is wrong, with the value that was seen: one line.
  std::string advice;  ///< What to give instead.
};

/// Values that replace some of a profile's, as users write them: "l3=16M,dram=240". All values are within fixed bounds;
/// whether they fit a profile is known when they are applied to it.
class ProfileChanges {
 public:
  /// The longest text: longer than any with each parameter once.
  static constexpr std::size_t max_text = 512;
  /// The longest way to memory. Timers tell at most so many cycles for one instruction, on average.
  static constexpr std::uint64_t max_dram = 500;
  /// The largest L3: some 10 MiB of the host's memory for each core, which saved machines hold, too.
  static constexpr std::uint64_t max_l3 = 128U << 20;

  /// Adds those of a list of NAME=VALUE with commas between them. Sizes may end in K or M, and other numbers may be
  /// hexadecimal: 0xF. Refused without effect: unknown names, values out of bounds, and what is set already.
  [[nodiscard]] std::optional<ChangeRefusal> add(std::string_view text);
  [[nodiscard]] bool empty() const { return *this == ProfileChanges{}; }
  /// Equal changes have equal texts; "" without any. add() takes it.
  [[nodiscard]] std::string text() const;
  /// The parameter's new value, if it has one.
  [[nodiscard]] std::optional<std::uint64_t> of(Parameter parameter) const {
    return values_[static_cast<std::size_t>(parameter)];
  }
  /// Makes the changes. Refused without effect: sizes that no cache has, and sizes and times that contradict others of
  /// the profile.
  [[nodiscard]] std::optional<ChangeRefusal> apply(Profile& profile) const;
  friend bool operator==(const ProfileChanges&, const ProfileChanges&) = default;

 private:
  std::optional<ChangeRefusal> add_one(std::string_view change);
  std::optional<ChangeRefusal> apply_sizes(Profile& profile) const;
  std::array<std::optional<std::uint64_t>, parameter_count> values_{};
};

/// A cache or TLB of so many lines or entries: a power of two of sets, and ways as near to these as possible; none if
/// there would be more than RecencySets::max_ways.
std::optional<Shape> nearest_shape(std::uint64_t entries, std::uint32_t ways);

}  // namespace vpmu::uarch
