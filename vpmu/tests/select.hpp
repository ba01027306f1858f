#pragma once
#include <cstdint>
#include <ostream>

#include "vpmu/registers.hpp"

namespace vpmu::test {

/// IA32_PERFEVTSELx by its fields; counts at every CPL and is enabled unless said otherwise. SDM 3B figure 18-6.
struct Select {
  std::uint8_t event{};
  std::uint8_t umask{};
  std::uint8_t cmask{};
  bool inv{}, edge{}, interrupt{}, any{};
  bool usr{true}, os{true}, enabled{true};

  [[nodiscard]] constexpr std::uint64_t raw() const {
    namespace sel = reg::perfevtsel;
    return sel::EVENT::make(event) | sel::UMASK::make(umask) | sel::CMASK::make(cmask) | sel::INV::make(inv) |
           sel::E::make(edge) | sel::INT::make(interrupt) | sel::ANY::make(any) | sel::USR::make(usr) |
           sel::OS::make(os) | sel::EN::make(enabled);
  }
};
inline std::ostream& operator<<(std::ostream& out, const Select& s) {
  return out << "cmask " << unsigned{s.cmask} << " inv " << s.inv << " edge " << s.edge << " usr " << s.usr << " os "
             << s.os;
}

/// MEM_INST_RETIRED.ALL_LOADS, the LD of the worked vectors.
inline constexpr Select loads{.event = 0xD0, .umask = 0x81};
inline constexpr Select stores{.event = 0xD0, .umask = 0x82};
inline constexpr Select instructions{.event = 0xC0, .umask = 0x00};
inline constexpr Select conditional_branches{.event = 0xC4, .umask = 0x01};
inline constexpr Select precise_distribution{.event = 0xC0, .umask = 0x01};
inline constexpr Select core_cycles{.event = 0x3C, .umask = 0x00};
inline constexpr Select load_latency{.event = 0xCD, .umask = 0x01};
/// Load latency and loads before Sandy Bridge (rule L1).
inline constexpr Select nehalem_load_latency{.event = 0x0B, .umask = 0x10};
inline constexpr Select nehalem_loads{.event = 0x0B, .umask = 0x01};
/// MEM_TRANS_RETIRED.PRECISE_STORE (rule S1).
inline constexpr Select precise_store{.event = 0xCD, .umask = 0x02};
inline constexpr Select frontend_retired{.event = 0xC6, .umask = 0x01};
/// LONGEST_LAT_CACHE.MISS: countable, not precise.
inline constexpr Select cache_misses{.event = 0x2E, .umask = 0x41};
/// What Linux programs for cycles:p on Skylake.
inline constexpr Select cycles_p{.event = 0xC0, .umask = 0x00, .cmask = 16, .inv = true};

/// `s` with the PMI on overflow.
[[nodiscard]] constexpr Select with_interrupt(Select s) {
  s.interrupt = true;
  return s;
}

/// A counter value `n` events before its overflow, 48 bits wide.
[[nodiscard]] constexpr std::uint64_t minus(std::uint64_t n) { return (0 - n) & low_bits(48); }

}  // namespace vpmu::test
