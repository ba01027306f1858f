#include "vpmu/pebs.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

// Layouts in memory: records of every format, and the DS management area.

namespace vpmu::test {
namespace {

constexpr std::array formats{PebsFormat::format0, PebsFormat::format1, PebsFormat::format2, PebsFormat::format3};

PebsRecord numbered() {
  PebsRecord r;
  for (unsigned i = 0; i < slot_count; ++i) r.value[i] = 0x0102'0304'0506'0000 + i;
  return r;
}

// SDM 3B tables 18-23, 18-44, 18-55.
TEST(PebsRecordLayout, SizesAreThoseOfTheManual) {
  EXPECT_EQ(record_size(PebsFormat::format0), 0x90U);
  EXPECT_EQ(record_size(PebsFormat::format1), 0xB0U);
  EXPECT_EQ(record_size(PebsFormat::format2), 0xC0U);
  EXPECT_EQ(record_size(PebsFormat::format3), 0xC8U);
}

TEST(PebsRecordLayout, FieldsLieAtTheOffsetsOfTheManual) {
  struct Row {
    Slot slot;
    std::size_t offset;
  };
  std::array<std::byte, max_record_size> bytes{};
  const PebsRecord record = numbered();
  encode(PebsFormat::format3, record, bytes);
  for (const Row& row : {Row{Slot::rflags, 0x00},  Row{Slot::rip, 0x08},          Row{Slot::rax, 0x10},
                         Row{Slot::rbx, 0x18},     Row{Slot::rcx, 0x20},          Row{Slot::rdx, 0x28},
                         Row{Slot::rsi, 0x30},     Row{Slot::rdi, 0x38},          Row{Slot::rbp, 0x40},
                         Row{Slot::rsp, 0x48},     Row{Slot::r8, 0x50},           Row{Slot::r9, 0x58},
                         Row{Slot::r10, 0x60},     Row{Slot::r11, 0x68},          Row{Slot::r12, 0x70},
                         Row{Slot::r13, 0x78},     Row{Slot::r14, 0x80},          Row{Slot::r15, 0x88},
                         Row{Slot::status, 0x90},  Row{Slot::data_address, 0x98}, Row{Slot::data_source, 0xA0},
                         Row{Slot::latency, 0xA8}, Row{Slot::eventing_ip, 0xB0},  Row{Slot::tx_abort_info, 0xB8},
                         Row{Slot::tsc, 0xC0}})
    for (unsigned i = 0; i < 8; ++i)
      EXPECT_EQ(std::to_integer<std::uint64_t>(bytes[row.offset + i]), (record[row.slot] >> (8 * i)) & 0xFF)
          << row.offset;
}

TEST(PebsRecordLayout, EncodingWritesExactlyTheFormatsBytes) {
  for (const PebsFormat format : formats) {
    std::array<std::byte, max_record_size + 8> bytes;
    bytes.fill(std::byte{0xEE});
    EXPECT_EQ(encode(format, numbered(), bytes), record_size(format));
    for (std::size_t i = record_size(format); i < bytes.size(); ++i) EXPECT_EQ(bytes[i], std::byte{0xEE});
  }
}

TEST(PebsRecordLayout, DecodingGivesBackTheFieldsOfTheFormatAndZeroForTheRest) {
  for (const PebsFormat format : formats) {
    std::array<std::byte, max_record_size> bytes{};
    encode(format, numbered(), bytes);
    const auto decoded = decode(format, bytes);
    ASSERT_TRUE(decoded);
    for (unsigned i = 0; i < slot_count; ++i)
      EXPECT_EQ(decoded->value[i], i < slots_of(format) ? numbered().value[i] : 0);
  }
}

TEST(PebsRecordLayout, DecodingRefusesShortInput) {
  for (const PebsFormat format : formats) {
    const std::vector<std::byte> bytes(record_size(format) - 1);
    EXPECT_FALSE(decode(format, bytes));
    EXPECT_FALSE(decode(format, {}));
  }
}

// SDM 3B figure 18-22.
TEST(DsAreaLayout, FieldsAreThoseOfTheManual) {
  std::array<std::byte, DsArea::pebs_bytes> bytes{};
  for (unsigned i = 0; i < DsArea::pebs_bytes / 8; ++i) bytes[8 * i] = static_cast<std::byte>(i + 1);
  const DsArea area = DsArea::decode(bytes);
  EXPECT_EQ(area.base.value(), 1U);
  EXPECT_EQ(area.index.value(), 2U);
  EXPECT_EQ(area.absolute_maximum.value(), 3U);
  EXPECT_EQ(area.interrupt_threshold.value(), 4U);
  EXPECT_EQ(area.counter_reset, (std::array<std::uint64_t, 4>{5, 6, 7, 8}));
}

}  // namespace
}  // namespace vpmu::test
