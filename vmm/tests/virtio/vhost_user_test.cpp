#include "virtio/vhost_user.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "fakes/driver_queue.hpp"
#include "fakes/fake_back_end.hpp"
#include "fakes/sizes.hpp"

namespace vmm::test {
namespace {

using namespace virtio;
using namespace virtio::vhost_user;
using std::chrono::milliseconds;

GuestMemory shared_memory(std::uint64_t bytes = 16 * mib) { return *GuestMemory::create(bytes, GuestBacking::shared); }

std::string eight_bytes(char first = 0) { return std::string{first} + std::string(7, '\0'); }

/// The text of an error, which must be one line and name the back end.
std::string line_of(const Error& error) {
  const std::string line = describe(error);
  EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  EXPECT_NE(line.find("the fake for /srv"), std::string::npos) << line;
  EXPECT_FALSE(error.advice.empty()) << line;
  return line;
}

TEST(VhostUser, AgreesOnFeaturesInTheProtocolsOrder) {
  const auto memory = shared_memory();
  FakeBackEnd fake;
  const auto front = VhostUser::connect(fake.begin(), memory);
  ASSERT_TRUE(front) << describe(front.error());
  EXPECT_EQ(front->features(), f_version_1 | 0x5);
  EXPECT_EQ(front->queues(), 2U);
  const auto heard = fake.heard();
  ASSERT_EQ(heard.size(), 5U);
  const std::array order{Request::get_features, Request::get_protocol_features, Request::set_protocol_features,
                         Request::get_queue_num, Request::set_owner};
  for (std::size_t index = 0; index < order.size(); ++index) EXPECT_EQ(heard[index].request, order[index]) << index;
  EXPECT_EQ(heard[2].as<std::uint64_t>(), 0x209U);
  EXPECT_EQ(heard[2].flags, 1U);
  EXPECT_EQ(heard[4].flags, 9U);
}

TEST(VhostUser, DoesWithoutProtocolFeatures) {
  const auto memory = shared_memory();
  FakeBackEnd fake;
  fake.features = f_version_1;
  auto front = VhostUser::connect(fake.begin(), memory);
  ASSERT_TRUE(front) << describe(front.error());
  EXPECT_FALSE(front->queues());
  const DriverQueue queue{memory, 0x10000, 8};
  const std::array events{VhostUser::QueueEvents{.kick = 0, .call = 1}};
  ASSERT_TRUE(front->start({.features = f_version_1, .rings = {queue.ring()}}, events));
  ASSERT_TRUE(front->stop());
  EXPECT_TRUE(fake.heard(Request::set_vring_enable).empty());
  EXPECT_EQ(fake.heard(Request::set_features).at(0).as<std::uint64_t>(), f_version_1);
  std::array<std::byte, 8> bytes{};
  EXPECT_NE(line_of(front->read_configuration(bytes).error()).find("does not tell"), std::string::npos);
}

TEST(VhostUser, GivesAllOfTheMemoryAndEachRing) {
  const auto memory = shared_memory(3 * gib + 64 * mib);
  FakeBackEnd fake;
  auto front = VhostUser::connect(fake.begin(), memory);
  ASSERT_TRUE(front) << describe(front.error());
  const DriverQueue queue{memory, 4 * gib + 0x10000, 8};
  const std::array events{VhostUser::QueueEvents{.kick = 0, .call = 1}, VhostUser::QueueEvents{.kick = 0, .call = 1}};
  const auto started = front->start({.features = f_version_1 | 1, .rings = {std::nullopt, queue.ring()}}, events);
  ASSERT_TRUE(started) << describe(started.error());
  EXPECT_EQ(fake.heard(Request::set_features).at(0).as<std::uint64_t>(), f_version_1 | f_protocol_features | 1);
  const auto table = fake.heard(Request::set_mem_table).at(0);
  EXPECT_EQ(table.descriptors, 2U);
  const auto regions = table.as<MemoryTable>();
  EXPECT_EQ(regions.regions, 2U);
  EXPECT_EQ(regions.region[0].guest_address, 0U);
  EXPECT_EQ(regions.region[0].bytes, 3 * gib);
  EXPECT_EQ(regions.region[0].file_offset, 0U);
  EXPECT_EQ(regions.region[1].guest_address, 4 * gib);
  EXPECT_EQ(regions.region[1].bytes, 64 * mib);
  EXPECT_EQ(regions.region[1].file_offset, 3 * gib);
  const auto number = fake.heard(Request::set_vring_num);
  ASSERT_EQ(number.size(), 1U);  // the other queue has no ring
  EXPECT_EQ(number[0].as<RingState>().index, 1U);
  EXPECT_EQ(number[0].as<RingState>().number, 8U);
  EXPECT_EQ(fake.heard(Request::set_vring_base).at(0).as<RingState>().number, 0U);
  const auto addresses = fake.heard(Request::set_vring_addr).at(0).as<RingAddresses>();
  const std::uint64_t here = regions.region[1].user_address;
  EXPECT_EQ(addresses.index, 1U);
  EXPECT_EQ(addresses.descriptors, here + 0x10000);
  EXPECT_EQ(addresses.available, here + 0x14000);
  EXPECT_EQ(addresses.used, here + 0x16000);
  EXPECT_EQ(fake.heard(Request::set_vring_kick).at(0).as<std::uint64_t>(), 1U);
  EXPECT_EQ(fake.heard(Request::set_vring_kick).at(0).descriptors, 1U);
  EXPECT_EQ(fake.heard(Request::set_vring_call).at(0).descriptors, 1U);
  EXPECT_EQ(fake.heard(Request::set_vring_enable).at(0).as<RingState>().number, 1U);
  ASSERT_TRUE(front->stop());
  EXPECT_EQ(fake.heard(Request::get_vring_base).at(0).as<RingState>().index, 1U);
  ASSERT_TRUE(front->stop());
  EXPECT_EQ(fake.heard(Request::get_vring_base).size(), 1U);  // the second stop() does nothing
}

TEST(VhostUser, RefusesRingsThatAreNotInRamOrNotAligned) {
  const auto memory = shared_memory();
  FakeBackEnd fake;
  auto front = VhostUser::connect(fake.begin(), memory);
  ASSERT_TRUE(front) << describe(front.error());
  const std::array events{VhostUser::QueueEvents{.kick = 0, .call = 1}};
  const Ring good = DriverQueue{memory, 0x10000, 256}.ring();
  std::vector<Ring> bad(9, good);
  bad[0].descriptors = vpmu::GuestPhysical{0x10008};
  bad[1].available = vpmu::GuestPhysical{0x14001};
  bad[2].used = vpmu::GuestPhysical{0x16002};
  bad[3].descriptors = vpmu::GuestPhysical{16 * mib - 4080};
  bad[4].available = vpmu::GuestPhysical{16 * mib - 516};
  bad[5].used = vpmu::GuestPhysical{16 * mib - 2052};
  bad[6].used = vpmu::GuestPhysical{~0ULL - 3};
  bad[7].size = 0;
  bad[8].size = 24;
  for (const Ring& ring : bad) {
    const auto outcome = front->start({.features = f_version_1, .rings = {ring}}, events);
    ASSERT_FALSE(outcome);
    EXPECT_NE(outcome.error().what.find("driver"), std::string::npos) << outcome.error().what;
  }
  EXPECT_TRUE(fake.heard(Request::set_mem_table).empty());
  EXPECT_TRUE(front->start({.features = f_version_1, .rings = {good}}, events));
}

TEST(VhostUser, ReadsAndWritesTheConfiguration) {
  const auto memory = shared_memory();
  FakeBackEnd fake;
  auto front = VhostUser::connect(fake.begin(), memory);
  ASSERT_TRUE(front) << describe(front.error());
  fake.configuration[3] = std::byte{0x55};
  std::array<std::byte, 60> bytes{};
  ASSERT_TRUE(front->read_configuration(bytes));
  EXPECT_EQ(bytes[0], std::byte{7});
  EXPECT_EQ(bytes[3], std::byte{0x55});
  ASSERT_TRUE(front->write_configuration(32, std::array{std::byte{1}}));
  const auto written = fake.heard(Request::set_config).at(0);
  ASSERT_EQ(written.payload.size(), 13U);
  EXPECT_EQ(written.payload[0], std::byte{32});
  EXPECT_EQ(written.payload[4], std::byte{1});
  EXPECT_EQ(written.payload[12], std::byte{1});
}

TEST(VhostUser, RefusesADeviceOfTheTimeBeforeVersion1) {
  const auto memory = shared_memory();
  FakeBackEnd fake;
  fake.features = f_protocol_features;
  const auto front = VhostUser::connect(fake.begin(), memory);
  ASSERT_FALSE(front);
  EXPECT_NE(line_of(front.error()).find("VERSION_1"), std::string::npos);
}

TEST(VhostUser, TellsWhatTheBackEndRefusesAndGoesOn) {
  const auto memory = shared_memory();
  FakeBackEnd fake;
  auto front = VhostUser::connect(fake.begin(), memory);
  ASSERT_TRUE(front) << describe(front.error());
  const std::array events{VhostUser::QueueEvents{.kick = 0, .call = 1}};
  const Ring ring = DriverQueue{memory, 0x10000, 8}.ring();
  fake.ack = 5;
  const auto outcome = front->start({.features = f_version_1, .rings = {ring}}, events);
  ASSERT_FALSE(outcome);
  EXPECT_NE(line_of(outcome.error()).find("SET_FEATURES: the daemon refused the request with status 0x5"),
            std::string::npos);
  fake.ack = 0;
  EXPECT_TRUE(front->start({.features = f_version_1, .rings = {ring}}, events));
}

struct Lie {
  const char* name;
  FakeBackEnd::Request request;
  FakeBackEnd::Instead instead;
  const char* seen;
};

class LyingBackEnd : public testing::TestWithParam<Lie> {};

/// Connects, starts and stops; ends at the first error.
Result<void> whole_life(FakeBackEnd& fake, const GuestMemory& memory) {
  VMM_ASSIGN(auto front, VhostUser::connect(fake.begin(milliseconds{200}), memory));
  std::array<std::byte, 60> bytes{};
  VMM_TRY(front.read_configuration(bytes));
  const std::array events{VhostUser::QueueEvents{.kick = 0, .call = 1}};
  const Ring ring = DriverQueue{memory, 0x10000, 8}.ring();
  VMM_TRY(front.start({.features = f_version_1, .rings = {ring}}, events));
  return front.stop();
}

TEST_P(LyingBackEnd, IsAnErrorOfOneLine) {
  const auto memory = shared_memory();
  FakeBackEnd fake;
  fake.instead[GetParam().request] = GetParam().instead;
  const auto begun = std::chrono::steady_clock::now();
  const auto outcome = whole_life(fake, memory);
  ASSERT_FALSE(outcome);
  const std::string line = line_of(outcome.error());
  EXPECT_NE(line.find(GetParam().seen), std::string::npos) << line;
  EXPECT_NE(line.find(name_of(GetParam().request)), std::string::npos) << line;
  EXPECT_LT(std::chrono::steady_clock::now() - begun, milliseconds{2000});
}

using Then = FakeBackEnd::Instead::Then;

INSTANTIATE_TEST_SUITE_P(
    All, LyingBackEnd,
    testing::Values(
        Lie{"AnswerToAnother", Request::get_features, {answer_bytes(99, 5, 8, eight_bytes())}, "request 99"},
        Lie{"OldVersion", Request::get_features, {answer_bytes(1, 4, 8, eight_bytes())}, "flags 0x4"},
        Lie{"NoAnswer", Request::get_features, {answer_bytes(1, 1, 8, eight_bytes())}, "flags 0x1"},
        Lie{"Oversized", Request::get_features, {answer_bytes(1, 5, 0xFFFFFFFF, eight_bytes())}, "4294967295 bytes"},
        Lie{"TooShort", Request::get_queue_num, {answer_bytes(17, 5, 4, std::string(4, '\0'))}, "4 bytes instead of 8"},
        Lie{"HalfAHeader", Request::get_features, {std::string(5, '\1')}, "no answer in 200 ms"},
        Lie{"HalfAPayload", Request::get_features, {answer_bytes(1, 5, 8, "abc")}, "no answer in 200 ms"},
        Lie{"HalfAPayloadAndGone", Request::get_features, {answer_bytes(1, 5, 8, "abc"), Then::close}, "closed"},
        Lie{"SilentAck", Request::set_vring_addr, {""}, "no answer in 200 ms"},
        Lie{"ConfigurationOfAnotherPlace",
            Request::get_config,
            {answer_bytes(24, 5, 72, std::string(72, '\1'))},
            "16843009 bytes from 16843009"},
        Lie{"ConfigurationRefused", Request::get_config, {answer_bytes(24, 5, 0, "")}, "0 bytes instead of 72"},
        Lie{"BaseOfAnotherQueue", Request::get_vring_base, {answer_bytes(11, 5, 8, eight_bytes(9))}, "queue 9"}),
    [](const auto& lie) { return lie.param.name; });

const char* const gone = "closed its connection";
INSTANTIATE_TEST_SUITE_P(
    GoneAt, LyingBackEnd,
    testing::Values(Lie{"Features", Request::get_features, {"", Then::close}, gone},
                    Lie{"ProtocolFeatures", Request::get_protocol_features, {"", Then::close}, gone},
                    Lie{"QueueNum", Request::get_queue_num, {"", Then::close}, gone},
                    Lie{"Owner", Request::set_owner, {"", Then::close}, gone},
                    Lie{"Config", Request::get_config, {"", Then::close}, gone},
                    Lie{"SetFeatures", Request::set_features, {"", Then::close}, gone},
                    Lie{"MemTable", Request::set_mem_table, {"", Then::close}, gone},
                    Lie{"VringNum", Request::set_vring_num, {"", Then::close}, gone},
                    Lie{"VringBase", Request::set_vring_base, {"", Then::close}, gone},
                    Lie{"VringAddr", Request::set_vring_addr, {"", Then::close}, gone},
                    Lie{"VringKick", Request::set_vring_kick, {"", Then::close}, gone},
                    Lie{"VringCall", Request::set_vring_call, {"", Then::close}, gone},
                    Lie{"VringEnable", Request::set_vring_enable, {"", Then::close}, gone},
                    Lie{"GetVringBase", Request::get_vring_base, {"", Then::close}, gone}),
    [](const auto& lie) { return lie.param.name; });

TEST(VhostUser, SaysNothingMoreToABackEndThatWasSilent) {
  const auto memory = shared_memory();
  FakeBackEnd fake;
  auto front = VhostUser::connect(fake.begin(milliseconds{200}), memory);
  ASSERT_TRUE(front) << describe(front.error());
  fake.instead[Request::get_config] = {""};
  std::array<std::byte, 60> bytes{};
  ASSERT_FALSE(front->read_configuration(bytes));
  const std::size_t heard = fake.heard().size();
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_FALSE(front->read_configuration(bytes));
  EXPECT_LT(std::chrono::steady_clock::now() - begun, milliseconds{100});
  EXPECT_EQ(fake.heard().size(), heard);
}

}  // namespace
}  // namespace vmm::test
