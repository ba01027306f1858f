#include "vpmu/offcore.hpp"

#include <gtest/gtest.h>

#include "pebs_session.hpp"

// Off-core response: SDM 3B 18.8.1.3, 18.9.5, 18.11.4, 18.13.5. What the MSR values of the public event lists select on
// each generation.

namespace vpmu::test {
namespace {

using enum OffcoreRequest;
using enum OffcoreSupplier;

constexpr OffcoreFilter cells(OffcoreRequest request, std::initializer_list<OffcoreSupplier> suppliers) {
  unsigned filter = 0;
  for (const OffcoreSupplier supplier : suppliers) filter |= 1U << offcore_cell(request, supplier);
  return static_cast<OffcoreFilter>(filter);
}
constexpr std::initializer_list<OffcoreSupplier> all_suppliers{l3, local_dram, l3_shared, l3_modified}, only_l3{l3},
    only_memory{local_dram}, only_shared{l3_shared}, only_modified{l3_modified}, none{};

struct Named {
  Generation generation;
  const char* event;
  std::initializer_list<OffcoreSupplier> suppliers;
};
class DemandDataReads : public testing::TestWithParam<Named> {};
TEST_P(DemandDataReads, AreSelectedAsTheNameSays) {
  const Named& row = GetParam();
  const GenerationDesc& desc = describe(row.generation);
  const std::string name = std::string{"OFFCORE_RESPONSE.DEMAND_DATA_RD."} + row.event;
  const EventDesc* const event = find_event(desc, name);
  ASSERT_NE(event, nullptr) << name;
  EXPECT_EQ(event->counts, Counts::offcore);
  EXPECT_EQ(offcore_filter(desc.offcore, event->msr_value), cells(demand_data_read, row.suppliers))
      << desc.name << ' ' << name;
}
INSTANTIATE_TEST_SUITE_P(
    Of, DemandDataReads,
    testing::Values(Named{Generation::westmere, "LOCAL_DRAM", only_memory},
                    Named{Generation::westmere, "REMOTE_DRAM", none},
                    Named{Generation::westmere, "LLC_HIT_NO_OTHER_CORE", only_l3},
                    Named{Generation::westmere, "ANY_LOCATION", all_suppliers},
                    Named{Generation::westmere, "LLC_HIT_OTHER_CORE_HIT", only_shared},
                    Named{Generation::westmere, "LLC_HIT_OTHER_CORE_HITM", only_modified},
                    Named{Generation::westmere_ep, "LOCAL_DRAM_AND_REMOTE_CACHE_HIT", only_memory},
                    Named{Generation::westmere_ep, "REMOTE_DRAM", none},
                    Named{Generation::westmere_ep, "ANY_LLC_MISS", only_memory},
                    Named{Generation::sandy_bridge, "LLC_MISS.DRAM", only_memory},
                    Named{Generation::sandy_bridge, "LLC_HIT.NO_SNOOP_NEEDED", only_l3},
                    Named{Generation::sandy_bridge, "LLC_HIT.HITM_OTHER_CORE", only_modified},
                    Named{Generation::sandy_bridge, "LLC_HIT.HIT_OTHER_CORE_NO_FWD", only_shared},
                    Named{Generation::sandy_bridge_ep, "LLC_MISS.LOCAL_DRAM", only_memory},
                    Named{Generation::sandy_bridge_ep, "LLC_MISS.REMOTE_DRAM", none},
                    Named{Generation::ivy_bridge, "LLC_MISS.DRAM", only_memory},
                    Named{Generation::ivy_bridge_ep, "LLC_MISS.LOCAL_DRAM", only_memory},
                    Named{Generation::haswell, "L3_MISS.LOCAL_DRAM", only_memory},
                    Named{Generation::haswell_ep, "LLC_MISS.LOCAL_DRAM", only_memory},
                    Named{Generation::broadwell, "L3_MISS_LOCAL_DRAM.SNOOP_NOT_NEEDED", only_memory},
                    Named{Generation::broadwell, "L3_MISS_LOCAL_DRAM.SNOOP_HITM", none},
                    Named{Generation::skylake, "ANY_RESPONSE", all_suppliers},
                    Named{Generation::skylake, "L3_MISS.ANY_SNOOP", only_memory},
                    Named{Generation::skylake, "L3_HIT_E.SNOOP_NOT_NEEDED", only_l3},
                    Named{Generation::skylake, "L3_HIT_S.SNOOP_NOT_NEEDED", none},
                    Named{Generation::skylake, "L3_HIT_S.SNOOP_HIT_NO_FWD", only_shared},
                    Named{Generation::skylake, "L3_HIT_M.SNOOP_HITM", only_modified},
                    Named{Generation::skylake_sp, "L3_MISS_LOCAL_DRAM.SNOOP_MISS_OR_NO_FWD", only_memory},
                    Named{Generation::skylake_sp, "L3_MISS_REMOTE_DRAM.SNOOP_MISS_OR_NO_FWD", none}));

// The bits of demand requests are the same in all generations; that of prefetched data is no bit on Skylake (SDM 3B
// table 18-60), but on its server. A request without a response, or a response without a request,
// selects nothing.
TEST(OffcoreFilters, NeedARequestAndAnAnswer) {
  for (const GenerationDesc* g : all_generations()) {
    const std::uint64_t all = g->offcore_rsp_mask;
    constexpr std::array bits{bit(0), bit(1), bit(2), bit(4)};
    constexpr std::uint64_t any_of_them = 0x17;
    for (unsigned request = 0; request < offcore_request_count; ++request) {
      const std::uint64_t one = (all & ~any_of_them) | bits[request];
      const bool is_there = g->generation != Generation::skylake || request < 3;
      EXPECT_EQ(offcore_filter(g->offcore, one),
                is_there ? cells(static_cast<OffcoreRequest>(request), all_suppliers) : 0)
          << g->name << ' ' << request;
      EXPECT_EQ(offcore_filter(g->offcore, bits[request]), 0) << g->name;
    }
    EXPECT_EQ(offcore_filter(g->offcore, all & ~any_of_them), 0)
        << g->name << ": prefetches for ownership or code, and write-backs, are not modelled";
    std::uint64_t known = g->offcore.any_response;
    for (const OffcoreLayout::Answer& answer : g->offcore.answers) known |= answer.supplier | answer.snoop;
    EXPECT_EQ(known & ~all, 0U) << g->name;
  }
}

TEST(OffcoreEvents, CountWhatTheirOwnRegisterSelects) {
  PebsSession s;
  constexpr std::uint64_t any = bit(16), reads = bit(0), code = bit(2);
  s.write(msr::MSR_OFFCORE_RSP_0, reads | any);
  s.write(msr::MSR_OFFCORE_RSP_0 + 1, code | any);
  s.start(0, {.event = 0xB7, .umask = 0x01}, 1000);
  s.start(1, {.event = 0xBB, .umask = 0x01}, 1000);
  Retirement r = s.load(1);
  r.offcore[offcore_cell(demand_data_read, local_dram)] = 2;
  r.offcore[offcore_cell(demand_data_read, l3)] = 1;
  r.offcore[offcore_cell(demand_rfo, l3)] = 5;
  r.offcore[offcore_cell(demand_code_read, l3)] = 7;
  s.retire(r);
  EXPECT_EQ(s.pmc(0), minus(1000 - 3));
  EXPECT_EQ(s.pmc(1), minus(1000 - 7));
}

TEST(OffcoreEvents, TellTheSourceWhatTheRegisterSelects) {
  PebsSession s;
  s.start(0, {.event = 0xB7, .umask = 0x01}, 1000);
  EXPECT_EQ(s.pmu.plan().entries[0].offcore, 0);
  s.pmu.take_replan();
  s.write(msr::MSR_OFFCORE_RSP_0, bit(1) | bit(16));
  EXPECT_TRUE(s.pmu.take_replan());
  EXPECT_EQ(s.pmu.plan().entries[0].offcore, cells(demand_rfo, all_suppliers));
}

}  // namespace
}  // namespace vpmu::test
