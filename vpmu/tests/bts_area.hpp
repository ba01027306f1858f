#pragma once
#include "vpmu/address.hpp"
#include "vpmu/registers.hpp"

/// Where tests of BTS have their records, and how they turn it on.
namespace vpmu::test {

namespace dbg = reg::debugctl;

inline constexpr std::uint64_t trace_on = dbg::TR::mask | dbg::BTS::mask;
inline constexpr std::uint64_t trace_with_interrupt = trace_on | dbg::BTINT::mask;
inline constexpr GuestLinear ds_area{0xFFFF'8000'0001'0000};
inline constexpr GuestLinear buffer{0xFFFF'8000'0002'0000};

}  // namespace vpmu::test
