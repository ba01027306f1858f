#include "virtio/vhost_user_device.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <future>
#include <set>
#include <string>
#include <thread>

#include "fakes/driver_queue.hpp"
#include "fakes/fake_back_end.hpp"
#include "fakes/sizes.hpp"

namespace vmm::test {
namespace {

using namespace virtio;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Answers = VhostUserDevice::Answers;
using Range = std::pair<std::uint64_t, std::uint64_t>;

constexpr std::uint64_t ring_at = 0x10000, other_ring_at = 0x20000;

class Events final : public DeviceEvents {
 public:
  void used(unsigned queue) override {
    const std::lock_guard lock{mutex_};
    used_.push_back(queue);
    changed_.notify_all();
  }
  void configuration_changed() override {}
  void written(vpmu::GuestPhysical at, std::uint64_t bytes) override {
    const std::lock_guard lock{mutex_};
    EXPECT_LE(at.value() + bytes, 16 * mib);
    written_.insert({at.value(), bytes});
  }
  void broken(const Error& error) override { failed(error); }
  void attention() override { device->attend(); }
  VhostUserDevice* device{};
  void failed(Error error) override {
    const std::lock_guard lock{mutex_};
    failures_.push_back(describe(error));
    changed_.notify_all();
  }
  std::vector<unsigned> used_queues() {
    const std::lock_guard lock{mutex_};
    return used_;
  }
  std::set<Range> written_ranges() {
    const std::lock_guard lock{mutex_};
    return written_;
  }
  /// The failures so far; waits up to `patience` for the first.
  std::vector<std::string> failures(seconds patience = seconds{0}) {
    std::unique_lock lock{mutex_};
    changed_.wait_for(lock, patience, [this] { return !failures_.empty(); });
    return failures_;
  }
  bool wait_for_used() {
    std::unique_lock lock{mutex_};
    return changed_.wait_for(lock, seconds{5}, [this] { return !used_.empty(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<unsigned> used_;
  std::set<Range> written_;
  std::vector<std::string> failures_;
};

/// A started device between a fake back end and a driver's queues.
struct Running {
  explicit Running(Answers answers = Answers::before_return, std::vector<unsigned> asynchronous = {},
                   std::uint16_t size = 8, DeviceType type = DeviceType::file_system)
      : queue{memory, ring_at, size}, other{memory, other_ring_at, size} {
    fake.features |= 1ULL << 29U | 1ULL << 34U | 1ULL << 35U;
    auto created = VhostUserDevice::create(fake.begin(), memory,
                                           {.type = type,
                                            .queue_sizes = {size, size},
                                            .features = ~0ULL,
                                            .configuration = std::vector<std::byte>(40, std::byte{3}),
                                            .answers = answers,
                                            .asynchronous = std::move(asynchronous)});
    EXPECT_TRUE(created) << describe(created.error());
    device = std::move(*created);
    events.device = device.get();
    EXPECT_TRUE(device->begin(events));
    const auto started = device->start({.features = f_version_1, .rings = {queue.ring(), other.ring()}});
    EXPECT_TRUE(started) << describe(started.error());
  }
  /// Calls notify() on another thread, as a vCPU does.
  std::future<void> notify(unsigned number = 0) {
    return std::async(std::launch::async, [this, number] { device->notify(number); });
  }
  /// These ranges and the used ring, which the device may write, too.
  [[nodiscard]] std::set<Range> with_ring(std::set<Range> ranges) const {
    ranges.insert({queue.ring().used.value(), queue.ring().size * 8U + 6U});
    return ranges;
  }

  GuestMemory memory = *GuestMemory::create(16 * mib, GuestBacking::shared);
  FakeBackEnd fake;
  Events events;
  DriverQueue queue, other;
  std::unique_ptr<VhostUserDevice> device;
};

bool returns(std::future<void>& call, milliseconds within = milliseconds{5000}) {
  return call.wait_for(within) == std::future_status::ready;
}

TEST(VhostUserDevice, HasTheConfigurationThatItWasGiven) {
  Running machine;
  std::array<std::byte, 8> bytes{};
  machine.device->read_configuration(36, bytes);
  EXPECT_EQ(bytes[3], std::byte{3});
  EXPECT_EQ(bytes[4], std::byte{0});
  machine.device->read_configuration(0xFFFFFFFF, bytes);
  EXPECT_EQ(bytes[0], std::byte{0});
}

TEST(VhostUserDevice, OffersNoRingsThatItCannotWaitFor) {
  const Running waits, passes{Answers::by_kvm};
  EXPECT_EQ(waits.device->features(), f_version_1 | 5);
  EXPECT_EQ(passes.device->features(), f_version_1 | 5 | 1ULL << 29U | 1ULL << 35U);
  EXPECT_EQ(waits.device->notify_event(0), nullptr);
  EXPECT_EQ(waits.device->used_event(0), nullptr);
}

TEST(VhostUserDevice, WithKvmGivesItsEventsAway) {
  Running machine{Answers::by_kvm};
  ASSERT_NE(machine.device->notify_event(1), nullptr);
  EXPECT_EQ(machine.device->notify_event(2), nullptr);
  ASSERT_NE(machine.device->used_event(1), nullptr);
  machine.device->notify(1);
  EXPECT_TRUE(machine.fake.wait_for_kick(1));
  machine.fake.call(1);
  std::uint64_t count = 0;
  EXPECT_EQ(::read(machine.device->used_event(1)->get(), &count, sizeof count), 8);
  EXPECT_TRUE(machine.events.used_queues().empty());
}

TEST(VhostUserDevice, ReturnsWhenTheLastAnswerIsThere) {
  Running machine;
  machine.queue.describe(0, {0x100000, 0x30, DriverQueue::next, 1});
  machine.queue.describe(1, {0x200000, 0x1000, DriverQueue::write, 0});
  machine.queue.describe(4, {0x300000, 0x20, DriverQueue::write, 0});
  machine.queue.offer(0);
  machine.queue.offer(4);
  auto call = machine.notify();
  ASSERT_TRUE(machine.fake.wait_for_kick(0));
  EXPECT_FALSE(returns(call, milliseconds{50}));
  machine.queue.answer(4);  // out of order
  machine.fake.call(0);
  EXPECT_FALSE(returns(call, milliseconds{50}));
  EXPECT_TRUE(machine.events.used_queues().empty());
  machine.queue.answer(0);
  machine.fake.call(0);
  ASSERT_TRUE(returns(call));
  EXPECT_EQ(machine.events.used_queues(), std::vector<unsigned>{0});
  EXPECT_EQ(machine.events.written_ranges(), machine.with_ring({{0x200000, 0x1000}, {0x300000, 0x20}}));
  EXPECT_TRUE(machine.events.failures().empty());
}

TEST(VhostUserDevice, NeedsNoCallFromADeviceWhoseInterruptsAreOff) {
  Running machine;
  machine.queue.offer(0);
  auto call = machine.notify();
  ASSERT_TRUE(machine.fake.wait_for_kick(0));
  EXPECT_FALSE(returns(call, milliseconds{50}));
  machine.queue.answer(0);
  EXPECT_TRUE(returns(call, milliseconds{2000}));
  EXPECT_EQ(machine.events.used_queues(), std::vector<unsigned>{0});
}

TEST(VhostUserDevice, GoesOnAcrossTheEndOfTheIndex) {
  Running machine;
  // Brings the used index close to its end.
  for (unsigned round = 0; round < 65535 / 8; ++round) {
    for (std::uint16_t head = 0; head < 8; ++head) machine.queue.offer(head);
    for (std::uint16_t head = 0; head < 8; ++head) machine.queue.answer(head);
    machine.device->notify(0);
  }
  for (int more = 0; more < 10; ++more) {
    machine.queue.offer(1);
    machine.queue.answer(1);
    machine.device->notify(0);
  }
  EXPECT_LT(machine.queue.used(), 8U);
  EXPECT_EQ(machine.events.used_queues().size(), 65535 / 8 + 10U);
  EXPECT_TRUE(machine.events.failures().empty());
}

TEST(VhostUserDevice, FollowsIndirectTables) {
  Running machine;
  machine.queue.describe(2, {0x50000, 3 * 16, DriverQueue::indirect, 0});
  machine.queue.describe_in(0x50000, 0, {0x100000, 0x30, DriverQueue::next, 2});
  machine.queue.describe_in(0x50000, 2, {0x200000, 0x40, DriverQueue::next | DriverQueue::write, 1});
  machine.queue.describe_in(0x50000, 1, {0x300000, 0x50, DriverQueue::write, 0});
  machine.queue.offer(2);
  machine.queue.answer(2);
  machine.device->notify(0);
  EXPECT_EQ(machine.events.written_ranges(), machine.with_ring({{0x200000, 0x40}, {0x300000, 0x50}}));
}

TEST(VhostUserDevice, CutsWhatIsNotRam) {
  Running machine;
  machine.queue.describe(0, {16 * mib - 0x10, 0xFFFFFFFF, DriverQueue::write | DriverQueue::next, 1});
  machine.queue.describe(1, {~0ULL - 4, 0xFFFFFFFF, DriverQueue::write | DriverQueue::next, 2});
  machine.queue.describe(2, {0x100000, 0, DriverQueue::write, 0});
  machine.queue.offer(0);
  machine.queue.answer(0);
  machine.device->notify(0);
  EXPECT_EQ(machine.events.written_ranges(), machine.with_ring({{16 * mib - 0x10, 0x10}}));
}

/// A driver may name all of RAM in each descriptor: what the machine does for a notification is bounded by RAM's size.
TEST(VhostUserDevice, NamesNoPlaceTwice) {
  Running machine;
  machine.queue.describe(0, {0x300000, 0x50, DriverQueue::write | DriverQueue::next, 1});
  machine.queue.describe(1, {0x200000, 0x2000, DriverQueue::write | DriverQueue::next, 2});
  machine.queue.describe(2, {0x201000, 0x2000, DriverQueue::write | DriverQueue::next, 3});
  machine.queue.describe(3, {0x200800, 0x10, DriverQueue::write, 0});
  machine.queue.offer(0);
  machine.queue.answer(0);
  machine.device->notify(0);
  EXPECT_EQ(machine.events.written_ranges(), machine.with_ring({{0x200000, 0x3000}, {0x300000, 0x50}}));
}

/// If a chain makes no sense, the device may have written anywhere.
TEST(VhostUserDevice, TakesAllOfRamForChainsWithoutSense) {
  using Descriptor = DriverQueue::Descriptor;
  const std::vector<std::function<void(DriverQueue&)>> bad{
      [](DriverQueue& queue) { queue.describe(0, Descriptor{0x100000, 8, DriverQueue::next, 0}); },
      [](DriverQueue& queue) { queue.describe(0, Descriptor{0x100000, 8, DriverQueue::next, 8}); },
      [](DriverQueue& queue) { queue.describe(0, Descriptor{0x100000, 8, DriverQueue::indirect, 0}); },
      [](DriverQueue& queue) { queue.describe(0, Descriptor{~0ULL - 7, 16, DriverQueue::indirect, 0}); },
      [](DriverQueue& queue) {
        queue.describe(0, Descriptor{0x50000, 16, DriverQueue::indirect, 0});
        queue.describe_in(0x50000, 0, Descriptor{0x100000, 8, DriverQueue::next, 0});
      },
      [](DriverQueue& queue) {
        queue.describe(0, Descriptor{0x50000, 16, DriverQueue::indirect, 0});
        queue.describe_in(0x50000, 0, Descriptor{0x50000, 16, DriverQueue::indirect, 0});
      }};
  for (const auto& describe_badly : bad) {
    Running machine;
    describe_badly(machine.queue);
    machine.queue.offer(0);
    machine.queue.answer(0);
    machine.device->notify(0);
    EXPECT_EQ(machine.events.written_ranges(), (std::set<Range>{{0, 16 * mib}}));
    EXPECT_EQ(machine.events.used_queues().size(), 1U);
  }
}

TEST(VhostUserDevice, WaitsForNothingThatNoRingHolds) {
  Running machine;
  machine.queue.set_available(9);
  machine.device->notify(0);
  EXPECT_TRUE(machine.events.used_queues().empty());
  machine.device->notify(77);
}

TEST(VhostUserDevice, TellsOfAUsedRingThatCannotBe) {
  const std::vector<std::pair<std::function<void(DriverQueue&)>, std::string>> lies{
      {[](DriverQueue& queue) { queue.answer(8); }, "beyond its 8"},
      {[](DriverQueue& queue) { queue.answer(0xFFFFFFFF); }, "beyond its 8"},
      {[](DriverQueue& queue) { queue.set_used(2); }, "from 0 to 2, with 1 buffers"},
      {[](DriverQueue& queue) { queue.set_used(0xFFFF); }, "from 0 to 65535"}};
  for (const auto& [lie, seen] : lies) {
    Running machine;
    machine.queue.offer(0);
    lie(machine.queue);
    machine.device->notify(0);
    const auto failures = machine.events.failures();
    ASSERT_EQ(failures.size(), 1U) << seen;
    EXPECT_NE(failures[0].find(seen), std::string::npos) << failures[0];
    EXPECT_NE(failures[0].find("the fake for /srv"), std::string::npos) << failures[0];
    EXPECT_TRUE(machine.events.used_queues().empty());
  }
}

TEST(VhostUserDevice, EndsTheWaitWhenTheDaemonDies) {
  Running machine;
  machine.queue.offer(0);
  auto call = machine.notify();
  ASSERT_TRUE(machine.fake.wait_for_kick(0));
  machine.fake.hang_up();
  ASSERT_TRUE(returns(call));
  const auto failures = machine.events.failures(seconds{5});
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_EQ(failures[0].find('\n'), std::string::npos);
  EXPECT_NE(failures[0].find("the fake for /srv: the daemon has closed its connection"), std::string::npos);
  machine.device->notify(0);  // returns at once
}

TEST(VhostUserDevice, SeesTheDaemonsEndWhileNobodyWaits) {
  for (const auto answers : {Answers::by_kvm, Answers::before_return}) {
    Running machine{answers};
    machine.fake.hang_up();
    EXPECT_EQ(machine.events.failures(seconds{5}).size(), 1U);
  }
}

TEST(VhostUserDevice, EndsTheWaitWhenTheMachineStops) {
  Running machine;
  machine.queue.offer(0);
  auto call = machine.notify();
  ASSERT_TRUE(machine.fake.wait_for_kick(0));
  EXPECT_FALSE(returns(call, milliseconds{50}));
  machine.device->cancel();
  ASSERT_TRUE(returns(call));
  machine.fake.hang_up();
  machine.device->stop();  // although there are no more answers
  EXPECT_TRUE(machine.events.failures().empty());
}

TEST(VhostUserDevice, EndsTheWaitWhenTheDriverResetsIt) {
  Running machine;
  machine.queue.offer(0);
  machine.queue.answer(0);
  machine.device->notify(0);
  ASSERT_TRUE(machine.fake.wait_for_kick(0));
  machine.queue.offer(0);
  auto call = machine.notify();
  ASSERT_TRUE(machine.fake.wait_for_kick(0));
  machine.device->stop();
  ASSERT_TRUE(returns(call));
  EXPECT_EQ(machine.fake.heard(FakeBackEnd::Request::get_vring_base).size(), 2U);
  machine.device->notify(0);  // without a ring it does nothing
  // The driver starts the device again.
  machine.queue.set_available(0);
  ASSERT_TRUE(machine.device->start({.features = f_version_1, .rings = {machine.queue.ring(), std::nullopt}}));
  EXPECT_EQ(machine.queue.used(), 0U);
  machine.queue.set_used(0);
  machine.queue.offer(3);
  machine.queue.answer(3);
  machine.device->notify(0);
  EXPECT_EQ(machine.events.used_queues(), (std::vector<unsigned>{0, 0}));
  EXPECT_TRUE(machine.events.failures().empty());
}

TEST(VhostUserDevice, DoesNotWaitForAnAsynchronousQueue) {
  Running machine{Answers::before_return, {1}};
  machine.other.describe(5, {0x400000, 0x600, DriverQueue::write, 0});
  machine.other.offer(5);
  machine.device->notify(1);
  ASSERT_TRUE(machine.fake.wait_for_kick(1));
  EXPECT_TRUE(machine.events.used_queues().empty());
  machine.other.answer(5, 0x40);
  machine.fake.call(1);
  ASSERT_TRUE(machine.events.wait_for_used());
  EXPECT_EQ(machine.events.used_queues(), std::vector<unsigned>{1});
  EXPECT_TRUE(machine.events.written_ranges().contains({0x400000, 0x600}));
}

// Seen with a guest that polled its network receiver: a download failed, "the used index of queue 0 went from 185 to
// 729".
TEST(VhostUserDevice, LosesCountOfNoAnswersOfWhichMoreCameThanARingHolds) {
  Running machine{Answers::before_return, {1}};
  machine.other.describe(5, {0x400000, 0x600, DriverQueue::write, 0});
  machine.device->notify(1);
  for (unsigned taken = 0; taken < 20; ++taken) {
    machine.other.offer(5);
    machine.other.answer(5, 0x40);
  }
  machine.fake.call(1);
  ASSERT_TRUE(machine.events.wait_for_used());
  EXPECT_TRUE(machine.events.failures().empty());
  EXPECT_TRUE(machine.events.written_ranges().contains({0, 16 * mib}));
}

TEST(VhostUserDevice, FailsWhereMoreAnswersCameThanTheDriverHasAskedFor) {
  Running machine{Answers::before_return, {1}};
  machine.device->notify(1);
  machine.other.set_available(30);
  machine.other.set_used(31);
  machine.fake.call(1);
  const auto failures = machine.events.failures(seconds{5});
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_NE(failures[0].find("the used index of queue 1 went from 0 to 31"), std::string::npos) << failures[0];
}

/// A queue's number and the other word of these messages.
using RingStates = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
RingStates ring_states(FakeBackEnd& fake, FakeBackEnd::Request request) {
  RingStates all;
  for (const FakeBackEnd::Heard& one : fake.heard(request)) {
    const auto state = one.as<vhost_user::RingState>();
    all.emplace_back(state.index, state.number);
  }
  return all;
}

TEST(VhostUserDevice, IsSavedAtRestAndGoesOnWhereItWas) {
  using enum FakeBackEnd::Request;
  Running machine{Answers::before_return, {1}, 8, DeviceType::block};
  for (unsigned n = 0; n < 3; ++n) {
    machine.queue.offer(0);
    machine.queue.answer(0);
    machine.device->notify(0);
  }
  machine.other.offer(0);  // for what a network may receive
  ByteWriter out;
  const auto saved = machine.device->save(out);
  ASSERT_TRUE(saved) << describe(saved.error());
  EXPECT_EQ(ring_states(machine.fake, get_vring_base), (RingStates{{0, 0}, {1, 0}})) << "both rings stop";
  machine.device->go_on();
  EXPECT_EQ(ring_states(machine.fake, set_vring_base), (RingStates{{0, 0}, {1, 0}, {0, 3}, {1, 0}}));
  EXPECT_TRUE(machine.fake.wait_for_kick(1)) << "the daemon looks at what is open";
  EXPECT_EQ(machine.queue.used(), 3U) << "the ring stays";
  machine.device->go_on();
  EXPECT_EQ(ring_states(machine.fake, set_vring_base).size(), 4U) << "it had no rest";
  machine.queue.offer(0);
  machine.queue.answer(0);
  machine.device->notify(0);
  EXPECT_TRUE(machine.events.failures().empty());
}

TEST(VhostUserDevice, GoesOnWithAnotherDaemon) {
  using enum FakeBackEnd::Request;
  Running machine{Answers::before_return, {}, 8, DeviceType::block};
  for (unsigned n = 0; n < 5; ++n) {
    machine.queue.offer(0);
    machine.queue.answer(0);
    machine.device->notify(0);
  }
  ByteWriter out;
  ASSERT_TRUE(machine.device->save(out));
  const Bytes image = out.take();
  FakeBackEnd fake;
  auto device = *VhostUserDevice::create(fake.begin(), machine.memory,
                                         {.type = DeviceType::block,
                                          .queue_sizes = {8, 8},
                                          .features = ~0ULL,
                                          .configuration = VhostUserDevice::FromBackEnd{60},
                                          .answers = Answers::before_return});
  ByteReader in{image};
  ASSERT_TRUE(device->resume({.features = f_version_1, .rings = {machine.queue.ring(), machine.other.ring()}}, in));
  EXPECT_TRUE(in.done());
  Events events;
  EXPECT_TRUE(device->begin(events));
  EXPECT_EQ(ring_states(fake, set_vring_base), (RingStates{{0, 5}, {1, 0}}));
  machine.queue.offer(0);
  machine.queue.answer(0);
  device->notify(0);
  EXPECT_EQ(events.used_queues(), std::vector<unsigned>{0});
  EXPECT_TRUE(events.failures().empty());
}

TEST(VhostUserDevice, IsNotSavedWithFilesThatOnlyTheDaemonKnows) {
  Running machine;
  ByteWriter out;
  ASSERT_TRUE(machine.device->save(out)) << "nothing is mounted";
  machine.device->go_on();
  machine.queue.offer(0);
  machine.queue.answer(0);
  machine.device->notify(0);
  const auto saved = machine.device->save(out);
  ASSERT_FALSE(saved);
  EXPECT_NE(saved.error().what.find("has mounted a shared directory"), std::string::npos) << saved.error().what;
}

// Nobody has looked at these answers, and the daemon's call is not part of the state.
TEST(VhostUserDevice, IsSavedBehindTheInterruptForItsLastAnswers) {
  Running machine{Answers::before_return, {1}, 8, DeviceType::net};
  machine.other.describe(5, {0x400000, 0x600, DriverQueue::write, 0});
  machine.other.offer(5);
  machine.other.answer(5, 0x40);
  ByteWriter out;
  ASSERT_TRUE(machine.device->save(out));
  EXPECT_EQ(machine.events.used_queues(), std::vector<unsigned>{1});
  EXPECT_TRUE(machine.events.written_ranges().contains({0x400000, 0x600}));
  machine.device->go_on();
  EXPECT_EQ(machine.events.used_queues(), std::vector<unsigned>{1}) << "once";
}

// The used index has 16 bits.
TEST(VhostUserDevice, KnowsThatADirectoryIsMountedAfterManyRequests) {
  Running machine;
  for (unsigned n = 0; n < 1U << 16U; ++n) {
    machine.queue.offer(0);
    machine.queue.answer(0, 16);
    if (n % 8 == 7) machine.device->notify(0);
  }
  ASSERT_EQ(machine.queue.used(), 0);
  ByteWriter out;
  EXPECT_FALSE(machine.device->save(out));
}

TEST(VhostUserDevice, GoesNowhereOnceTheMachineIsToStop) {
  Running machine{Answers::before_return, {}, 8, DeviceType::block};
  ByteWriter out;
  ASSERT_TRUE(machine.device->save(out));
  machine.device->cancel();
  machine.device->go_on();
  EXPECT_TRUE(machine.events.failures().empty());
}

TEST(VhostUserDevice, FailsIfItsDaemonDoesNotGoOn) {
  Running machine{Answers::before_return, {}, 8, DeviceType::block};
  ByteWriter out;
  ASSERT_TRUE(machine.device->save(out));
  machine.fake.ack = 1;  // it refuses whatever it is told
  machine.device->go_on();
  EXPECT_EQ(machine.events.failures().size(), 1U);
}

TEST(VhostUserDevice, IsNotSavedBeforeAnAnswerThatDoesNotCome) {
  Running machine{Answers::by_kvm, {}, 8, DeviceType::block};
  machine.queue.offer(0);
  ByteWriter out;
  const auto saved = machine.device->save(out);
  ASSERT_FALSE(saved);
  EXPECT_NE(saved.error().what.find("has not answered 1 requests of queue 0"), std::string::npos) << saved.error().what;
  machine.queue.answer(0);
  EXPECT_TRUE(machine.device->save(out));
}

TEST(VhostUserDevice, AStopThatFailsIsAFailure) {
  Running machine;
  machine.fake.instead[FakeBackEnd::Request::get_vring_base] = {"", FakeBackEnd::Instead::Then::close};
  machine.device->stop();
  EXPECT_EQ(machine.events.failures(seconds{5}).size(), 1U);
}

TEST(VhostUserDevice, NeedsAsManyQueuesAsThereAre) {
  const auto memory = *GuestMemory::create(16 * mib, GuestBacking::shared);
  FakeBackEnd fake;
  fake.queues = 1;
  const auto device = VhostUserDevice::create(fake.begin(), memory,
                                              {.type = DeviceType::block,
                                               .queue_sizes = {8, 8},
                                               .features = 0,
                                               .configuration = VhostUserDevice::FromBackEnd{60}});
  ASSERT_FALSE(device);
  EXPECT_NE(device.error().what.find("has 1 queues, and 2 are needed"), std::string::npos);
}

/// A daemon that does not answer, and would have an hour to.
TEST(VhostUserDevice, DoesNotWaitForAnAnswerOnceTheMachineIsToStop) {
  const auto memory = *GuestMemory::create(16 * mib, GuestBacking::shared);
  FakeBackEnd fake;
  auto created = VhostUserDevice::create(
      fake.begin(std::chrono::hours{1}), memory,
      {.type = DeviceType::block, .queue_sizes = {8}, .configuration = VhostUserDevice::FromBackEnd{60}});
  ASSERT_TRUE(created) << describe(created.error());
  const auto device = std::move(*created);
  Events events;
  events.device = device.get();
  ASSERT_TRUE(device->begin(events));
  fake.instead[FakeBackEnd::Request::get_config] = {};
  const auto asked = fake.heard(FakeBackEnd::Request::get_config).size();
  std::array<std::byte, 4> bytes{std::byte{1}};
  auto read = std::async(std::launch::async, [&] { device->read_configuration(0, bytes); });
  while (fake.heard(FakeBackEnd::Request::get_config).size() == asked) std::this_thread::yield();
  device->cancel();
  read.get();
  EXPECT_EQ(bytes[0], std::byte{0});
  // Nor do later calls.
  const DriverQueue queue{memory, ring_at, 8};
  EXPECT_FALSE(device->start({.features = f_version_1, .rings = {queue.ring()}}));
  device->stop();
  EXPECT_TRUE(events.failures().empty()) << "that is no failure of the machine";
}

TEST(VhostUserDevice, AsksTheBackEndForItsConfiguration) {
  const auto memory = *GuestMemory::create(16 * mib, GuestBacking::shared);
  FakeBackEnd fake;
  const auto device = *VhostUserDevice::create(fake.begin(), memory,
                                               {.type = DeviceType::block,
                                                .queue_sizes = {8},
                                                .features = 4,
                                                .configuration = VhostUserDevice::FromBackEnd{60}});
  EXPECT_EQ(device->features(), f_version_1 | 4);
  Events events;
  events.device = device.get();
  ASSERT_TRUE(device->begin(events));
  std::array<std::byte, 8> bytes{};
  device->read_configuration(56, bytes);
  EXPECT_EQ(bytes[3], std::byte{7});
  EXPECT_EQ(bytes[4], std::byte{0});
  // A refused write is no failure of the device.
  fake.ack = 1;
  device->write_configuration(0, std::array{std::byte{1}});
  EXPECT_TRUE(events.failures().empty());
  fake.hang_up();
  device->read_configuration(0, bytes);
  EXPECT_EQ(bytes[0], std::byte{0});
  EXPECT_EQ(events.failures(seconds{5}).size(), 1U);
}

}  // namespace
}  // namespace vmm::test
