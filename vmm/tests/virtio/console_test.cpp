// The console's ports are descriptors of this process. Virtio 1.2 section 5.3.
#include "virtio/console.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>

#include "virtio/driver_ring.hpp"

namespace vmm::virtio {
namespace {

using test::DriverRing;
using namespace std::chrono_literals;

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    read = Fd{ends[0]};
    write = Fd{ends[1]};
  }
  Fd read, write;
};

std::string read_some(const Fd& fd, std::size_t max = 65536) {
  std::string text(max, '\0');
  const ssize_t got = ::read(fd.get(), text.data(), text.size());
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

template <class Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 5000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

/// A console whose port 0 writes to `output` and whose port 1 reads from `input`, and a driver that uses all queues.
class VirtioConsole : public testing::TestWithParam<Console::Work> {
 public:
  ~VirtioConsole() override { console.reset(); }
  VirtioConsole(const VirtioConsole&) = delete;
  VirtioConsole& operator=(const VirtioConsole&) = delete;

 protected:
  VirtioConsole() {
    ::signal(SIGPIPE, SIG_IGN);
    make();
    for (unsigned i = 0; i < console->queue_sizes().size(); ++i) {
      queues.emplace_back(memory, 0x10'0000 * (i + 1), console->queue_sizes()[i]);
      setup.rings.emplace_back(queues.back().ring());
    }
    EXPECT_TRUE(console->begin(events));
    EXPECT_TRUE(console->start(setup));
  }

  /// A console on these pipes, which is not started.
  void make() {
    std::vector<Console::Port> ports;
    ports.push_back({.name = "out", .output = std::move(output.write)});
    ports.push_back({.name = "in", .input = std::move(input.read)});
    console = *Console::create(memory, std::move(ports), GetParam());
  }

  struct Message {
    std::uint32_t port;
    std::uint16_t event, value;
  };
  void tell(Message message) {
    queues[3].send(std::as_bytes(std::span{&message, 1}));
    console->notify(3);
  }
  /// The device's next control message: its event, port, value and text.
  std::string hear() {
    queues[2].give_room(64);
    console->notify(2);
    std::optional<DriverRing::Used> used;
    if (!eventually([&] { return serve(), (used = queues[2].take()).has_value(); })) return "nothing";
    const std::string bytes = queues[2].text(*used);
    Message message{};
    std::memcpy(&message, bytes.data(), sizeof message);
    return std::to_string(message.event) + " " + std::to_string(message.port) + " " + std::to_string(message.value) +
           " " + bytes.substr(sizeof message);
  }
  /// Lets the device work if it has asked for attention, as the machine does.
  void serve() {
    if (events.attentions.exchange(0) != 0) console->attend();
  }

  GuestMemory memory{*GuestMemory::create(GuestMemory::min_bytes)};
  Pipe output, input;
  DriverSetup setup{.features = f_version_1 | 2, .rings = {}};
  test::HeardEvents events;
  std::unique_ptr<Console> console;
  std::vector<DriverRing> queues;  ///< in 0, out 0, control in, control out, in 1, out 1.
};

TEST_P(VirtioConsole, NamesItsPorts) {
  std::array<std::uint32_t, 3> configuration{};
  console->read_configuration(0, std::as_writable_bytes(std::span{configuration}));
  EXPECT_EQ(configuration[1], 2U) << "ports";
  tell({.port = 0, .event = 0, .value = 1});
  EXPECT_EQ(hear(), "1 0 1 ");
  EXPECT_EQ(hear(), "1 1 1 ");
  tell({.port = 1, .event = 3, .value = 1});
  EXPECT_EQ(hear(), "7 1 1 in");
  EXPECT_EQ(hear(), "6 1 1 ");
  tell({.port = 2, .event = 3, .value = 1});
  EXPECT_TRUE(events.errors.empty()) << "there is no port 2, and nothing to say of it";
}

TEST_P(VirtioConsole, WritesWhatTheGuestSends) {
  queues[1].send(std::as_bytes(std::span{"hello ", 6}));
  queues[1].send(std::as_bytes(std::span{"world", 5}));
  console->notify(1);
  EXPECT_EQ(read_some(output.read), "hello world");
  EXPECT_TRUE(queues[1].take() && queues[1].take());
  EXPECT_EQ(console->passed_on(0), 11U);
  EXPECT_EQ(console->passed_on(1), 0U);
  EXPECT_FALSE(events.used_queues.empty());
}

TEST_P(VirtioConsole, TellsWhatTheGuestHasSaidBeforeItGoesOn) {
  const Pipe said;
  std::string heard;
  std::vector<Console::Port> ports;
  ports.push_back(
      {.name = "out", .output = Fd{::dup(said.write.get())}, .heard = [&](std::span<const std::byte> bytes) {
         EXPECT_EQ(read_some(said.read), "ready") << "the output has it";
         EXPECT_FALSE(queues[1].take()) << "and the guest does not know that yet";
         heard.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
       }});
  console = *Console::create(memory, std::move(ports), GetParam());
  setup.rings.resize(4);
  ASSERT_TRUE(console->begin(events));
  ASSERT_TRUE(console->start(setup));
  queues[1].send(std::as_bytes(std::span{"ready", 5}));
  console->notify(1);
  EXPECT_EQ(heard, "ready");
  EXPECT_TRUE(queues[1].take());
}

TEST_P(VirtioConsole, GivesInputToAPortThatIsOpen) {
  ASSERT_EQ(::write(input.write.get(), "typed", 5), 5);
  queues[4].give_room(3);
  queues[4].give_room(100);
  console->notify(4);
  std::this_thread::sleep_for(20ms);
  serve();
  EXPECT_FALSE(queues[4].take()) << "nobody has opened it: Linux would throw it away";
  tell({.port = 1, .event = 6, .value = 1});
  std::string text;
  for (int i = 0; i < 2; ++i) {
    const auto used = queues[4].take();
    ASSERT_TRUE(used);
    text += queues[4].text(*used);
  }
  EXPECT_EQ(text, "typed");
  // Input that comes later arrives, too.
  queues[4].give_room(100);
  console->notify(4);
  ASSERT_EQ(::write(input.write.get(), "more", 4), 4);
  std::optional<DriverRing::Used> used;
  EXPECT_TRUE(eventually([&] { return serve(), (used = queues[4].take()).has_value(); }));
  EXPECT_EQ(queues[4].text(*used), "more");
  ASSERT_FALSE(events.writes.empty()) << "the engine hears where it was written";
  EXPECT_EQ(events.writes.back().bytes, 4U) << "and not that it may have been anywhere in a buffer";
}

TEST_P(VirtioConsole, ClosesAPortWhoseInputHasEnded) {
  tell({.port = 1, .event = 6, .value = 1});
  queues[4].give_room(100);
  console->notify(4);
  input.write.reset();
  EXPECT_EQ(hear(), "6 1 0 ");
}

TEST_P(VirtioConsole, TellsOfTheEndOfAnInput) {
  console.reset();
  input = Pipe{};
  std::vector<Console::Port> ports;
  std::atomic<std::uint64_t> ended_after{~0ULL};
  ports.push_back(
      {.name = "only", .input = std::move(input.read), .at_end = [&](std::uint64_t n) { ended_after = n; }});
  console = *Console::create(memory, std::move(ports), GetParam());
  ASSERT_TRUE(console->begin(events));
  ASSERT_TRUE(console->start({.features = f_version_1 | 2,
                              .rings = {queues[0].ring(), queues[1].ring(), queues[2].ring(), queues[3].ring()}}));
  tell({.port = 0, .event = 6, .value = 1});
  for (int i = 0; i < 2; ++i) queues[0].give_room(100);
  console->notify(0);
  ASSERT_EQ(::write(input.write.get(), "typed", 5), 5);
  input.write.reset();
  EXPECT_TRUE(eventually([&] { return serve(), ended_after == 5; }));
  queues[2].give_room(64);
  console->notify(2);
  EXPECT_EQ(queues[2].take(), std::nullopt) << "the port stays open";
}

TEST_P(VirtioConsole, ClosesAPortWhoseReaderHasGone) {
  output.read.reset();
  queues[1].send(std::as_bytes(std::span{"lost", 4}));
  console->notify(1);
  EXPECT_TRUE(queues[1].take()) << "the guest gets its buffer back";
  EXPECT_EQ(console->passed_on(0), 4U);
  EXPECT_EQ(hear(), "6 0 0 ");
}

/// A disk that is full, say. The guest cannot mend it, and the user must know.
TEST_P(VirtioConsole, TellsOfOutputThatCannotBeWritten) {
  console.reset();
  std::vector<Console::Port> ports;
  std::vector<std::pair<std::uint64_t, int>> lost;
  ports.push_back({.name = "full",
                   .output = Fd{::open("/dev/full", O_WRONLY | O_CLOEXEC)},
                   .lost = [&lost](std::uint64_t bytes, int error) { lost.emplace_back(bytes, error); }});
  console = *Console::create(memory, std::move(ports), GetParam());
  ASSERT_TRUE(console->begin(events));
  ASSERT_TRUE(console->start({.features = f_version_1 | 2,
                              .rings = {queues[0].ring(), queues[1].ring(), queues[2].ring(), queues[3].ring()}}));
  queues[1].send(std::as_bytes(std::span{"lost", 4}));
  queues[1].send(std::as_bytes(std::span{"lost, too", 9}));
  console->notify(1);
  EXPECT_EQ(hear(), "6 0 0 ") << "the port is closed";
  EXPECT_EQ(lost, (std::vector<std::pair<std::uint64_t, int>>{{4, ENOSPC}, {9, ENOSPC}}));
  EXPECT_EQ(console->passed_on(0), 13U);
}

/// Sends more than a pipe holds.
TEST_P(VirtioConsole, LosesNothingToASlowReader) {
  constexpr std::size_t bytes = 60'000, sends = 8;
  std::string all, got;
  for (std::size_t i = 0; i < sends; ++i) {
    const std::string part(bytes, static_cast<char>('a' + i));
    queues[1].send(std::as_bytes(std::span{part}));
    all += part;
  }
  std::thread reader{[&] {
    while (got.size() < all.size()) {
      std::this_thread::sleep_for(1ms);
      got += read_some(output.read, 5000);
    }
  }};
  console->notify(1);
  if (GetParam() == Console::Work::by_vcpu) {
    EXPECT_EQ(console->passed_on(0), all.size()) << "notify() waits for all of it";
  }
  reader.join();
  EXPECT_TRUE(eventually([&] { return console->passed_on(0) == all.size(); }));
  EXPECT_EQ(got, all);
}

TEST_P(VirtioConsole, DoesNotWaitOnceTheMachineIsToStop) {
  const std::string much(1 << 20, 'x');
  for (int i = 0; i < 2; ++i) queues[1].send(std::as_bytes(std::span{much}.first(500'000)));
  std::thread stopper{[&] {
    std::this_thread::sleep_for(20ms);
    console->cancel();
  }};
  console->notify(1);
  stopper.join();
  EXPECT_LT(console->passed_on(0), 1'000'000U);
}

/// An output that is always ready ends nothing: the device itself must look at the end.
TEST_P(VirtioConsole, WritesNothingOnceTheMachineIsToStop) {
  console.reset();
  std::vector<Console::Port> ports;
  ports.push_back({.name = "endless", .output = Fd{::open("/dev/null", O_WRONLY | O_CLOEXEC)}});
  console = *Console::create(memory, std::move(ports), GetParam());
  ASSERT_TRUE(console->begin(events));
  ASSERT_TRUE(console->start({.features = f_version_1 | 2, .rings = {{}, queues[1].ring(), {}, {}}}));
  queues[1].send(std::as_bytes(std::span{"before", 6}));
  console->notify(1);
  EXPECT_EQ(console->passed_on(0), 6U);
  console->cancel();
  const std::string much(300'000, 'x');
  queues[1].send(std::as_bytes(std::span{much}));
  console->notify(1);
  EXPECT_EQ(console->passed_on(0), 6U);
}

/// Other vCPUs may add to a queue for as long as the device serves it.
TEST_P(VirtioConsole, LeavesAQueueThatIsFilledWithoutEnd) {
  class Refill final : public DeviceEvents {
   public:
    void used(unsigned /*queue*/) override {
      ++rounds;
      if (rounds == 10) console->cancel();
      if (rounds < 1000) ring->offer(0);
    }
    void configuration_changed() override {}
    void written(vpmu::GuestPhysical /*at*/, std::uint64_t /*bytes*/) override {}
    void broken(const Error& /*error*/) override {}
    void failed(Error /*error*/) override {}
    void attention() override {}
    Console* console{};
    DriverRing* ring{};
    unsigned rounds{};
  } refill;
  std::vector<Console::Port> ports;
  ports.push_back({.name = "discards"});
  const auto other = *Console::create(memory, std::move(ports), GetParam());
  refill.console = other.get();
  refill.ring = &queues[1];
  ASSERT_TRUE(other->begin(refill));
  ASSERT_TRUE(other->start({.features = f_version_1 | 2, .rings = {{}, queues[1].ring(), {}, {}}}));
  queues[1].send(std::as_bytes(std::span{"x", 1}));
  other->notify(1);
  EXPECT_EQ(refill.rounds, 10U);
}

/// The session asks it while it is to take signals.
TEST_P(VirtioConsole, TellsWhatItPassedOnWhileAVcpuWaits) {
  const std::string much(100'000, 'x');
  for (int i = 0; i < 2; ++i) queues[1].send(std::as_bytes(std::span{much}));
  std::thread vcpu{[&] { console->notify(1); }};
  int waiting = 0;
  EXPECT_TRUE(eventually([&] { return ::ioctl(output.read.get(), FIONREAD, &waiting) == 0 && waiting == 65536; }));
  EXPECT_EQ(console->passed_on(0), 0U);
  console->cancel();
  vcpu.join();
}

TEST_P(VirtioConsole, StandsStillOnceItIsSaved) {
  tell({.port = 1, .event = 6, .value = 1});
  queues[4].give_room(100);
  ByteWriter out;
  ASSERT_TRUE(console->save(out));
  ASSERT_EQ(::write(input.write.get(), "early", 5), 5);
  console->notify(4);
  std::this_thread::sleep_for(20ms);
  serve();
  EXPECT_FALSE(queues[4].take());
  console->go_on();
  std::optional<DriverRing::Used> used;
  ASSERT_TRUE(eventually([&] { return serve(), (used = queues[4].take()).has_value(); }));
  EXPECT_EQ(queues[4].text(*used), "early");
}

TEST_P(VirtioConsole, GoesOnAsAnother) {
  tell({.port = 1, .event = 6, .value = 1});
  tell({.port = 1, .event = 3, .value = 1});  // its answers wait for room
  queues[1].send(std::as_bytes(std::span{"one", 3}));
  console->notify(1);
  ASSERT_TRUE(queues[1].take());
  queues[4].give_room(100);
  queues[4].give_room(100);
  ASSERT_EQ(::write(input.write.get(), "first", 5), 5);
  console->notify(4);
  std::optional<DriverRing::Used> used;
  ASSERT_TRUE(eventually([&] { return serve(), (used = queues[4].take()).has_value(); }));
  ByteWriter out;
  ASSERT_TRUE(console->save(out));
  const Bytes image = out.take();
  console.reset();
  output = Pipe{};
  input = Pipe{};
  ASSERT_EQ(::write(input.write.get(), "second", 6), 6);
  make();
  ByteReader in{image};
  ASSERT_TRUE(console->resume(setup, in));
  EXPECT_TRUE(in.done());
  EXPECT_TRUE(console->begin(events));
  console->attend();
  ASSERT_TRUE(eventually([&] { return serve(), (used = queues[4].take()).has_value(); })) << "its port is still open";
  EXPECT_EQ(queues[4].text(*used), "second");
  EXPECT_EQ(used->id, 1U) << "the second buffer";
  queues[1].send(std::as_bytes(std::span{"two", 3}));
  console->notify(1);
  EXPECT_EQ(read_some(output.read), "two");
  EXPECT_EQ(console->passed_on(0), 6U);
  EXPECT_EQ(hear(), "7 1 1 in");
  EXPECT_EQ(hear(), "6 1 1 ");
  EXPECT_TRUE(events.errors.empty());
}

// A snapshot may be damaged, or made to harm: rings are checked as a driver's are.
TEST_P(VirtioConsole, GoesOnWithNothingThatCannotBe) {
  queues[1].send(std::as_bytes(std::span{"one", 3}));
  console->notify(1);
  ByteWriter out;
  ASSERT_TRUE(console->save(out));
  const Bytes image = out.take();
  console.reset();
  for (std::size_t at = 0; at < image.size(); ++at) {
    Bytes bytes = image;
    bytes[at] = std::byte{0xFF};
    make();
    ByteReader in{bytes};
    static_cast<void>(console->resume(setup, in));
    EXPECT_TRUE(console->begin(events));
    console->notify(1);
  }
  for (std::size_t size = 0; size < image.size(); size += 5) {
    make();
    ByteReader in{std::span{image}.first(size)};
    static_cast<void>(console->resume(setup, in));
    EXPECT_FALSE(in.good());
  }
}

TEST_P(VirtioConsole, BreaksOnARingThatMakesNoSense) {
  queues[1].set_available(1000);
  console->notify(1);
  ASSERT_EQ(events.errors.size(), 1U);
  console->notify(1);
  EXPECT_EQ(events.errors.size(), 1U) << "it does nothing more";
  console->stop();
  console->notify(1);
  EXPECT_EQ(events.errors.size(), 1U) << "nor without rings";
}

TEST(VirtioConsoleRings, AreLookedAtWhenItStarts) {
  const GuestMemory memory = *GuestMemory::create(GuestMemory::min_bytes);
  std::vector<Console::Port> ports;
  ports.push_back({.name = "only"});
  const auto console = *Console::create(memory, std::move(ports), Console::Work::by_itself);
  Ring ring = DriverRing{memory, 0x10'0000, 64}.ring();
  ring.used = vpmu::GuestPhysical{GuestMemory::min_bytes};
  const auto started = console->start({.features = f_version_1, .rings = {ring, {}, {}, {}}});
  ASSERT_FALSE(started);
  EXPECT_NE(describe(started.error()).find("with its used ring at 0x1000000, which is not in RAM"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Work, VirtioConsole, testing::Values(Console::Work::by_itself, Console::Work::by_vcpu),
                         [](const auto& test) {
                           return test.param == Console::Work::by_itself ? "ByItself" : "ByVcpu";
                         });

}  // namespace
}  // namespace vmm::virtio
