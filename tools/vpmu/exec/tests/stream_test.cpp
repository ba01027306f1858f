#include "exec/guest/stream.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace vmm::tool::guest {
namespace {

/// A stream between two pairs of non-blocking sockets, and the far ends of these.
struct Way {
  explicit Way(std::string last_words = {}) {
    std::array<int, 2> in{}, out{};
    ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, in.data());
    ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, out.data());
    const int few_bytes = 1;  // a sink that accepts only part of each write
    ::setsockopt(out[1], SOL_SOCKET, SO_SNDBUF, &few_bytes, sizeof few_bytes);
    writer = Fd{in[0]};
    reader = Fd{out[0]};
    stream.emplace(Fd{in[1]}, Fd{out[1]}, AtEnd::close_sink, std::move(last_words));
  }
  void write(const std::string& text) const {
    EXPECT_EQ(::write(writer.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  /// Lets the stream work until it makes no more progress; returns what came out.
  std::string pass() {
    std::string all;
    for (std::array<char, 1000> part{};;) {
      auto waits = stream->waits_for();
      const bool ready = ::poll(waits.data(), waits.size(), 0) > 0;
      if (ready) stream->go_on(waits);
      const ssize_t bytes = ::read(reader.get(), part.data(), part.size());
      if (bytes > 0) all.append(part.data(), static_cast<std::size_t>(bytes));
      if (bytes == 0) ended = true;
      if (bytes <= 0 && !ready) return all;
      if (ended) return all;
    }
  }
  Fd writer, reader;
  std::optional<Stream> stream;
  bool ended{};
};

const std::string long_text = std::string(50'000, 'a') + std::string(50'000, 'b');

TEST(ExecStream, PassesAllUntilItsSourceEnds) {
  Way way;
  way.write(long_text);
  EXPECT_EQ(way.pass(), long_text);
  EXPECT_FALSE(way.ended);
  way.writer.reset();
  EXPECT_EQ(way.pass(), "");
  EXPECT_TRUE(way.ended);
  EXPECT_EQ(way.stream->written(), long_text.size());
}

TEST(ExecStream, EndsBehindWhatHasArrivedThoughItIsMoreThanItsBuffer) {
  Way way;
  way.write(long_text);
  way.stream->end_behind(std::nullopt);
  EXPECT_EQ(way.pass(), long_text);
  EXPECT_TRUE(way.ended);
}

TEST(ExecStream, EndsBehindTheCountThoughTheLastBytesComeLater) {
  Way way;
  way.write("one");
  way.stream->end_behind(6);
  EXPECT_EQ(way.pass(), "one");
  EXPECT_FALSE(way.ended);
  way.write("two");
  EXPECT_EQ(way.pass(), "two");
  EXPECT_TRUE(way.ended);
}

TEST(ExecStream, LeavesWhatComesBehindTheCount) {
  Way way;
  way.stream->end_behind(3);
  way.write("one and more");
  EXPECT_EQ(way.pass(), "one");
  EXPECT_TRUE(way.ended);
}

TEST(ExecStream, EndsAtOnceBehindACountThatIsReached) {
  Way way;
  way.write("one");
  EXPECT_EQ(way.pass(), "one");
  way.stream->end_behind(3);
  EXPECT_EQ(way.pass(), "");
  EXPECT_TRUE(way.ended);
}

TEST(ExecStream, HasItsLastWords) {
  Way way{"end"};
  way.write("one ");
  way.stream->end_behind(std::nullopt);
  EXPECT_EQ(way.pass(), "one end");
  EXPECT_TRUE(way.ended);
}

TEST(ExecStream, ClosesItsSourceWhenItsSinkIsClosed) {
  Way way;
  way.reader.reset();
  EXPECT_EQ(way.pass(), "");
  EXPECT_TRUE(way.stream->done());
  EXPECT_EQ(::send(way.writer.get(), "x", 1, MSG_NOSIGNAL), -1);
  EXPECT_EQ(errno, EPIPE);
}

TEST(ExecStream, WaitsForNothingWhenItIsDone) {
  Way way;
  way.stream->close();
  for (const pollfd& wait : way.stream->waits_for()) EXPECT_EQ(wait.fd, -1);
}

}  // namespace
}  // namespace vmm::tool::guest
