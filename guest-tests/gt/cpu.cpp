#include "gt/cpu.hpp"

#include "gt/test.hpp"

namespace gt::cpu {
namespace {

using M = Microarchitecture;

constexpr Facts nehalem{
    .microarchitecture = M::nehalem,
    .version = 3,
    .perf_capabilities = 0x11C3,
    .precise_store = false,
    .data_la = false,
    .pdir = false,
    .data_source_tlb = false,
    .lbr_depth = 16,
    .lbr_select = 0x1FF,
    .offcore_registers = 1,
    .offcore_bits = 0xFFFF,
    .load_latency_counter = 0,
    .memory_source = 0xC,
    .loads = {0x0B, 0x01},
    .stores = {0x0B, 0x02},
    .load_latency = {0x0B, 0x10},
    .near_returns = no_event,
    .taken_branches = no_event,
    .conditional_mispredicts = no_event,
    .precise_mispredicts = no_event,
    .precise_cycles = {0xC0, 0x01, 16, 1},
    .l1_hit = {0xCB, 0x01},
    .fill_buffer_hit = {0xCB, 0x40},
    .l2_hit = {0xCB, 0x02},
    .l3_hit = {0xCB, 0x04},
    .l1_miss = no_event,
    .l2_miss = no_event,
    .l3_miss = {0xCB, 0x10},
    .stlb_miss_loads = {0xCB, 0x80},
};

constexpr Facts westmere = [] {
  Facts f = nehalem;
  f.microarchitecture = M::westmere;
  f.data_source_tlb = true;
  f.offcore_registers = 2;
  f.conditional_mispredicts = {0xC5, 0x01};
  f.precise_mispredicts = {0xC5, 0x04};
  return f;
}();

constexpr Facts sandy_bridge = [] {
  Facts f = westmere;
  f.microarchitecture = M::sandy_bridge;
  f.perf_capabilities = 0x31C3;
  f.precise_store = f.pdir = true;
  f.offcore_bits = 0x3F'807F'8FFF;
  f.load_latency_counter = 3;
  f.loads = {0xD0, 0x81};
  f.stores = {0xD0, 0x82};
  f.load_latency = {0xCD, 0x01};
  f.near_returns = {0xC4, 0x08};
  f.taken_branches = {0xC4, 0x20};
  f.precise_cycles = {0xC2, 0x01, 16, 1};
  f.l1_hit = {0xD1, 0x01};
  f.fill_buffer_hit = {0xD1, 0x40};
  f.l2_hit = {0xD1, 0x02};
  f.l3_hit = {0xD1, 0x04};
  f.l3_miss = {0xD4, 0x02};
  f.stlb_miss_loads = {0xD0, 0x11};
  return f;
}();

/// Servers have other response bits for suppliers of off-core requests.
constexpr std::uint64_t server_offcore_bits = 0x3F'FFFF'8FFF;

constexpr Facts sandy_bridge_ep = [] {
  Facts f = sandy_bridge;
  f.offcore_bits = server_offcore_bits;
  f.l3_miss = {0xD1, 0x20};
  return f;
}();

constexpr Facts ivy_bridge = [] {
  Facts f = sandy_bridge;
  f.microarchitecture = M::ivy_bridge;
  f.l1_miss = {0xD1, 0x08};
  f.l2_miss = {0xD1, 0x10};
  f.l3_miss = {0xD1, 0x20};
  return f;
}();

constexpr Facts ivy_bridge_ep = [] {
  Facts f = ivy_bridge;
  f.offcore_bits = server_offcore_bits;
  return f;
}();

constexpr Facts haswell = [] {
  Facts f = ivy_bridge;
  f.microarchitecture = M::haswell;
  f.perf_capabilities = 0x32C4;
  f.precise_store = false;
  f.data_la = true;
  f.lbr_select = 0x3FF;
  f.offcore_bits = server_offcore_bits;
  f.load_latency_counter = 0;
  return f;
}();

constexpr Facts broadwell = [] {
  Facts f = haswell;
  f.microarchitecture = M::broadwell;
  return f;
}();

constexpr Facts skylake = [] {
  Facts f = broadwell;
  f.microarchitecture = M::skylake;
  f.version = 4;
  f.perf_capabilities = 0x33C5;
  f.lbr_depth = 32;
  f.memory_source = 0xA;
  f.precise_cycles = {0xC0, 0x01, 10, 1};
  return f;
}();

const Facts* by_model(unsigned model) {
  switch (model) {
    case 0x1A:
    case 0x1E:
    case 0x1F:
    case 0x2E: return &nehalem;
    case 0x25:
    case 0x2C:
    case 0x2F: return &westmere;
    case 0x2A: return &sandy_bridge;
    case 0x2D: return &sandy_bridge_ep;
    case 0x3A: return &ivy_bridge;
    case 0x3E: return &ivy_bridge_ep;
    case 0x3C:
    case 0x3F:
    case 0x45:
    case 0x46: return &haswell;
    case 0x3D:
    case 0x47:
    case 0x4F:
    case 0x56: return &broadwell;
    case 0x4E:
    case 0x55:
    case 0x5E:
    case 0x8E:
    case 0x9E: return &skylake;
    default: return nullptr;
  }
}

}  // namespace

unsigned model() {
  const std::uint32_t signature = cpuid(1).eax;
  return (signature >> 4 & 0xF) | (signature >> 12 & 0xF0);
}

const Facts& facts() {
  static constinit const Facts* found = nullptr;
  if (found == nullptr) {
    constexpr unsigned p6 = 6;
    if ((cpuid(1).eax >> 8 & 0xF) == p6) found = by_model(model());
    if (found == nullptr) abort_test(__FILE_NAME__, __LINE__, "the tests do not know this processor");
  }
  return *found;
}

std::uint64_t perf_capabilities() {
  static constinit std::uint64_t value = 0;
  if (value == 0) value = rdmsr(pmu::msr::IA32_PERF_CAPABILITIES);
  return value;
}
vpmu::PebsFormat pebs_format() {
  return static_cast<vpmu::PebsFormat>(pmu::reg::perf_capabilities::PEBS_FMT::get(perf_capabilities()));
}
bool has_full_width_writes() { return pmu::reg::perf_capabilities::FW_WRITE::test(perf_capabilities()); }
bool has_streamlined_freeze() { return pmu::version() >= 4; }
bool has_eventing_ip() { return pebs_format() >= vpmu::PebsFormat::format2; }
bool signals_full_buffer() { return facts().microarchitecture >= Microarchitecture::sandy_bridge; }
bool has_record_tsc() { return pebs_format() >= vpmu::PebsFormat::format3; }

}  // namespace gt::cpu
