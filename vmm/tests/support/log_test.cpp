// A guest can cause most messages without end: what reaches the user is bounded, and what does not is counted.
#include "support/log.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace vmm {
namespace {

struct Heard {
  std::vector<std::string> lines;
  Log log{[this](LogLevel level, std::string_view line) {
            lines.push_back(std::string{name_of(level)} + ": " + std::string{line});
          },
          LogLevel::info};
};

TEST(Log, ShowsTheFirstOfAKindAtOnce) {
  Heard heard;
  for (unsigned n = 0; n < Log::max_of_a_kind; ++n) heard.log.warning("device {} is broken", n);
  ASSERT_EQ(heard.lines.size(), Log::max_of_a_kind);
  EXPECT_EQ(heard.lines.front(), "warning: device 0 is broken");
  EXPECT_EQ(heard.lines.back(), "warning: device 9 is broken");
  EXPECT_EQ(heard.log.held_back(), 0U);
  heard.log.tell_held_back();
  EXPECT_EQ(heard.lines.size(), Log::max_of_a_kind) << "nothing to tell";
}

TEST(Log, CountsWhatAGuestRepeats) {
  Heard heard;
  constexpr unsigned times = 1'000'000;
  for (unsigned n = 0; n < times; ++n) heard.log.warning("device {} is broken", n);
  const std::vector<std::string> more{
      "warning: further messages like this one are counted, not shown: device 10 is broken",
      "warning: held back 10 messages like this one: device 19 is broken",
      "warning: held back 100 messages like this one: device 109 is broken",
      "warning: held back 1000 messages like this one: device 1009 is broken",
      "warning: held back 10000 messages like this one: device 10009 is broken",
      "warning: held back 100000 messages like this one: device 100009 is broken"};
  ASSERT_EQ(heard.lines.size(), Log::max_of_a_kind + more.size());
  EXPECT_TRUE(std::equal(more.begin(), more.end(), heard.lines.begin() + Log::max_of_a_kind));
  EXPECT_EQ(heard.log.held_back(), times - Log::max_of_a_kind);
  heard.log.tell_held_back();
  EXPECT_EQ(heard.lines.back(), "warning: 999990 messages like those above were held back");
}

TEST(Log, HoldsNoOtherKindBack) {
  Heard heard;
  for (unsigned n = 0; n < 100; ++n) heard.log.warning("device {} is broken", n);
  heard.lines.clear();
  heard.log.error("vCPU {} has stopped", 1);
  heard.log.debug("not wanted {}", 1);
  EXPECT_EQ(heard.lines, std::vector<std::string>{"error: vCPU 1 has stopped"});
  EXPECT_EQ(heard.log.held_back(), 100 - Log::max_of_a_kind);
}

TEST(Log, ShowsOneMessageForAKey) {
  Heard heard;
  for (unsigned n = 0; n < 30; ++n)
    for (unsigned key = 0; key < 20; ++key) heard.log.once(LogLevel::info, std::to_string(key), "MSR {}", key);
  EXPECT_EQ(heard.lines.size(), 20U) << "each key is a message of its own";
  EXPECT_EQ(heard.log.held_back(), 29U * 20U);
  for (unsigned key = 20; key < 5000; ++key) heard.log.once(LogLevel::info, std::to_string(key), "MSR {}", key);
  EXPECT_EQ(heard.lines.size(), 1024U);
  EXPECT_EQ(heard.log.held_back(), 29U * 20U + 5000 - 1024);
  heard.log.once(LogLevel::debug, "debug", "not wanted");
  EXPECT_EQ(heard.log.held_back(), 29U * 20U + 5000 - 1024) << "what nobody wants is not held back";
}

}  // namespace
}  // namespace vmm
