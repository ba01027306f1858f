#pragma once
#include <cstdint>

namespace vpmu::exec {

/// Whether blocks that run often become code of this CPU. What the guest sees, and what is counted, is the same either
/// way.
struct Compiling {
  std::uint32_t after{64};  ///< A block is compiled when it begins for this many times; 0: never.
};
inline constexpr Compiling never_compiling{.after = 0};

}  // namespace vpmu::exec
