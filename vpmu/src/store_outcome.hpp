#pragma once
#include "vpmu/pmu.hpp"

namespace vpmu {

/// What became of a record.
struct Pmu::StoreOutcome {
  bool ok{};
  bool threshold_reached{};
  bool full{};  ///< There is no room for another record; or there was none for this one.
  DsArea area;  ///< As read at the assist; meaningful when ok.
};

}  // namespace vpmu
