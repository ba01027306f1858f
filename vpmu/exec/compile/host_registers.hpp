#pragma once
#include <array>
#include <cstddef>

#include "exec/host/host_assembler.hpp"
#include "exec/state/core.hpp"

/// What each host register holds while compiled code runs.
namespace vpmu::exec {

/// Free between instructions of the guest; an address is computed in the first one.
inline constexpr HostRegister scratch_a = 0, scratch_c = 1, scratch_d = 2;
/// Points into the core, so that its low six bits are the shift from an address to its page number.
inline constexpr HostRegister core_base = 5;
inline constexpr std::int32_t core_bias = 12;
static_assert(1U << core_bias == page_size && alignof(Core) == 64);

/// Where each register of the guest is: in a host register or, the five that compilers use least, in the core.
inline constexpr std::array<HostRegister, 16> homes{12,
                                                    13,
                                                    14,
                                                    3,
                                                    15,
                                                    9,
                                                    6,
                                                    7,
                                                    8,
                                                    HostAssembler::none,
                                                    10,
                                                    HostAssembler::none,
                                                    11,
                                                    HostAssembler::none,
                                                    HostAssembler::none,
                                                    HostAssembler::none};
inline constexpr HostRegister home_of_rsp = homes[rsp];

constexpr std::int32_t in_core(std::size_t offset) { return static_cast<std::int32_t>(offset) - core_bias; }
constexpr std::int32_t register_in_core(unsigned number) {
  return in_core(offsetof(Core, r)) + 8 * static_cast<std::int32_t>(number);
}

}  // namespace vpmu::exec
