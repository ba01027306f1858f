#include "tables/records.hpp"
#include "command_line.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace vmm::tool::test {
namespace {

using vpmu::PebsFormat;

/// Records whose every field has its own offset as value, put together byte by byte, little endian. SDM 3B tables
/// 18-23, 18-44, 18-55.
std::vector<std::byte> records(unsigned bytes, unsigned count) {
  std::vector<std::byte> out(std::size_t{bytes} * count);
  for (unsigned record = 0; record < count; ++record)
    for (unsigned at = 0; at < bytes; at += 8) {
      out[record * bytes + at] = static_cast<std::byte>(at);
      out[record * bytes + at + 1] = static_cast<std::byte>(record + 1);
    }
  return out;
}

/// The listing of a buffer, whose file ends at `end`.
Result<std::string> list(PebsFormat format, const std::vector<std::byte>& buffer, std::size_t end = SIZE_MAX,
                         RecordListing listing = RecordListing::text) {
  std::string text;
  std::size_t at = 0;
  const auto read = [&](std::span<std::byte> room) -> Result<std::size_t> {
    const auto part = std::span{buffer}.first(std::min(end, buffer.size())).subspan(at);
    const auto given = part.first(std::min(part.size(), room.size()));
    std::ranges::copy(given, room.begin());
    at += given.size();
    return given.size();
  };
  const auto print_text = [&text](std::string_view more) {
    text += more;
    return true;
  };
  const auto listed = list_records(format, buffer.size(), read, print_text, listing);
  if (!listed) return Failure{listed.error()};
  return text;
}

std::string line_of(PebsFormat format, unsigned bytes) {
  const auto text = list(format, records(bytes, 1));
  EXPECT_TRUE(text.has_value());
  return text.value_or("");
}

constexpr std::string_view registers =
    "0: rflags 0x100 rip 0x108 rax 0x110 rbx 0x118 rcx 0x120 rdx 0x128 rsi 0x130 rdi 0x138 rbp 0x140 rsp 0x148 r8 "
    "0x150 r9 0x158 r10 0x160 r11 0x168 "
    "r12 0x170 r13 0x178 r14 0x180 r15 0x188";

TEST(Records, OfEachFormatHaveItsFieldsAtTheirOffsets) {
  EXPECT_EQ(line_of(PebsFormat::format0, 0x90), std::string{registers} + "\n");
  EXPECT_EQ(line_of(PebsFormat::format1, 0xB0),
            std::string{registers} + " global_status 0x190 data_address 0x198 data_source 0x1a0 latency 0x1a8\n");
  EXPECT_EQ(line_of(PebsFormat::format2, 0xC0), std::string{registers} +
                                                    " global_status 0x190 data_address 0x198 data_source 0x1a0 latency "
                                                    "0x1a8 eventing_ip 0x1b0 tx_abort_info 0x1b8\n");
  EXPECT_EQ(line_of(PebsFormat::format3, 0xC8), std::string{registers} +
                                                    " applicable_counters 0x190 data_address 0x198 data_source 0x1a0 "
                                                    "latency 0x1a8 eventing_ip 0x1b0 tx_abort_info 0x1b8 tsc 0x1c0\n");
}

TEST(Records, AreNumbered) {
  const auto text = list(PebsFormat::format0, records(0x90, 3000));
  ASSERT_TRUE(text.has_value());
  EXPECT_EQ(std::ranges::count(*text, '\n'), 3000);
  EXPECT_NE(text->find("\n2999: rflags "), std::string::npos);
  EXPECT_NE(text->find("\n2: rflags 0x300 rip 0x308 "), std::string::npos);
}

// 64-bit values are written exactly, although some JSON readers turn them into doubles.
TEST(Records, AreJsonLines) {
  auto buffer = records(0xC8, 2);
  std::ranges::fill(std::span{buffer}.subspan(0xC8 + 0x98, 8), std::byte{0xFF});
  const auto text = list(PebsFormat::format3, buffer, SIZE_MAX, RecordListing::json);
  ASSERT_TRUE(text.has_value());
  ASSERT_EQ(std::ranges::count(*text, '\n'), 2);
  const auto second = nlohmann::json::parse(text->substr(text->find('\n') + 1));
  EXPECT_EQ(second["record"], 1);
  EXPECT_EQ(second["rip"], 0x208);
  EXPECT_EQ(second["applicable_counters"], 0x290);
  EXPECT_EQ(second["data_address"], UINT64_MAX);
  EXPECT_EQ(second["tsc"], 0x2C0);
  EXPECT_EQ(second.size(), 1U + 25U);
}

TEST(Records, OfAnotherSizeAreRefused) {
  for (const std::size_t bytes : {0U, 0x8FU, 0x91U, 0x90U + 0xB0U}) {
    const auto text = list(PebsFormat::format0, std::vector<std::byte>(bytes));
    ASSERT_FALSE(text.has_value()) << bytes;
    EXPECT_EQ(text.error().kind, ErrorKind::usage);
    EXPECT_NE(text.error().what.find(std::to_string(bytes) +
                                     " bytes are not a whole number of records of format 0, which have 144 bytes each"),
              std::string::npos)
        << text.error().what;
  }
}

TEST(Records, EndWithAnErrorWhereTheFileDoes) {
  const auto text = list(PebsFormat::format0, records(0x90, 3), 0x90 + 1);
  ASSERT_FALSE(text.has_value());
  EXPECT_NE(text.error().what.find("shortened from 432 to 145 bytes"), std::string::npos) << text.error().what;
}

class RecordsCommand : public testing::Test {
 protected:
  RecordsCommand() {
    const auto bytes = records(0xB0, 2);
    std::ofstream{file_, std::ios::binary}.write(reinterpret_cast<const char*>(bytes.data()),
                                                 static_cast<std::streamsize>(bytes.size()));
    add_records(app_, exit_code_);
  }
  void TearDown() override { std::filesystem::remove(file_); }

  std::string file_{std::filesystem::temp_directory_path() / ("vpmu-records-" + std::to_string(::getpid()))};
  CommandLine app_{"", "vpmu"};
  int exit_code_{-1};
};

TEST_F(RecordsCommand, ShowsAFile) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(app_.parse("records --format 1 " + file_).kind, ParseOutcome::Kind::parsed);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), list(PebsFormat::format1, records(0xB0, 2)).value_or(""));
  EXPECT_EQ(exit_code_, 0);
}

TEST_F(RecordsCommand, ExplainsWhatItCannotShow) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(app_.parse("records --format 3 " + file_).kind, ParseOutcome::Kind::parsed);
  EXPECT_NE(testing::internal::GetCapturedStderr().find(
                "vpmu records: 352 bytes are not a whole number of records of format 3"),
            std::string::npos);
  EXPECT_EQ(exit_code_, 2);
  // The rest of the message depends on the version of CLI11.
  EXPECT_TRUE(app_.parse("records --format 4 " + file_).message.starts_with("--format: 4 is not a number from "));
}

}  // namespace
}  // namespace vmm::tool::test
