#include "control/console.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <span>
#include <string>

namespace vmm {
namespace {

std::string typed(EscapeKeys& keys, const std::string& text, bool& quit) {
  const auto result = keys.feed(std::as_bytes(std::span{text}));
  quit = result.quit;
  return {reinterpret_cast<const char*>(result.input.data()), result.input.size()};
}

TEST(EscapeKeys, OrdinaryKeysGoToTheGuest) {
  EscapeKeys keys;
  bool quit = true;
  EXPECT_EQ(typed(keys, "ls -x\n", quit), "ls -x\n");
  EXPECT_FALSE(quit);
}

TEST(EscapeKeys, ControlAThenXQuitsAlsoInTwoReads) {
  EscapeKeys keys;
  bool quit = false;
  EXPECT_EQ(typed(keys, "a\x01", quit), "a");
  EXPECT_FALSE(quit);
  EXPECT_EQ(typed(keys, "xb", quit), "");
  EXPECT_TRUE(quit);
}

TEST(EscapeKeys, ControlATwiceSendsOne) {
  EscapeKeys keys;
  bool quit = false;
  EXPECT_EQ(typed(keys, "\x01\x01x", quit), "\x01x");
  EXPECT_FALSE(quit);
}

TEST(RawTerminal, IsInactiveOnWhatIsNoTerminal) {
  const int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const RawTerminal terminal{file};
  EXPECT_FALSE(terminal.active());
  ::close(file);
  EXPECT_FALSE(RawTerminal{-1}.active());
}

}  // namespace
}  // namespace vmm
