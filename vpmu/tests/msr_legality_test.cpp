#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "msr_expectations.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/pmu.hpp"
#include "vpmu/uncore.hpp"

namespace vpmu::test {
namespace {

constexpr std::uint64_t unavailable_bits = 0x1800;  // of IA32_MISC_ENABLE

/// Whether two PMUs hold the same state, visible to the guest or not.
bool same_state(const PmuState& a, const PmuState& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

/// Writes that must raise #GP and change nothing at all.
void expect_fault(Pmu& pmu, MsrIndex index, std::uint64_t value) {
  const PmuState before = pmu.state();
  EXPECT_EQ(pmu.check_wrmsr(index, value), MsrStatus::gp) << std::hex << index.value() << " = " << value;
  EXPECT_EQ(pmu.wrmsr(index, value), MsrStatus::gp) << std::hex << index.value() << " = " << value;
  EXPECT_TRUE(same_state(before, pmu.state())) << std::hex << index.value() << " = " << value;
}

void expect_reads(const Pmu& pmu, MsrIndex index, std::uint64_t value) {
  const MsrReadResult result = pmu.rdmsr(index);
  ASSERT_EQ(result.status, MsrStatus::ok) << std::hex << index.value();
  EXPECT_EQ(result.value, value) << std::hex << index.value();
}

class MsrLegality : public ::testing::TestWithParam<MsrExpectation> {
 protected:
  Pmu pmu{PmuConfig{}};

  /// What the register reads after `value` was written over `before`.
  static std::uint64_t expected(std::uint64_t before, std::uint64_t value) {
    const MsrExpectation& m = GetParam();
    return m.access == MsrAccess::reads_zero ? 0 : (before & ~m.stored) | (value & m.stored);
  }
};

class WritableMsr : public MsrLegality {};
class PlainMsr : public MsrLegality {};
class ReadOnlyMsr : public MsrLegality {};
class AddressMsr : public MsrLegality {};
class CounterMsr : public MsrLegality {};

TEST_P(MsrLegality, ReadsItsResetValue) {
  const MsrExpectation& m = GetParam();
  for (unsigned i = 0; i < m.present; ++i) expect_reads(pmu, m.first + i, m.reset);
}

TEST_P(WritableMsr, EachLegalBitReadsBackAlone) {
  const MsrExpectation& m = GetParam();
  for (unsigned i = 0; i < m.present; ++i)
    for (unsigned b = 0; b < 64; ++b) {
      if ((m.stored & bit(b)) == 0) continue;
      const MsrReadResult before = pmu.rdmsr(m.first + i);
      ASSERT_EQ(pmu.check_wrmsr(m.first + i, bit(b)), MsrStatus::ok) << m.name << i << " bit " << b;
      EXPECT_EQ(pmu.rdmsr(m.first + i).value, before.value) << "asked only";
      ASSERT_EQ(pmu.wrmsr(m.first + i, bit(b)), MsrStatus::ok) << m.name << i << " bit " << b;
      expect_reads(pmu, m.first + i, expected(m.reset, bit(b)));
    }
}

TEST_P(WritableMsr, AllLegalBitsTogetherReadBack) {
  const MsrExpectation& m = GetParam();
  for (unsigned i = 0; i < m.present; ++i) {
    ASSERT_EQ(pmu.wrmsr(m.first + i, m.stored), MsrStatus::ok);
    expect_reads(pmu, m.first + i, expected(m.reset, m.stored));
  }
}

TEST_P(WritableMsr, EachReservedBitFaultsAndChangesNothing) {
  const MsrExpectation& m = GetParam();
  for (unsigned i = 0; i < m.present; ++i)
    for (unsigned b = 0; b < 64; ++b)
      if ((m.faulting & bit(b)) != 0) expect_fault(pmu, m.first + i, bit(b) | m.stored);
}

TEST_P(PlainMsr, BitsThatAreNeitherStoredNorReservedAreIgnored) {
  const MsrExpectation& m = GetParam();
  const std::uint64_t ignored = ~(m.stored | m.faulting);
  ASSERT_EQ(pmu.wrmsr(m.first, ignored), MsrStatus::ok);
  expect_reads(pmu, m.first, expected(m.reset, 0));
}

TEST_P(ReadOnlyMsr, WritingAReadOnlyRegisterFaults) {
  const MsrExpectation& m = GetParam();
  for (const std::uint64_t value : {std::uint64_t{0}, m.reset, std::uint64_t{1}}) expect_fault(pmu, m.first, value);
}

TEST_P(AddressMsr, NonCanonicalAddressesFault) {
  const MsrExpectation& m = GetParam();
  for (unsigned i = 0; i < m.present; ++i) {
    for (const std::uint64_t bad : {0x8000'0000'0000U, 0xFFFF'7FFF'FFFF'FFFFU, bit(63), bit(48)})
      expect_fault(pmu, m.first + i, bad);
    for (const std::uint64_t good : {0x7FFF'FFFF'FFFFU, 0xFFFF'8000'0000'0000U, ~std::uint64_t{0}}) {
      EXPECT_EQ(pmu.wrmsr(m.first + i, good), MsrStatus::ok);
      expect_reads(pmu, m.first + i, good);
    }
  }
}

// SDM 3B 18.2.4 and CPUID.0AH: with siblings a logical processor has four general-purpose counters, alone eight.
TEST_P(CounterMsr, AbsentCountersFaultWithSmtAndExistWithout) {
  const MsrExpectation& m = GetParam();
  Pmu alone{PmuConfig{.smt = false}};
  for (unsigned i = m.present; i < m.count; ++i) {
    EXPECT_EQ(pmu.rdmsr(m.first + i).status, MsrStatus::gp);
    expect_fault(pmu, m.first + i, 0);
    ASSERT_EQ(alone.wrmsr(m.first + i, m.stored), MsrStatus::ok);
    expect_reads(alone, m.first + i, m.stored);
  }
}

template <class Predicate>
std::vector<MsrExpectation> rows_where(Predicate predicate) {
  std::vector<MsrExpectation> rows;
  std::ranges::copy_if(skylake_msrs, std::back_inserter(rows), predicate);
  return rows;
}
bool is_any(const MsrExpectation&) { return true; }
bool is_read_only(const MsrExpectation& m) { return m.access == MsrAccess::read_only; }
bool is_writable(const MsrExpectation& m) { return !is_read_only(m); }
bool is_address(const MsrExpectation& m) { return m.canonical; }
/// The values of addresses and of the counter alias at C1H have rules of their own.
bool is_plain(const MsrExpectation& m) { return is_writable(m) && !m.canonical && m.name != "IA32_PMC"; }
bool has_absent(const MsrExpectation& m) { return m.present < m.count; }
std::string name_of(const ::testing::TestParamInfo<MsrExpectation>& row) { return std::string{row.param.name}; }

INSTANTIATE_TEST_SUITE_P(Skylake, MsrLegality, ::testing::ValuesIn(rows_where(is_any)), name_of);
INSTANTIATE_TEST_SUITE_P(Skylake, WritableMsr, ::testing::ValuesIn(rows_where(is_writable)), name_of);
INSTANTIATE_TEST_SUITE_P(Skylake, PlainMsr, ::testing::ValuesIn(rows_where(is_plain)), name_of);
INSTANTIATE_TEST_SUITE_P(Skylake, ReadOnlyMsr, ::testing::ValuesIn(rows_where(is_read_only)), name_of);
INSTANTIATE_TEST_SUITE_P(Skylake, AddressMsr, ::testing::ValuesIn(rows_where(is_address)), name_of);
INSTANTIATE_TEST_SUITE_P(Skylake, CounterMsr, ::testing::ValuesIn(rows_where(has_absent)), name_of);

TEST(MsrTable, AnAddressOfNoRegisterIsUnknownAndNotAFault) {
  Pmu pmu{PmuConfig{}};
  for (std::uint32_t address = 0; address < 0x2000; ++address) {
    bool known = false;
    for (const MsrExpectation& m : skylake_msrs) known = known || address - m.first.value() < m.count;
    if (known) continue;
    EXPECT_EQ(pmu.rdmsr(MsrIndex{address}).status, MsrStatus::unknown) << std::hex << address;
    EXPECT_EQ(pmu.check_wrmsr(MsrIndex{address}, 0), MsrStatus::unknown) << std::hex << address;
    EXPECT_EQ(pmu.wrmsr(MsrIndex{address}, 0), MsrStatus::unknown) << std::hex << address;
  }
  EXPECT_EQ(pmu.rdmsr(MsrIndex{0xFFFF'FFFF}).status, MsrStatus::unknown);
  EXPECT_EQ(pmu.statistics().msr_writes + pmu.statistics().msr_faults, 0U);
}

/// The MSRs that were written, and what to.
struct WrittenMsrs final : TraceSink {
  void on(const TraceEvent& event) override {
    if (const auto* write = std::get_if<MsrWritten>(&event)) all.emplace_back(write->index, write->value);
  }
  std::vector<std::pair<MsrIndex, std::uint64_t>> all;
};

// Accesses by a FoundMsr have the same results as accesses by index.
TEST(FoundMsr, IsTheOneOfItsIndexOnEachGeneration) {
  for (const GenerationDesc* generation : all_generations()) {
    WrittenMsrs written;
    Pmu one{PmuConfig{.generation = generation->generation}};
    Pmu other{PmuConfig{.generation = generation->generation, .trace = &written}};
    for (std::uint32_t address = 0; address < 0x2000; ++address) {
      const MsrIndex index{address};
      const FoundMsr found = other.find(index);
      EXPECT_EQ(found.is_known(), one.rdmsr(index).status != MsrStatus::unknown) << std::hex << address;
      for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{5}, ~std::uint64_t{0}}) {
        ASSERT_EQ(other.check_wrmsr(found, value), one.check_wrmsr(index, value)) << std::hex << address;
        const MsrStatus status = other.wrmsr(found, value);
        ASSERT_EQ(status, one.wrmsr(index, value)) << std::hex << address;
        if (status == MsrStatus::ok) {
          EXPECT_EQ(written.all.back(), std::pair(index, value)) << std::hex << address;
        }
        const MsrReadResult read = one.rdmsr(index), read_found = other.rdmsr(found);
        EXPECT_EQ(read_found.status, read.status) << std::hex << address;
        EXPECT_EQ(read_found.value, read.value) << std::hex << address;
      }
    }
    EXPECT_TRUE(same_state(one.state(), other.state())) << generation->name;
    EXPECT_GT(written.all.size(), 50U) << generation->name;
    EXPECT_EQ(other.statistics().msr_faults, one.statistics().msr_faults) << generation->name;
  }
}

TEST(MsrTable, TrapRangesAreExactlyTheRegistersAscendingWithoutOverlap) {
  const MsrSpans spans = trap_ranges(describe(Generation::skylake));
  const Uncore uncore{*describe(Generation::skylake).uncore};
  std::size_t row = 0;
  std::uint32_t end = 0;
  for (const MsrSpan& span : spans.all()) {
    if (uncore.rdmsr(span.first).status != MsrStatus::unknown) continue;
    ASSERT_LT(row, skylake_msrs.size());
    EXPECT_GE(span.first.value(), end);
    EXPECT_EQ(span.first, skylake_msrs[row].first) << skylake_msrs[row].name;
    EXPECT_EQ(span.count, skylake_msrs[row].count) << skylake_msrs[row].name;
    end = span.first.value() + span.count;
    ++row;
  }
  EXPECT_EQ(row, skylake_msrs.size());
}

// SDM 3B 18.2.4: with eight counters bits 7:4 of the global registers exist.
TEST(MsrTable, GlobalRegistersCoverEightCountersWithoutSmt) {
  Pmu alone{PmuConfig{.smt = false}};
  expect_reads(alone, msr::IA32_PERF_GLOBAL_CTRL, 0xFF);
  ASSERT_EQ(alone.wrmsr(msr::IA32_PERF_GLOBAL_CTRL, 0x7'0000'00FF), MsrStatus::ok);
  expect_reads(alone, msr::IA32_PERF_GLOBAL_CTRL, 0x7'0000'00FF);
  expect_fault(alone, msr::IA32_PERF_GLOBAL_CTRL, 0x100);
  ASSERT_EQ(alone.wrmsr(msr::IA32_PERF_GLOBAL_STATUS_SET, 0x7'0000'00FF), MsrStatus::ok);
  expect_reads(alone, msr::IA32_PERF_GLOBAL_STATUS, 0x7'0000'00FF);
  ASSERT_EQ(alone.wrmsr(msr::IA32_PERF_GLOBAL_OVF_CTRL, 0xF0), MsrStatus::ok);
  expect_reads(alone, msr::IA32_PERF_GLOBAL_STATUS, 0x7'0000'000F);
}

// SDM 3C table 35-2: bits 11 and 12 say what is unavailable; a write that keeps them is legal, whatever they are.
TEST(MiscEnable, KeepingTheUnavailableBitsIsLegalAndChangingThemFaults) {
  Pmu without{PmuConfig{.misc_enable = 0x85'1889}};
  ASSERT_EQ(without.wrmsr(msr::IA32_MISC_ENABLE, 0x85'1889), MsrStatus::ok);
  for (const std::uint64_t change : {0x800U, 0x1000U, 0x1800U})
    expect_fault(without, msr::IA32_MISC_ENABLE, 0x85'1889 ^ change);
  expect_reads(without, msr::IA32_MISC_ENABLE, 0x85'1889);
}

// SDM 3C table 35-2: bit 7, performance monitoring available, is read only and ignores writes.
TEST(MiscEnable, PerfmonAvailableIgnoresWrites) {
  Pmu pmu{PmuConfig{}};
  ASSERT_EQ(pmu.wrmsr(msr::IA32_MISC_ENABLE, 0x85'0009), MsrStatus::ok);
  expect_reads(pmu, msr::IA32_MISC_ENABLE, 0x85'0089);
  static_assert((0x85'0009 & unavailable_bits) == 0);
}

}  // namespace

}  // namespace vpmu::test
