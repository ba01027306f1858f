#pragma once
#include "vpmu/pmu.hpp"

namespace vpmu {

/// What became of a record.
struct Pmu::StoreOutcome {
  bool ok{};
  bool threshold_reached{};
  DsArea area;  ///< As read at the assist; meaningful when ok.
};

}  // namespace vpmu
