#include "exec/control_lines.hpp"

#include <gtest/gtest.h>

namespace vmm::tool {
namespace {

std::string without_newline(std::string line) {
  EXPECT_EQ(line.back(), '\n');
  line.pop_back();
  return line;
}

TEST(ControlLines, OfTheHostAreReadAsTheyWereWritten) {
  for (const HostLine& line : std::initializer_list<HostLine>{SignalLine{2}, WindowLine{{50, 132}}, WindowLine{{0, 0}},
                                                              EofLine{}, EofLine{0}, EofLine{UINT64_MAX}, OffLine{}}) {
    const std::string text = without_newline(write_line(line));
    const auto read = read_host_line(text);
    ASSERT_TRUE(read) << text;
    EXPECT_EQ(*read, line) << text;
  }
}

TEST(ControlLines, OfTheGuestAreReadAsTheyWereWritten) {
  for (const GuestLine& line :
       std::initializer_list<GuestLine>{ReadyLine{}, StartedLine{}, WrittenLine{1, UINT64_MAX}, ExitLine{0},
                                        ExitLine{255}, KilledLine{9}, ErrorLine{"mounting x: no"}}) {
    const std::string text = without_newline(write_line(line));
    const auto read = read_guest_line(text);
    ASSERT_TRUE(read) << text;
    EXPECT_EQ(*read, line) << text;
  }
}

TEST(ControlLines, ThatNobodySaysAreRefused) {
  for (const char* const text :
       {"", "signal", "signal 0", "signal -2", "signal 65", "signal 2 ", "signal  2", "window 1", "window 1 65536",
        "window 1 2 3", "eof ", "eof x", "eof 18446744073709551616", "off 1", "offer", "signals 2", "started"})
    EXPECT_FALSE(read_host_line(text)) << text;
  for (const char* const text : {"", "ready now", "started now", "written", "written 1", "written 1 -1", "exit",
                                 "exit 256", "exit -1", "exit 1x", "killed 0", "killed 65", "error", "off"})
    EXPECT_FALSE(read_guest_line(text)) << text;
}

TEST(ControlLines, AnErrorStaysOnOneLineThatIsNotTooLong) {
  const std::string text = write_line(ErrorLine{"one\ntwo\r" + std::string(10'000, 'x')});
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  EXPECT_LE(text.size(), LineBuffer::max_line_length);
  EXPECT_TRUE(text.starts_with("error one?two?xxx"));
}

TEST(ControlLines, AreCutWhereverTheyArriveInParts) {
  LineBuffer buffer;
  EXPECT_EQ(buffer.take_line(), std::nullopt);
  buffer.add("sig");
  EXPECT_EQ(buffer.take_line(), std::nullopt);
  buffer.add("nal 2\n\neof\no");
  EXPECT_EQ(buffer.take_line(), "signal 2");
  EXPECT_EQ(buffer.take_line(), "");
  EXPECT_EQ(buffer.take_line(), "eof");
  EXPECT_EQ(buffer.take_line(), std::nullopt);
}

TEST(ControlLines, ThatNeverEndAreDropped) {
  LineBuffer buffer;
  buffer.add(std::string(LineBuffer::max_line_length + 1, 'x'));
  EXPECT_EQ(buffer.take_line(), std::nullopt);
  buffer.add("off\n");
  EXPECT_EQ(buffer.take_line(), "off");
}

}  // namespace
}  // namespace vmm::tool
