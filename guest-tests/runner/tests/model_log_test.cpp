// Latency and data source in the guest's records are what the model said on the host.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "report.hpp"
#include "sources/model_log.hpp"
#include "test_kernel.hpp"
#include "test_run.hpp"

namespace gt_runner {
namespace {

/// A0H of Skylake's records: code and STLB bit. SDM 3B tables 18-24 and 18-33.
std::uint64_t data_source(const vpmu::MemAccess& a) {
  const auto code = [&]() -> std::uint64_t {
    switch (a.level) {
      case vpmu::HitLevel::l1: return 1;
      case vpmu::HitLevel::lfb: return 2;
      case vpmu::HitLevel::l2: return 3;
      case vpmu::HitLevel::l3: return 4;
      case vpmu::HitLevel::l3_shared: return 6;
      case vpmu::HitLevel::l3_modified: return 7;
      case vpmu::HitLevel::dram: return 0xA;
      case vpmu::HitLevel::unknown:
      case vpmu::HitLevel::uncached:
      case vpmu::HitLevel::io: return 0xFF;
    }
    return 0xFF;
  };
  return code() | (a.stlb_miss ? 0x10U : 0U);
}

TEST(ModelLog, AgreesWithEveryRecord) {
  const auto kernel = TestKernel::open(PMU_TESTS_KERNEL);
  ASSERT_TRUE(kernel);
  const auto test =
      std::ranges::find(kernel->tests(), std::string{"LoadLatency.SaysWhatItRecorded"}, &gt_runner::Test::name);
  ASSERT_NE(test, kernel->tests().end());
  std::multiset<std::string> modelled;
  unsigned levels = 0;
  const auto result =
      run_test(*kernel, *test,
               {.source = "exact", .soft = true, .source_options = {.model_log = [&](const vmm::ModelledAccess& m) {
                                                   if (m.store) return;
                                                   levels |= 1U << static_cast<unsigned>(m.access.level);
                                                   modelled.insert(
                                                       fmt::format("record {:#x} {:#x} {:#x}", m.access.address.value(),
                                                                   m.access.latency, data_source(m.access)));
                                                 }}});
  ASSERT_TRUE(result) << result.error().what;
  EXPECT_EQ(result->verdict, Verdict::passed) << describe(*result);
  unsigned records = 0;
  for (const std::string& line : result->log) {
    if (!line.starts_with("record ")) continue;
    ++records;
    const auto found = modelled.find(line);
    ASSERT_NE(found, modelled.end()) << line;
    modelled.erase(found);
  }
  EXPECT_GE(records, 64U);
  constexpr auto bit_of = [](vpmu::HitLevel level) { return 1U << static_cast<unsigned>(level); };
  constexpr unsigned wanted = bit_of(vpmu::HitLevel::l1) | bit_of(vpmu::HitLevel::l2) | bit_of(vpmu::HitLevel::l3) |
                              bit_of(vpmu::HitLevel::dram);
  EXPECT_EQ(levels & wanted, wanted) << "all levels came up";
}

TEST(ModelLog, IsReadable) {
  EXPECT_EQ(
      vmm::describe({.ip = 0x401000,
                     .store = false,
                     .access = {.address = vpmu::GuestLinear{0x1040}, .level = vpmu::HitLevel::l2, .latency = 12}}),
      "0x401000 load 0x1040 l2 latency 12 stlb_miss 0");
}

}  // namespace
}  // namespace gt_runner
