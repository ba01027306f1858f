#include <gtest/gtest.h>

#include "paging_tables.hpp"
#include "vpmu/paging.hpp"

// What only one paging mode has: large pages, reserved bits, canonical addresses. SDM 3A 4.3 to 4.5.

namespace vpmu::test {
namespace {

using enum PagingAccess;
using enum PagingPrivilege;
namespace pf = page_fault_error;

constexpr std::uint64_t open_page = P | RW | US | PS;

Walk mapped(std::uint64_t address, std::uint64_t page_bytes) { return Mapped{GuestPhysical{address}, page_bytes}; }

TEST(NoPaging, MapsEveryAddressToItself) {
  TableMemory memory{0};
  const PagingState state{.cr0 = PE};
  EXPECT_EQ(translate(state, memory, GuestLinear{0xfee0'0123}, write, user, AccessedDirty::set),
            mapped(0xfee0'0123, page_size));
  EXPECT_EQ(memory.reads, 0U);
}

TEST(NoPaging, IgnoresAddressBits63To32) {
  TableMemory memory{0};
  EXPECT_EQ(translate({.cr0 = PE}, memory, GuestLinear{0x1'0000'2000}, read, supervisor, AccessedDirty::leave),
            mapped(0x2000, page_size));
}

TEST(LegacyPaging, MapsFourMebibytePagesUnderPse) {
  Tables tables{legacy_pse_shape()};
  tables.set(0, 0x0040'0000 | open_page);
  EXPECT_EQ(tables.walk(), mapped(0x0040'0000 | (tables.shape().linear & 0x3f'ffff), 4 << 20));
  EXPECT_EQ(tables.memory.reads, 1U);
}

TEST(LegacyPaging, SetsDirtyInTheDirectoryEntryOfAFourMebibytePage) {
  Tables tables{legacy_pse_shape()};
  tables.set(0, 0x0040'0000 | open_page);
  (void)tables.walk(write, supervisor, AccessedDirty::set);
  EXPECT_EQ(tables.get(0), 0x0040'0000 | open_page | A | D);
}

TEST(LegacyPaging, IgnoresPsWithoutPse) {
  Tables tables{legacy_shape()};
  tables.add(0, PS);
  EXPECT_TRUE(tables.reaches_frame());
}

TEST(LegacyPaging, TakesAddressBits39To32OfPse36FromBits20To13) {
  Tables tables{legacy_pse_shape()};
  tables.state().physical_width = 40;
  tables.set(0, 0x0040'0000 | (0xabULL << 13) | open_page);
  EXPECT_EQ(tables.walk(), mapped(0xab'0040'0000 | (tables.shape().linear & 0x3f'ffff), 4 << 20));
}

TEST(LegacyPaging, ReservesPse36BitsBeyondThePhysicalWidth) {
  for (unsigned width = 32; width <= 40; ++width) {
    Tables tables{legacy_pse_shape()};
    tables.state().physical_width = static_cast<std::uint8_t>(width);
    for (unsigned b = 13; b <= 20; ++b) {
      tables.set(0, 0x0040'0000 | bit(b) | open_page);
      const bool is_reserved = b - 13 + 32 >= width;
      EXPECT_EQ(tables.error_code() == (pf::P | pf::RSVD), is_reserved) << "bit " << b << " width " << width;
    }
  }
}

TEST(LegacyPaging, ReservesBit21OfAFourMebibytePage) {
  Tables tables{legacy_pse_shape()};
  tables.state().physical_width = 52;
  tables.set(0, 0x0040'0000 | bit(21) | open_page);
  EXPECT_EQ(tables.error_code(write, user), pf::P | pf::RSVD | pf::W | pf::U);
}

TEST(LegacyPaging, IgnoresAddressBits63To32) {
  Tables tables{legacy_shape()};
  const GuestLinear beyond{tables.shape().linear | 0x1234'0000'0000'0000};
  EXPECT_EQ(translate(tables.state(), tables.memory, beyond, read, supervisor, AccessedDirty::leave),
            mapped(Tables::frame | (tables.shape().linear & 0xfff), page_size));
  tables.set(1, 0);
  EXPECT_EQ(translate(tables.state(), tables.memory, beyond, read, supervisor, AccessedDirty::leave),
            (Walk{PageFault{GuestLinear{tables.shape().linear}, 0}}));
}

TEST(LegacyPaging, ReportsFetchesUnderSmep) {
  Tables tables{legacy_shape()};
  tables.set(1, 0);
  EXPECT_EQ(tables.error_code(execute), 0U);
  tables.state().efer = NXE;
  EXPECT_EQ(tables.error_code(execute), 0U) << "NXE has no effect without PAE";
  tables.state().cr4 |= SMEP;
  EXPECT_EQ(tables.error_code(execute), pf::I);
}

TEST(PaePaging, FindsItsRootAtA32ByteBoundary) {
  Tables tables{pae_shape()};
  tables.memory.poke(0x1000 + 0x20 + 3 * 8, tables.get(0), 8);
  tables.set(0, 0);
  tables.state().cr3 = 0x1020;
  EXPECT_TRUE(tables.reaches_frame());
}

TEST(PaePaging, ReservesBitsOfThePdpte) {
  const std::uint64_t reserved = low_bits(64) & ~low_bits(39);
  for (unsigned b = 1; b < 64; ++b) {
    Tables tables{pae_shape()};
    if (b >= 12 && b < 39) continue;  // The table's address.
    tables.add(0, bit(b));
    const bool is_reserved = b == 1 || b == 2 || (b >= 6 && b <= 8) || (reserved & bit(b)) != 0;
    EXPECT_EQ(tables.error_code() == (pf::P | pf::RSVD), is_reserved) << "bit " << b;
  }
}

// QEMU's TCG sets it; a guest there must not lose its DS area.
TEST(PaePaging, AcceptsAnAccessedBitInThePdpte) {
  Tables tables{pae_shape()};
  tables.add(0, A);
  EXPECT_TRUE(tables.reaches_frame());
}

TEST(PaePaging, ReservesBits62To52BelowThePdpte) {
  for (std::size_t level = 1; level <= 2; ++level) {
    for (unsigned b = 52; b <= 62; ++b) {
      Tables tables{pae_shape()};
      tables.add(level, bit(b));
      EXPECT_EQ(tables.error_code(), pf::P | pf::RSVD) << "level " << level << " bit " << b;
    }
  }
}

TEST(PaePaging, ReservesBits62To52OfATwoMebibytePage) {
  for (unsigned b = 52; b <= 62; ++b) {
    Tables tables{pae_shape()};
    tables.set(1, 0x4000'0000 | bit(b) | open_page);
    EXPECT_EQ(tables.error_code(), pf::P | pf::RSVD) << "bit " << b;
  }
}

/// A level of a mode whose entries can map a page, and the page's size.
struct LargePage {
  std::string name;
  TableShape shape;
  std::size_t level{};
  unsigned page_bits{};
};

class LargePages : public testing::TestWithParam<LargePage> {
 protected:
  Tables tables{GetParam().shape};
};

INSTANTIATE_TEST_SUITE_P(Paging, LargePages,
                         testing::Values(LargePage{"PaeTwoMebibytes", pae_shape(), 1, 21},
                                         LargePage{"FourLevelTwoMebibytes", four_level_shape(), 2, 21},
                                         LargePage{"FourLevelOneGibibyte", four_level_shape(), 1, 30},
                                         LargePage{"FiveLevelTwoMebibytes", five_level_shape(), 3, 21},
                                         LargePage{"FiveLevelOneGibibyte", five_level_shape(), 2, 30}),
                         [](const auto& param_info) { return param_info.param.name; });

TEST_P(LargePages, MapTheWholePage) {
  const std::uint64_t frame = 0x1'4000'0000;
  tables.set(GetParam().level, frame | open_page);
  EXPECT_EQ(tables.walk(),
            mapped(frame | (tables.shape().linear & low_bits(GetParam().page_bits)), bit(GetParam().page_bits)));
  EXPECT_EQ(tables.memory.reads, GetParam().level + 1);
}

TEST_P(LargePages, SetDirtyInTheEntryThatMapsThem) {
  tables.set(GetParam().level, 0x4000'0000 | open_page);
  (void)tables.walk(write, supervisor, AccessedDirty::set);
  EXPECT_EQ(tables.get(GetParam().level), 0x4000'0000 | open_page | A | D);
}

TEST_P(LargePages, ReserveTheBitsBetweenPatAndTheFrame) {
  for (unsigned b = 12; b < GetParam().page_bits; ++b) {
    tables.set(GetParam().level, 0x4000'0000 | bit(b) | open_page);
    const bool is_reserved = b != 12;  // Bit 12 is PAT.
    EXPECT_EQ(tables.error_code(execute, user) == (pf::P | pf::RSVD | pf::I | pf::U), is_reserved) << "bit " << b;
    EXPECT_EQ(std::holds_alternative<Mapped>(tables.walk(execute, user)), !is_reserved) << "bit " << b;
  }
}

TEST_P(LargePages, TakeNoAddressBitFromPat) {
  tables.set(GetParam().level, 0x4000'0000 | bit(12) | open_page);
  EXPECT_EQ(tables.walk(),
            mapped(0x4000'0000 | (tables.shape().linear & low_bits(GetParam().page_bits)), bit(GetParam().page_bits)));
}

TEST_P(LargePages, ReserveFrameBitsBeyondThePhysicalWidth) {
  tables.set(GetParam().level, bit(39) | open_page);
  EXPECT_EQ(tables.error_code(), pf::P | pf::RSVD);
  tables.state().physical_width = 40;
  EXPECT_TRUE(std::holds_alternative<Mapped>(tables.walk()));
}

TEST_P(LargePages, KeepTheRightsOfTheTablesAboveThem) {
  tables.set(GetParam().level, 0x4000'0000 | open_page);
  if (GetParam().level == tables.first_with_attributes()) {
    tables.remove(GetParam().level, RW);
  } else {
    tables.remove(tables.first_with_attributes(), RW);
  }
  EXPECT_EQ(tables.error_code(write), pf::P | pf::W);
}

TEST(LongPaging, ReservesPsAboveTheDirectoryPointerTable) {
  Tables four{four_level_shape()};
  four.add(0, PS);
  EXPECT_EQ(four.error_code(), pf::P | pf::RSVD);
  for (std::size_t level = 0; level < 2; ++level) {
    Tables five{five_level_shape()};
    five.add(level, PS);
    EXPECT_EQ(five.error_code(), pf::P | pf::RSVD) << "level " << level;
  }
}

TEST(LongPaging, ReservesPsOfADirectoryPointerWhenTheCpuHasNoGigabytePages) {
  Tables tables{four_level_shape()};
  tables.set(1, 0x4000'0000 | open_page);
  tables.state().gigabyte_pages = false;
  EXPECT_EQ(tables.error_code(), pf::P | pf::RSVD);
}

TEST(LongPaging, IgnoresTheSoftwareBits62To52) {
  Tables tables{four_level_shape()};
  for (std::size_t level = 0; level < tables.depth(); ++level)
    tables.add(level, Bits<62, 52>::mask | Bits<11, 9>::mask);
  EXPECT_TRUE(tables.reaches_frame(execute, user));
}

// SDM 3A 4.10.2.4.
TEST_P(LargePages, AreGlobalByTheirOwnEntryWithPge) {
  constexpr std::uint64_t global = bit(8);
  const auto is_global = [&] { return std::get<Mapped>(tables.walk()).global; };
  tables.set(GetParam().level, 0x4000'0000 | open_page | global);
  EXPECT_FALSE(is_global());
  tables.state().cr4 |= bit(7);
  EXPECT_TRUE(is_global());
  tables.set(GetParam().level, 0x4000'0000 | open_page);
  EXPECT_FALSE(is_global());
  if (GetParam().name == "PaeTwoMebibytes") return;  // above is a PDPTE, whose bit 8 is reserved
  tables.set(GetParam().level - 1, tables.get(GetParam().level - 1) | global);
  EXPECT_FALSE(is_global()) << "the entry of a table has no such bit";
}

TEST(LongPaging, IgnoresThePcidInCr3) {
  Tables tables{four_level_shape()};
  tables.state().cr4 |= bit(17);
  tables.state().cr3 |= 0xabc | bit(63);
  EXPECT_TRUE(tables.reaches_frame());
}

TEST(LongPaging, RefusesAddressesThatAreNotCanonical) {
  Tables four{four_level_shape()};
  Tables five{five_level_shape()};
  const auto is_refused = [](Tables& t, std::uint64_t at) {
    return translate(t.state(), t.memory, GuestLinear{at}, read, supervisor, AccessedDirty::leave) ==
           Walk{NonCanonical{}};
  };
  for (const std::uint64_t inside : {0x0000'7fff'ffff'ffffULL, 0xffff'8000'0000'0000ULL}) {
    EXPECT_FALSE(is_refused(four, inside));
    EXPECT_FALSE(is_refused(five, inside));
  }
  for (const std::uint64_t between : {0x0000'8000'0000'0000ULL, 0xffff'7fff'ffff'ffffULL}) {
    EXPECT_TRUE(is_refused(four, between));
    EXPECT_FALSE(is_refused(five, between));
  }
  for (const std::uint64_t outside : {0x0100'0000'0000'0000ULL, 0xfeff'ffff'ffff'ffffULL}) {
    EXPECT_TRUE(is_refused(four, outside));
    EXPECT_TRUE(is_refused(five, outside));
  }
}

TEST(LongPaging, SetsDirtyThroughATableThatMapsItself) {
  // One entry serves as all four levels: setting A for the first level must not make the last one lose D.
  Tables tables{four_level_shape()};
  tables.memory.poke(0x1ff8, 0x1000 | P | RW, 8);
  const GuestLinear self{0xffff'ffff'ffff'f000};
  EXPECT_EQ(translate(tables.state(), tables.memory, self, write, supervisor, AccessedDirty::set),
            mapped(0x1000, page_size));
  EXPECT_EQ(tables.memory.peek(0x1ff8, 8), 0x1000 | P | RW | A | D);
}

TEST(LongPaging, ClampsAnAbsurdPhysicalWidth) {
  Tables tables{four_level_shape()};
  for (const std::uint8_t width : {std::uint8_t{0}, std::uint8_t{255}}) {
    tables.state().physical_width = width;
    EXPECT_TRUE(tables.reaches_frame());
  }
}

}  // namespace
}  // namespace vpmu::test
