#include "sources/model_log.hpp"

#include <fmt/format.h>

namespace vmm {
namespace {

std::string_view name_of(vpmu::HitLevel level) {
  switch (level) {
    case vpmu::HitLevel::unknown: return "unknown";
    case vpmu::HitLevel::l1: return "l1";
    case vpmu::HitLevel::lfb: return "fill_buffer";
    case vpmu::HitLevel::l2: return "l2";
    case vpmu::HitLevel::l3: return "l3";
    case vpmu::HitLevel::l3_shared: return "l3_shared";
    case vpmu::HitLevel::l3_modified: return "l3_modified";
    case vpmu::HitLevel::dram: return "memory";
    case vpmu::HitLevel::uncached: return "uncached";
    case vpmu::HitLevel::io: return "io";
  }
  return "";
}

}  // namespace

std::string describe(const ModelledAccess& m) {
  return fmt::format("{:#x} {} {:#x} {} latency {} stlb_miss {}", m.ip, m.store ? "store" : "load",
                     m.access.address.value(), name_of(m.access.level), m.access.latency, m.access.stlb_miss ? 1 : 0);
}

}  // namespace vmm
