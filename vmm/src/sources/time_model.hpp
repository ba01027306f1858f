#pragma once
#include <cstdint>

namespace vmm {

/// How many cycles instructions take.
enum class TimeModel : std::uint8_t {
  instructions,  ///< One each.
  pipeline,      ///< By a model of the core's pipeline, caches and branch prediction.
};

}  // namespace vmm
