#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace vpmu::oracle {

/// One encodable event or event:umask as libpfm4 knows it.
struct PfmEvent {
  std::string name;    ///< "EVENT:UMASK", or "EVENT" if it has no umask.
  std::uint8_t code;   ///< PERFEVTSEL[7:0] of its encoding.
  std::uint8_t umask;  ///< PERFEVTSEL[15:8].
  bool precise;        ///< libpfm4 calls it precise.
};

/// All events of the PMU that libpfm4 calls `pmu` ("skl"), in libpfm4's order. Empty when libpfm4 does not start or
/// does not know the PMU; an event that it cannot encode is listed with code and umask 0.
std::vector<PfmEvent> pfm_events(const char* pmu);

}  // namespace vpmu::oracle
