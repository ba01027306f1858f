#include "control/console.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
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

class Pipe {
 public:
  Pipe() { EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0); }
  ~Pipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  std::string read_all() {
    std::string text(4096, '\0');
    const auto got = ::read(ends[0], text.data(), text.size());
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  }
  std::array<int, 2> ends{};
};

TEST(ConsoleOutput, LinesGoOutAtOnceAndTheRestWhenFlushed) {
  Pipe pipe;
  int announcements = 0;
  ConsoleOutput output{pipe.ends[1], [&] { ++announcements; }};
  for (const char c : std::string{"one\ntw"}) {
    output.put(static_cast<std::uint8_t>(c));
  }
  EXPECT_EQ(pipe.read_all(), "one\n");
  EXPECT_EQ(announcements, 1) << "once until the next flush";
  output.flush();
  EXPECT_EQ(pipe.read_all(), "tw");
  output.put('o');
  EXPECT_EQ(announcements, 2);
}

TEST(ConsoleOutput, AClosedReaderDoesNotHurt) {
  std::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  ::close(pipe.ends[0]);
  pipe.ends[0] = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ConsoleOutput output{pipe.ends[1], {}};
  output.put('\n');
  output.flush();
  SUCCEED() << "no signal, no endless loop";
}

TEST(RawTerminal, IsInactiveOnWhatIsNoTerminal) {
  const Pipe pipe;
  const RawTerminal terminal{pipe.ends[0]};
  EXPECT_FALSE(terminal.active());
  EXPECT_FALSE(RawTerminal{-1}.active());
}

}  // namespace
}  // namespace vmm
