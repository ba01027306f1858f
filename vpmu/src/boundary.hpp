#pragma once
#include "vpmu/pmu.hpp"

namespace vpmu {

/// What becomes due at one instruction boundary, and the interrupts that it ends with.
struct Pmu::Boundary {
  Simultaneous due;
  CounterSet newly_armed;  ///< Armed from the next boundary on.
  CounterSet served;       ///< Reloaded and cleared by this boundary's assist.
  bool pmi{};              ///< All requests of a boundary are one (rules Q3, V5) ...
  bool second_pmi{};       ///< ... but for the pair of threshold and overflow of one counter (rule Q5).
};

}  // namespace vpmu
