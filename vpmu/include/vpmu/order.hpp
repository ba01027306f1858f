#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "vpmu/counter.hpp"

namespace vpmu {

/// What is due at one instruction boundary.
struct Simultaneous {
  CounterSet overflow_pmi;  ///< Overflowed with their interrupt enabled and without PEBS.
  CounterSet triggered;     ///< PEBS triggers: one assist serves them all (rules P10, Q9).
};

/// What a step does: post a PMI, or run the assist.
enum class StepKind : std::uint8_t { overflow_pmi, pebs_assist };

/// One step of service.
struct Step {
  StepKind kind{};
  CounterId counter;  ///< The counter whose place in the order the step has.
  friend bool operator==(const Step&, const Step&) = default;
};

/// The steps of one boundary, in order.
struct ServiceOrder {
  std::array<Step, max_counters + 1> steps{};
  unsigned size{};
  /// The first `size` steps.
  [[nodiscard]] std::span<const Step> active() const { return std::span{steps}.first(size); }
};

/// Orders simultaneous events: index order, general-purpose before fixed (rules Q1, Q2), the one assist at the place of
/// its lowest counter (Q9), at this boundary also when a PMI comes before it (Q8). Pure.
ServiceOrder service_order(const Simultaneous& due);

}  // namespace vpmu
