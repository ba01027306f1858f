#include "vpmu/generation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <ostream>
#include <string>

#include "vpmu/cpuid.hpp"
#include "vpmu/pebs.hpp"

// What each PMU reports about itself: SDM 2A CPUID leaf 0AH, 3B 18.18, and the tables of 3B 18.8 to 18.13, row by row.

namespace vpmu::test {
namespace {

struct Row {
  Generation generation;
  const char* name;
  std::uint32_t leaf_0ah_eax, leaf_0ah_eax_no_smt, leaf_0ah_ebx;
  std::uint64_t perf_capabilities;
  unsigned record_bytes, lbr_depth;
  unsigned load_latency_event;  ///< Umask and code (rule L1).
  unsigned load_latency_counters;
  bool precise_store, data_la, pdir, frontend, eventing_ip, tlb_and_lock, callstack;
  FreezeKind freeze;
  unsigned offcore_msrs;
  std::uint64_t offcore_bits;
};
void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

constexpr auto legacy = FreezeKind::legacy, streamlined = FreezeKind::streamlined;
using G = Generation;
// clang-format off
constexpr std::array rows{
  //  generation            name              0AH:EAX, SMT and none     EBX   345H    record LBR  latency, on store  dla    pdir   front  eip    tlb    stack
  Row{G::nehalem,         "nehalem",        0x07300403, 0x07300403, 0x44, 0x11C3, 0xB0, 16, 0x100B, 0xF, false, false, false, false, false, false, false, legacy, 1, 0xFFFF},
  Row{G::nehalem_ex,      "nehalem-ex",     0x07300403, 0x07300403, 0x44, 0x11C3, 0xB0, 16, 0x100B, 0xF, false, false, false, false, false, false, false, legacy, 1, 0xFFFF},
  Row{G::westmere,        "westmere",       0x07300403, 0x07300403, 0x04, 0x11C3, 0xB0, 16, 0x100B, 0xF, false, false, false, false, false, true,  false, legacy, 2, 0xFFFF},
  Row{G::westmere_ep,     "westmere-ep",    0x07300403, 0x07300403, 0x04, 0x11C3, 0xB0, 16, 0x100B, 0xF, false, false, false, false, false, true,  false, legacy, 2, 0xFFFF},
  Row{G::westmere_ex,     "westmere-ex",    0x07300403, 0x07300403, 0x04, 0x11C3, 0xB0, 16, 0x100B, 0xF, false, false, false, false, false, true,  false, legacy, 2, 0xFFFF},
  Row{G::sandy_bridge,    "sandybridge",    0x07300403, 0x07300803, 0x00, 0x31C3, 0xB0, 16, 0x01CD, 0x8, true,  false, true,  false, false, true,  false, legacy, 2, 0x3F'807F'8FFF},
  Row{G::sandy_bridge_ep, "sandybridge-ep", 0x07300403, 0x07300803, 0x00, 0x31C3, 0xB0, 16, 0x01CD, 0x8, true,  false, true,  false, false, true,  false, legacy, 2, 0x3F'FFFF'8FFF},
  Row{G::ivy_bridge,      "ivybridge",      0x07300403, 0x07300803, 0x00, 0x31C3, 0xB0, 16, 0x01CD, 0x8, true,  false, true,  false, false, true,  false, legacy, 2, 0x3F'807F'8FFF},
  Row{G::ivy_bridge_ep,   "ivybridge-ep",   0x07300403, 0x07300803, 0x00, 0x31C3, 0xB0, 16, 0x01CD, 0x8, true,  false, true,  false, false, true,  false, legacy, 2, 0x3F'FFFF'8FFF},
  Row{G::haswell,         "haswell",        0x07300403, 0x07300803, 0x00, 0x32C4, 0xC0, 16, 0x01CD, 0xF, false, true,  true,  false, true,  true,  true,  legacy, 2, 0x3F'FFFF'8FFF},
  Row{G::haswell_ep,      "haswell-ep",     0x07300403, 0x07300803, 0x00, 0x32C4, 0xC0, 16, 0x01CD, 0xF, false, true,  true,  false, true,  true,  true,  legacy, 2, 0x3F'FFFF'8FFF},
  Row{G::broadwell,       "broadwell",      0x07300403, 0x07300803, 0x00, 0x32C4, 0xC0, 16, 0x01CD, 0xF, false, true,  true,  false, true,  true,  true,  legacy, 2, 0x3F'FFFF'8FFF},
  Row{G::broadwell_de,    "broadwell-de",   0x07300403, 0x07300803, 0x00, 0x32C4, 0xC0, 16, 0x01CD, 0xF, false, true,  true,  false, true,  true,  true,  legacy, 2, 0x3F'FFFF'8FFF},
  Row{G::broadwell_ep,    "broadwell-ep",   0x07300403, 0x07300803, 0x00, 0x32C4, 0xC0, 16, 0x01CD, 0xF, false, true,  true,  false, true,  true,  true,  legacy, 2, 0x3F'FFFF'8FFF},
  Row{G::skylake,         "skylake",        0x07300404, 0x07300804, 0x00, 0x33C5, 0xC8, 32, 0x01CD, 0xF, false, true,  true,  true,  true,  true,  true,  streamlined, 2, 0x3F'FFFF'8FFF},
  Row{G::skylake_sp,      "skylake-sp",     0x07300404, 0x07300804, 0x00, 0x33C5, 0xC8, 32, 0x01CD, 0xF, false, true,  true,  true,  true,  true,  true,  streamlined, 2, 0x3F'FFFF'8FFF},
};
// clang-format on

class EachGeneration : public testing::TestWithParam<Row> {
 protected:
  const GenerationDesc& desc_{describe(GetParam().generation)};
};

TEST_P(EachGeneration, EnumeratesItsCounters) {
  const Row& row = GetParam();
  const CpuidRegisters with_sibling = cpuid_0ah(desc_, desc_.gp_counters);
  EXPECT_EQ(with_sibling.eax, row.leaf_0ah_eax);
  EXPECT_EQ(with_sibling.ebx, row.leaf_0ah_ebx);
  EXPECT_EQ(with_sibling.ecx, 0U);
  EXPECT_EQ(with_sibling.edx, 0x603U);
  EXPECT_EQ(cpuid_0ah(desc_, desc_.gp_counters_no_smt).eax, row.leaf_0ah_eax_no_smt);
  EXPECT_EQ(perf_capabilities(desc_), row.perf_capabilities);
}

TEST_P(EachGeneration, HasTheFacilitiesOfTheManual) {
  const Row& row = GetParam();
  EXPECT_EQ(record_size(static_cast<PebsFormat>(desc_.pebs_format)), row.record_bytes);
  EXPECT_EQ(desc_.lbr_depth, row.lbr_depth);
  EXPECT_EQ(desc_.load_latency_code | desc_.load_latency_umask << 8, row.load_latency_event);
  EXPECT_EQ(desc_.load_latency_counters, row.load_latency_counters);
  const GenerationFeatures& f = desc_.features;
  EXPECT_EQ(f.precise_store, row.precise_store);
  EXPECT_EQ(f.data_la, row.data_la);
  EXPECT_EQ(f.pdir, row.pdir);
  EXPECT_EQ(f.frontend, row.frontend);
  EXPECT_EQ(f.eventing_ip, row.eventing_ip);
  EXPECT_EQ(f.data_source_tlb_lock, row.tlb_and_lock);
  EXPECT_EQ(f.lbr_callstack, row.callstack);
  EXPECT_EQ(desc_.freeze, row.freeze);
  EXPECT_EQ(desc_.offcore_rsp_msrs, row.offcore_msrs);
  EXPECT_EQ(desc_.offcore_rsp_mask, row.offcore_bits);
}

TEST_P(EachGeneration, IsFoundByTheNameThatUsersType) {
  EXPECT_EQ(find_generation(GetParam().name), GetParam().generation);
  EXPECT_EQ(desc_.name, GetParam().name);
}

INSTANTIATE_TEST_SUITE_P(Rows, EachGeneration, testing::ValuesIn(rows), [](const auto& row) {
  std::string name = row.param.name;
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST(Generations, AreAllInTheTable) {
  EXPECT_EQ(all_generations().size(), rows.size());
  EXPECT_EQ(find_generation("Skylake"), std::nullopt);
  EXPECT_EQ(find_generation(""), std::nullopt);
}

}  // namespace
}  // namespace vpmu::test
