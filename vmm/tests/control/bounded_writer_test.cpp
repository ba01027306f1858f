#include "control/bounded_writer.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>

namespace vmm {
namespace {

using namespace std::chrono_literals;

/// A pipe whose writing end a test hands to a writer.
class Pipe {
 public:
  explicit Pipe(int flags = 0) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC | flags), 0);
    reading = Fd{ends[0]};
    writing = Fd{ends[1]};
  }
  /// Reads `bytes` bytes, or fewer if the pipe ends before.
  [[nodiscard]] std::string read(std::size_t bytes) const {
    std::string text, part(65536, '\0');
    while (text.size() < bytes) {
      const auto got = ::read(reading.get(), part.data(), std::min(part.size(), bytes - text.size()));
      if (got <= 0) break;
      text.append(part, 0, static_cast<std::size_t>(got));
    }
    return text;
  }
  Fd reading;
  Fd writing;
};

/// Numbered lines, so that a test sees a gap.
std::string lines(std::size_t bytes) {
  std::string text;
  for (unsigned n = 0; text.size() < bytes; ++n) text += std::to_string(n) + "\n";
  text.resize(bytes);
  return text;
}

TEST(BoundedWriter, WritesLinesAndTheRestSoon) {
  Pipe pipe;
  BoundedWriter writer{std::move(pipe.writing)};
  for (const char c : std::string{"one\ntw"}) writer.put({&c, 1});
  EXPECT_EQ(pipe.read(6), "one\ntw") << "without finish()";
  const auto totals = writer.finish();
  EXPECT_EQ(totals.written, 6U);
  EXPECT_EQ(totals.dropped, 0U);
  EXPECT_EQ(totals.error, 0);
}

// A writer that blocks its caller would block a vCPU, and so keep the machine from ending.
TEST(BoundedWriter, NobodyWhoReadsHoldsNobodyUp) {
  for (const int flags : {0, O_NONBLOCK}) {
    Pipe pipe{flags};
    BoundedWriter writer{std::move(pipe.writing)};
    const std::string text = lines(3 * BoundedWriter::max_waiting);
    writer.put(text);
    writer.put("more\n");
    const auto totals = writer.finish();
    EXPECT_EQ(totals.written + totals.dropped, text.size() + 5) << "each byte is one or the other";
    EXPECT_GE(totals.written, 4096U) << "what the pipe took";
    EXPECT_LT(totals.written, BoundedWriter::max_waiting) << "nobody read it";
    EXPECT_EQ(totals.error, 0);
    EXPECT_EQ(pipe.read(totals.written), text.substr(0, totals.written)) << "from the start, without a gap";
  }
}

TEST(BoundedWriter, ASlowReaderGetsAllThatFits) {
  Pipe pipe;
  BoundedWriter writer{std::move(pipe.writing)};
  const std::string text = lines(BoundedWriter::max_waiting);
  writer.put(text);
  std::string read;
  std::thread reader{[&] {
    for (std::string part = " "; !part.empty(); read += part) {
      std::this_thread::sleep_for(1ms);
      part = pipe.read(16384);
    }
  }};
  const auto totals = writer.finish();
  EXPECT_EQ(totals.dropped, 0U);
  EXPECT_EQ(totals.written, text.size());
  writer.put("too late");
  EXPECT_EQ(writer.totals().dropped, 8U);
  reader.join();  // ends, because finish() has closed the writing end
  EXPECT_EQ(read, text);
}

TEST(BoundedWriter, ARegularFileLosesNothing) {
  const std::string path = testing::TempDir() + "bounded_writer_" + std::to_string(::getpid());
  const std::string text = lines(16 * BoundedWriter::max_waiting);
  BoundedWriter writer{Fd{::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)}};
  for (std::size_t at = 0; at < text.size(); at += 65536) writer.put(std::string_view{text}.substr(at, 65536));
  const auto totals = writer.finish();
  EXPECT_EQ(totals.written, text.size());
  EXPECT_EQ(totals.dropped, 0U);
  struct stat status{};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(static_cast<std::size_t>(status.st_size), text.size());
  ::unlink(path.c_str());
}

TEST(BoundedWriter, TellsOnceOfAReaderThatHasGoneAndRaisesNoSignal) {
  std::signal(SIGPIPE, SIG_DFL);
  Pipe pipe;
  pipe.reading.reset();
  std::atomic<int> told{0};
  BoundedWriter writer{std::move(pipe.writing), [&told] { ++told; }};
  writer.put("one\n");
  writer.put("two\n");
  const auto totals = writer.finish();
  EXPECT_EQ(told, 1);
  EXPECT_EQ(totals.error, EPIPE);
  EXPECT_EQ(totals.dropped, 8U);
}

TEST(BoundedWriter, ADeviceWithoutRoomIsAnError) {
  BoundedWriter writer{Fd{::open("/dev/full", O_WRONLY | O_CLOEXEC)}};
  writer.put("lost\n");
  const auto totals = writer.finish();
  EXPECT_EQ(totals.error, ENOSPC);
  EXPECT_EQ(totals.dropped, 5U);
  EXPECT_EQ(totals.written, 0U);
}

}  // namespace
}  // namespace vmm
