#include "vpmu/paging.hpp"

#include <gtest/gtest.h>

#include "paging_tables.hpp"

// What every paging mode has in common. SDM 3A 4.6 to 4.8.

namespace vpmu::test {
namespace {

using enum PagingAccess;
using enum PagingPrivilege;
namespace pf = page_fault_error;

class EveryMode : public testing::TestWithParam<TableShape> {
 protected:
  Tables tables{GetParam()};
  bool reports_fetch() const { return GetParam().has_execute_disable; }
};

INSTANTIATE_TEST_SUITE_P(Paging, EveryMode, testing::ValuesIn(all_shapes()),
                         [](const auto& param_info) { return param_info.param.name; });

TEST_P(EveryMode, FindsTheByteWithOneReadPerLevel) {
  EXPECT_TRUE(tables.reaches_frame());
  EXPECT_EQ(tables.memory.reads, GetParam().levels.size());
  EXPECT_LE(tables.memory.reads, 5U);
}

TEST_P(EveryMode, ReportsAnAbsentEntryOfAnyLevelWithPClear) {
  for (std::size_t i = 0; i < tables.depth(); ++i) {
    Tables cut{GetParam()};
    cut.remove(i, P);
    EXPECT_EQ(cut.error_code(read), 0U) << "level " << i;
    EXPECT_EQ(cut.error_code(write), pf::W) << "level " << i;
    EXPECT_EQ(cut.error_code(write, user), pf::W | pf::U) << "level " << i;
    EXPECT_EQ(cut.error_code(execute, user), pf::U | (reports_fetch() ? pf::I : 0)) << "level " << i;
  }
}

TEST_P(EveryMode, IgnoresReservedBitsOfAnAbsentEntry) {
  tables.set(tables.last(), ~P);
  EXPECT_EQ(tables.error_code(), 0U);
}

TEST_P(EveryMode, KeepsUsersOutUnlessEveryLevelLetsThemIn) {
  EXPECT_TRUE(tables.reaches_frame(read, user));
  for (std::size_t i = tables.first_with_attributes(); i < tables.depth(); ++i) {
    Tables supervisor_only{GetParam()};
    supervisor_only.remove(i, US);
    EXPECT_EQ(supervisor_only.error_code(read, user), pf::P | pf::U) << "level " << i;
    EXPECT_TRUE(supervisor_only.reaches_frame(read)) << "level " << i;
  }
}

TEST_P(EveryMode, RefusesUserWritesUnlessEveryLevelAllowsThem) {
  EXPECT_TRUE(tables.reaches_frame(write, user));
  for (std::size_t i = tables.first_with_attributes(); i < tables.depth(); ++i) {
    for (const std::uint64_t cr0 : {PG | PE | WP, PG | PE}) {
      Tables read_only{GetParam()};
      read_only.state().cr0 = cr0;
      read_only.remove(i, RW);
      EXPECT_EQ(read_only.error_code(write, user), pf::P | pf::W | pf::U) << "level " << i;
      EXPECT_TRUE(read_only.reaches_frame(read, user)) << "level " << i;
    }
  }
}

TEST_P(EveryMode, RefusesSupervisorWritesToReadOnlyPagesOnlyUnderWriteProtect) {
  for (std::size_t i = tables.first_with_attributes(); i < tables.depth(); ++i) {
    Tables read_only{GetParam()};
    read_only.remove(i, RW);
    EXPECT_EQ(read_only.error_code(write), pf::P | pf::W) << "level " << i;
    read_only.state().cr0 &= ~WP;
    EXPECT_TRUE(read_only.reaches_frame(write)) << "level " << i;
  }
}

TEST_P(EveryMode, RefusesSupervisorFetchesFromUserPagesUnderSmep) {
  EXPECT_TRUE(tables.reaches_frame(execute));
  tables.state().cr4 |= SMEP;
  EXPECT_EQ(tables.error_code(execute), pf::P | pf::I);
  EXPECT_TRUE(tables.reaches_frame(execute, user));
  EXPECT_TRUE(tables.reaches_frame(read));
  tables.remove(tables.last(), US);
  EXPECT_TRUE(tables.reaches_frame(execute));
}

TEST_P(EveryMode, RefusesSupervisorDataInUserPagesUnderSmapUnlessAcIsSet) {
  tables.state().cr4 |= SMAP;
  EXPECT_EQ(tables.error_code(read), pf::P);
  EXPECT_EQ(tables.error_code(write), pf::P | pf::W);
  tables.state().cr0 &= ~WP;
  EXPECT_EQ(tables.error_code(write), pf::P | pf::W);
  EXPECT_TRUE(tables.reaches_frame(execute));
  EXPECT_TRUE(tables.reaches_frame(write, user));
  tables.state().alignment_check = true;
  EXPECT_TRUE(tables.reaches_frame(read));
  EXPECT_TRUE(tables.reaches_frame(write));
  tables.state().alignment_check = false;
  tables.remove(tables.last(), US);
  EXPECT_TRUE(tables.reaches_frame(write));
}

TEST_P(EveryMode, ReportsATableOutsideRamAndWhichEntry) {
  for (std::size_t i = 0; i + 1 < tables.depth(); ++i) {
    Tables astray{GetParam()};
    const std::uint64_t hole = 0x40'0000;
    astray.set(i, hole | P | (i >= astray.first_with_attributes() ? RW | US : 0));
    const std::uint64_t entry = astray.entry_at(i + 1) - Tables::table(i + 1) + hole;
    EXPECT_EQ(astray.walk(), Walk{BadTable{GuestPhysical{entry}}}) << "level " << i;
  }
  Tables rootless{GetParam()};
  rootless.state().cr3 = 0x40'0000;
  EXPECT_TRUE(std::holds_alternative<BadTable>(rootless.walk()));
}

TEST_P(EveryMode, IgnoresTheLowBitsOfCr3) {
  tables.state().cr3 |= 0x18;  // PWT and PCD.
  EXPECT_TRUE(tables.reaches_frame());
}

TEST_P(EveryMode, LeavesAccessedAndDirtyAloneWhenAskedTo) {
  EXPECT_TRUE(tables.reaches_frame(write));
  EXPECT_EQ(tables.memory.exchanges, 0U);
}

TEST_P(EveryMode, SetsAccessedAtEveryLevelAndDirtyAtThePageOfAWrite) {
  for (const PagingAccess access : {read, write, execute}) {
    Tables fresh{GetParam()};
    ASSERT_TRUE(std::holds_alternative<Mapped>(fresh.walk(access, supervisor, AccessedDirty::set)));
    for (std::size_t i = 0; i < fresh.depth(); ++i) {
      const bool is_dirty = access == write && i == fresh.last();
      const std::uint64_t expected = i < fresh.first_with_attributes() ? 0 : A | (is_dirty ? D : 0);
      EXPECT_EQ(fresh.get(i) & (A | D), expected) << "level " << i;
    }
    const unsigned exchanges = fresh.memory.exchanges;
    (void)fresh.walk(access, supervisor, AccessedDirty::set);
    EXPECT_EQ(fresh.memory.exchanges, exchanges) << "nothing is left to set";
  }
}

TEST_P(EveryMode, ChangesNothingWhenTheAccessFaults) {
  tables.remove(tables.last(), US);
  ASSERT_TRUE(std::holds_alternative<PageFault>(tables.walk(write, user, AccessedDirty::set)));
  EXPECT_EQ(tables.memory.exchanges, 0U);
}

TEST_P(EveryMode, KeepsTheFlagsThatAnotherCpuSetsMeanwhile) {
  tables.memory.before_exchange = [this](GuestPhysical) { tables.add(tables.last(), A); };
  ASSERT_TRUE(std::holds_alternative<Mapped>(tables.walk(write, supervisor, AccessedDirty::set)));
  EXPECT_EQ(tables.get(tables.last()) & (A | D), A | D);
  EXPECT_EQ(tables.memory.reads, tables.depth() + 1) << "only the entry that changed is read again";
}

TEST_P(EveryMode, WalksAgainWhenAnotherCpuRemapsThePageMeanwhile) {
  tables.memory.before_exchange = [this](GuestPhysical) {
    tables.set(tables.last(), 0x7000 | P | RW | US | (tables.get(tables.last()) & (A | D)));
  };
  const Walk result = tables.walk(write, supervisor, AccessedDirty::set);
  ASSERT_TRUE(std::holds_alternative<Mapped>(result));
  EXPECT_EQ(std::get<Mapped>(result).address.value(), 0x7000 | (GetParam().linear & 0xfff));
}

TEST_P(EveryMode, FaultsWhenAnotherCpuUnmapsThePageMeanwhile) {
  tables.memory.before_exchange = [this](GuestPhysical) { tables.set(tables.last(), 0); };
  const Walk result = tables.walk(write, supervisor, AccessedDirty::set);
  ASSERT_TRUE(std::holds_alternative<PageFault>(result));
  EXPECT_EQ(std::get<PageFault>(result).error_code, pf::W);
}

TEST_P(EveryMode, GivesUpOnTablesThatNeverHoldStill) {
  std::uint64_t turn = 0;
  tables.memory.before_exchange = [&](GuestPhysical) {
    tables.set(tables.last(), ((++turn % 2 + 1) << 12) | P | RW | US);
  };
  const Walk result = tables.walk(write, supervisor, AccessedDirty::set);
  EXPECT_EQ(result, Walk{Contended{GuestPhysical{tables.entry_at(tables.last())}}});
  EXPECT_LE(tables.memory.reads, 16U * 16U * 6U);
}

TEST_P(EveryMode, GivesUpOnTablesInReadOnlyMemory) {
  tables.memory.is_read_only = true;
  EXPECT_TRUE(std::holds_alternative<Contended>(tables.walk(read, supervisor, AccessedDirty::set)));
  EXPECT_TRUE(std::holds_alternative<Mapped>(tables.walk(read, supervisor, AccessedDirty::leave)));
}

/// The modes with 64-bit entries: addresses up to 52 bits, and execute-disable.
class EveryWideMode : public EveryMode {};

INSTANTIATE_TEST_SUITE_P(Paging, EveryWideMode, testing::Values(pae_shape(), four_level_shape(), five_level_shape()),
                         [](const auto& param_info) { return param_info.param.name; });

TEST_P(EveryWideMode, ReportsAddressBitsBeyondThePhysicalWidthAsReserved) {
  for (const unsigned width : {36U, 39U, 46U, 51U}) {
    for (std::size_t i = 0; i < tables.depth(); ++i) {
      Tables wide{GetParam()};
      wide.state().physical_width = static_cast<std::uint8_t>(width);
      wide.add(i, bit(width));
      EXPECT_EQ(wide.error_code(write, user), pf::P | pf::RSVD | pf::W | pf::U) << "level " << i << " width " << width;
      wide.state().physical_width = static_cast<std::uint8_t>(width + 1);
      EXPECT_FALSE(std::holds_alternative<PageFault>(wide.walk())) << "level " << i << " width " << width;
    }
  }
}

TEST_P(EveryWideMode, AppliesExecuteDisableOnlyWhenEnabledAndReservesItOtherwise) {
  for (std::size_t i = tables.first_with_attributes(); i < tables.depth(); ++i) {
    Tables no_execute{GetParam()};
    no_execute.add(i, XD);
    EXPECT_TRUE(no_execute.reaches_frame(read)) << "level " << i;
    EXPECT_EQ(no_execute.error_code(execute), pf::P | pf::I) << "level " << i;
    EXPECT_EQ(no_execute.error_code(execute, user), pf::P | pf::I | pf::U) << "level " << i;
    no_execute.state().efer &= ~NXE;
    EXPECT_EQ(no_execute.error_code(read), pf::P | pf::RSVD) << "level " << i;
    EXPECT_EQ(no_execute.error_code(execute), pf::P | pf::RSVD) << "level " << i << ": no I without NXE and SMEP";
  }
}

TEST_P(EveryWideMode, ReportsAReservedBitRatherThanAMissingRight) {
  tables.remove(tables.last(), US);
  tables.add(tables.last(), bit(51));
  EXPECT_EQ(tables.error_code(read, user), pf::P | pf::RSVD | pf::U);
}

}  // namespace
}  // namespace vpmu::test
