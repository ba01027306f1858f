// The virtio transport over PCI, as a driver uses it. Virtio 1.2 sections 3.1 and 4.1.
#include "virtio/pci_device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <array>
#include <map>
#include <string>

namespace vmm::virtio {
namespace {

using testing::ElementsAre;
using vpmu::GuestPhysical;

constexpr std::uint32_t window = 0xE000'0000;

class FakeDevice final : public Device {
 public:
  explicit FakeDevice(bool has_events) {
    for (Fd& fd : notify_fds)
      if (has_events) fd = Fd{::eventfd(0, EFD_CLOEXEC)};
    for (Fd& fd : used_fds)
      if (has_events) fd = Fd{::eventfd(0, EFD_CLOEXEC)};
  }
  [[nodiscard]] DeviceType type() const override { return DeviceType::block; }
  [[nodiscard]] std::uint64_t features() const override { return f_version_1 | 0x30; }
  [[nodiscard]] std::span<const std::uint16_t> queue_sizes() const override { return sizes; }
  void read_configuration(std::uint32_t offset, std::span<std::byte> out) override {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(offset + i);
  }
  void write_configuration(std::uint32_t offset, std::span<const std::byte> in) override {
    heard.push_back("config " + std::to_string(offset) + " " + std::to_string(in.size()));
  }
  Result<void> begin(DeviceEvents& to) override {
    events = &to;
    return {};
  }
  Result<void> start(const DriverSetup& given) override {
    heard.emplace_back("start");
    setup = given;
    if (refuses) return usage_error("the rings make no sense");
    return {};
  }
  Result<void> save(ByteWriter& out) override {
    heard.emplace_back("save");
    out.put(state);
    return {};
  }
  void go_on() override { heard.emplace_back("go on"); }
  Result<void> resume(const DriverSetup& given, ByteReader& in) override {
    heard.emplace_back("resume");
    setup = given;
    state = in.get<std::uint32_t>();
    if (refuses) return usage_error("the rings make no sense");
    return {};
  }
  void notify(unsigned queue) override { heard.push_back("notify " + std::to_string(queue)); }
  void stop() override { heard.emplace_back("stop"); }
  void attend() override { heard.emplace_back("attend"); }
  [[nodiscard]] const Fd* notify_event(unsigned queue) const override {
    return notify_fds[queue].valid() ? &notify_fds[queue] : nullptr;
  }
  [[nodiscard]] const Fd* used_event(unsigned queue) const override {
    return used_fds[queue].valid() ? &used_fds[queue] : nullptr;
  }

  std::array<std::uint16_t, 2> sizes{256, 64};
  std::array<Fd, 2> notify_fds, used_fds;
  std::vector<std::string> heard;
  DriverSetup setup;
  std::uint32_t state{0x1234};
  DeviceEvents* events{};
  bool refuses{};
};

class FakeWires final : public DeviceWires {
 public:
  Result<void> send(const InterruptMessage& message) override {
    sent.push_back(message.data);
    return {};
  }
  Result<void> wire_interrupt(const Fd& event, const std::optional<InterruptMessage>& message) override {
    if (message)
      interrupts[event.get()] = message->data;
    else
      interrupts.erase(event.get());
    return {};
  }
  Result<void> wire_store(GuestPhysical at, const Fd& event, Wire wire) override {
    if (wire == Wire::connect)
      EXPECT_TRUE(stores.emplace(at.value(), event.get()).second);
    else
      EXPECT_EQ(stores.erase(at.value()), 1U);
    return {};
  }
  std::vector<std::uint32_t> sent;
  std::map<int, std::uint32_t> interrupts;  ///< By the event.
  std::map<std::uint64_t, int> stores;
};

class VirtioPci : public testing::TestWithParam<bool> {
 protected:
  VirtioPci() {
    make();
    EXPECT_TRUE(pci->begin());
    pci->config_write(0x04, 6, 0xFFFF);
    find_structures();
  }

  /// One that no driver has seen.
  void make() {
    wires = {};
    auto owned = std::make_unique<FakeDevice>(GetParam());
    device = owned.get();
    pci = std::make_unique<PciDevice>(
        std::move(owned), window, wires,
        PciDevice::Machine{.written = [](GuestPhysical, std::uint64_t) {},
                           .failed = [this](const Error& error) { failures.push_back(error.what); },
                           .refused = [this](const Error& error) { refusals.push_back(error.what); },
                           .attention = [this] { ++attentions; }});
  }
  Bytes saved() {
    ByteWriter out;
    EXPECT_TRUE(pci->save(out));
    return out.take();
  }

  /// Finds them as a driver does, by the list of capabilities. Virtio 1.2 4.1.4.
  void find_structures() {
    for (std::uint32_t at = pci->config_read(0x34) & 0xFF; at != 0;) {
      const auto dword = [&](std::uint32_t offset) { return pci->config_read(static_cast<std::uint8_t>(at + offset)); };
      const std::uint32_t head = dword(0);
      if ((head & 0xFF) == 0x09) {
        const std::uint32_t bar = pci->config_read(static_cast<std::uint8_t>(0x10 + 4 * (dword(4) & 0xFF))) & ~0xFU;
        structures[head >> 24U] = bar + dword(8);
        EXPECT_GE(dword(12), head >> 24U == 1 ? 56U : 1U);
        if (head >> 24U == 2) multiplier = dword(16);
      } else if ((head & 0xFF) == 0x11) {
        msix_capability = static_cast<std::uint8_t>(at);
        EXPECT_EQ(head >> 16U, 2U) << "three vectors";
        table = (pci->config_read(static_cast<std::uint8_t>(0x10 + 4 * (dword(4) & 7))) & ~0xFU) + (dword(4) & ~7U);
      }
      at = head >> 8U & 0xFF;
    }
  }

  template <class Word>
  Word read(std::uint32_t at) const {
    Word value = static_cast<Word>(~Word{0});
    EXPECT_TRUE(pci->memory_read(GuestPhysical{at}, std::as_writable_bytes(std::span{&value, 1})));
    return value;
  }
  template <class Word>
  void write(std::uint32_t at, Word value) const {
    EXPECT_TRUE(pci->memory_write(GuestPhysical{at}, std::as_bytes(std::span{&value, 1})));
  }
  [[nodiscard]] std::uint32_t common(std::uint32_t offset) const { return structures.at(1) + offset; }

  void set_features(std::uint64_t features) const {
    for (std::uint32_t half = 0; half < 2; ++half) {
      write<std::uint32_t>(common(8), half);
      write<std::uint32_t>(common(12), static_cast<std::uint32_t>(features >> (32 * half)));
    }
  }
  void set_vector(unsigned vector, std::uint32_t data, bool masked = false) const {
    write<std::uint32_t>(table + 16 * vector, 0xFEE0'0000);
    write<std::uint32_t>(table + 16 * vector + 8, data);
    write<std::uint32_t>(table + 16 * vector + 12, masked ? 1 : 0);
  }
  void set_queue(std::uint16_t queue, std::uint16_t size) const {
    write<std::uint16_t>(common(22), queue);
    write<std::uint16_t>(common(24), size);
    write<std::uint16_t>(common(26), static_cast<std::uint16_t>(queue + 1));
    write<std::uint32_t>(common(32), 0x1000U * (queue + 1U));
    write<std::uint32_t>(common(36), 1);
    write<std::uint64_t>(common(40), 0x2'0000'2000);
    write<std::uint32_t>(common(48), 0x3000);
    write<std::uint16_t>(common(28), 1);
  }
  /// Initializes the device as a driver does, up to DRIVER_OK.
  void drive() const {
    write<std::uint8_t>(common(20), 1);
    write<std::uint8_t>(common(20), 3);
    set_features(f_version_1 | 0x10);
    write<std::uint8_t>(common(20), 11);
    EXPECT_EQ(read<std::uint8_t>(common(20)), 11) << "the features are accepted";
    pci->config_write(msix_capability, 0x8000'0000, 0xFFFF'0000);
    for (unsigned vector = 0; vector < 3; ++vector) set_vector(vector, 0x40 + vector);
    write<std::uint16_t>(common(16), 0);
    set_queue(0, 128);
    write<std::uint8_t>(common(20), 15);
  }
  [[nodiscard]] std::uint32_t notify_address(unsigned queue) const { return structures.at(2) + queue * multiplier; }

  FakeWires wires;
  FakeDevice* device{};
  std::unique_ptr<PciDevice> pci;
  std::vector<std::string> failures, refusals;
  unsigned attentions{};
  std::map<std::uint32_t, std::uint32_t> structures;
  std::uint32_t table{}, multiplier{};
  std::uint8_t msix_capability{};
};

TEST_P(VirtioPci, TellsWhatItIs) {
  EXPECT_EQ(pci->config_read(0), 0x1042'1AF4U) << "virtio 1.2 4.1.2: 1040H + the device's type";
  EXPECT_EQ(pci->config_read(0x08) >> 24U, 1U) << "mass storage";
  EXPECT_EQ(structures.size(), 4U);
  EXPECT_EQ(read<std::uint16_t>(common(18)), 2U) << "queues";
  EXPECT_EQ(read<std::uint16_t>(common(24)), 256U);
  write<std::uint16_t>(common(22), 1);
  EXPECT_EQ(read<std::uint16_t>(common(24)), 64U);
  write<std::uint16_t>(common(22), 2);
  EXPECT_EQ(read<std::uint16_t>(common(24)), 0U) << "there is no queue 2";
  write<std::uint32_t>(common(0), 1);
  EXPECT_EQ(read<std::uint32_t>(common(4)), 1U) << "VIRTIO_F_VERSION_1";
  EXPECT_EQ(read<std::uint32_t>(structures.at(4) + 8), 0x0B0A'0908U) << "the device's configuration";
  write<std::uint16_t>(structures.at(4) + 6, 0);
  EXPECT_THAT(device->heard, ElementsAre("config 6 2"));
}

TEST_P(VirtioPci, StartsTheDeviceWithWhatTheDriverHasSet) {
  drive();
  EXPECT_THAT(device->heard, ElementsAre("start"));
  EXPECT_EQ(device->setup.features, f_version_1 | 0x10);
  ASSERT_EQ(device->setup.rings.size(), 2U);
  ASSERT_TRUE(device->setup.rings[0]);
  EXPECT_EQ(device->setup.rings[0]->size, 128);
  EXPECT_EQ(device->setup.rings[0]->descriptors, GuestPhysical{0x1'0000'1000});
  EXPECT_EQ(device->setup.rings[0]->available, GuestPhysical{0x2'0000'2000});
  EXPECT_EQ(device->setup.rings[0]->used, GuestPhysical{0x3000});
  EXPECT_FALSE(device->setup.rings[1]) << "the driver did not enable it";
}

// Virtio 1.2 2.2.2: a device refuses features that it did not offer, and drivers of legacy devices.
TEST_P(VirtioPci, RefusesOtherFeatures) {
  for (const std::uint64_t features : {f_version_1 | 0x40, std::uint64_t{0x10}}) {
    write<std::uint8_t>(common(20), 0);
    set_features(features);
    write<std::uint8_t>(common(20), 11);
    EXPECT_EQ(read<std::uint8_t>(common(20)), 3) << "no FEATURES_OK";
    write<std::uint8_t>(common(20), 15);
    EXPECT_THAT(device->heard, ElementsAre());
  }
}

TEST_P(VirtioPci, TakesQueueSizesThatItCanHave) {
  for (const std::uint16_t size : std::array<std::uint16_t, 4>{0, 3, 512, 257}) {
    write<std::uint16_t>(common(24), size);
    EXPECT_EQ(read<std::uint16_t>(common(24)), 256) << size;
  }
  write<std::uint16_t>(common(26), 3);
  EXPECT_EQ(read<std::uint16_t>(common(26)), 0xFFFF) << "there is no vector 3";
  write<std::uint16_t>(common(28), 1);
  write<std::uint16_t>(common(24), 64);
  EXPECT_EQ(read<std::uint16_t>(common(24)), 256) << "an enabled queue stays as it is";
}

TEST_P(VirtioPci, PassesNotificationsOn) {
  write<std::uint16_t>(notify_address(0), 0);
  EXPECT_THAT(device->heard, ElementsAre()) << "before the driver is ready";
  drive();
  device->heard.clear();
  write<std::uint16_t>(notify_address(0), 0);
  write<std::uint16_t>(notify_address(1), 1);
  write<std::uint16_t>(notify_address(2), 2);
  EXPECT_THAT(device->heard, ElementsAre("notify 0", "notify 1"));
}

TEST_P(VirtioPci, InterruptsByTheQueuesVector) {
  drive();
  device->events->used(0);
  EXPECT_THAT(wires.sent, ElementsAre(0x41U));
  device->events->used(1);
  EXPECT_THAT(wires.sent, ElementsAre(0x41U)) << "no vector was set";
  device->events->configuration_changed();
  EXPECT_THAT(wires.sent, ElementsAre(0x41U, 0x40U));
  EXPECT_EQ(read<std::uint8_t>(common(21)), 1) << "the generation";
}

TEST_P(VirtioPci, KeepsAnInterruptForItsVector) {
  drive();
  set_vector(1, 0x51, true);
  device->events->used(0);
  EXPECT_THAT(wires.sent, ElementsAre());
  set_vector(1, 0x52);
  EXPECT_THAT(wires.sent, ElementsAre(0x52U));
}

TEST_P(VirtioPci, ResetsTheDevice) {
  drive();
  write<std::uint8_t>(common(20), 0);
  EXPECT_THAT(device->heard, ElementsAre("start", "stop"));
  EXPECT_EQ(read<std::uint8_t>(common(20)), 0);
  write<std::uint16_t>(common(22), 0);
  EXPECT_EQ(read<std::uint16_t>(common(28)), 0) << "no queue is enabled";
  device->heard.clear();
  drive();
  EXPECT_THAT(device->heard, ElementsAre("start"));
}

TEST_P(VirtioPci, IsRestoredAsItsDriverHasSetIt) {
  drive();
  set_vector(1, 0x51, true);
  device->events->used(0);
  device->events->configuration_changed();
  write<std::uint16_t>(common(22), 1);
  device->state = 0x77;
  const Bytes image = saved();
  pci->go_on();
  EXPECT_THAT(device->heard, ElementsAre("start", "save", "go on"));
  EXPECT_EQ(attentions, 1U) << "what has come meanwhile is looked at before the guest runs";
  const DriverSetup setup = device->setup;
  make();
  device->state = 0;
  wires.sent.clear();
  ByteReader in{image};
  ASSERT_TRUE(pci->restore(in));
  EXPECT_TRUE(in.done());
  EXPECT_THAT(device->heard, ElementsAre("resume"));
  EXPECT_EQ(device->state, 0x77U);
  EXPECT_EQ(device->setup.features, setup.features);
  ASSERT_TRUE(device->setup.rings[0]);
  EXPECT_EQ(device->setup.rings[0]->size, 128);
  EXPECT_EQ(device->setup.rings[0]->used, setup.rings[0]->used);
  EXPECT_FALSE(device->setup.rings[1]);
  EXPECT_EQ(attentions, 2U) << "and here";
  EXPECT_TRUE(pci->begin());
  EXPECT_EQ(read<std::uint8_t>(common(20)), 15);
  EXPECT_EQ(read<std::uint8_t>(common(21)), 1) << "the generation";
  EXPECT_EQ(read<std::uint16_t>(common(22)), 1) << "the selected queue";
  EXPECT_EQ(read<std::uint8_t>(structures.at(3)), 3) << "the interrupt status";
  EXPECT_THAT(wires.sent, ElementsAre()) << "the vector is masked";
  set_vector(1, 0x52);
  EXPECT_THAT(wires.sent, ElementsAre(0x52U));
  write<std::uint32_t>(notify_address(0), 0);
  EXPECT_EQ(device->heard.back(), "notify 0");
}

TEST_P(VirtioPci, IsRestoredBeforeItsDriverWasReady) {
  write<std::uint8_t>(common(20), 3);
  const Bytes image = saved();
  make();
  ByteReader in{image};
  ASSERT_TRUE(pci->restore(in));
  EXPECT_TRUE(in.done());
  EXPECT_THAT(device->heard, ElementsAre());
  EXPECT_EQ(read<std::uint8_t>(common(20)), 3);
  drive();
  EXPECT_THAT(device->heard, ElementsAre("start"));
}

// A snapshot may be damaged, or made to harm.
TEST_P(VirtioPci, RestoresNothingThatCannotBe) {
  drive();
  const Bytes image = saved();
  unsigned refused = 0;
  for (std::size_t at = 0; at < image.size(); ++at)
    for (const unsigned flip : {0x01U, 0x80U, 0xFFU}) {
      Bytes bytes = image;
      bytes[at] ^= static_cast<std::byte>(flip);
      make();
      ByteReader in{bytes};
      if (!pci->restore(in)) ++refused;
      for (const auto& ring : device->setup.rings) EXPECT_LE(ring ? ring->size : 0, 256) << "as the device offers";
    }
  EXPECT_GT(refused, 10U);
  for (std::size_t size = 0; size < image.size(); size += 7) {
    make();
    ByteReader in{std::span{image}.first(size)};
    EXPECT_FALSE(pci->restore(in)) << size;
  }
  make();
  device->refuses = true;
  ByteReader in{image};
  const auto restored = pci->restore(in);
  ASSERT_FALSE(restored);
  EXPECT_EQ(restored.error().what, "the rings make no sense");
}

// Virtio 1.2 2.1.2.
TEST_P(VirtioPci, NeedsAResetAfterWhatItCannotDo) {
  device->refuses = true;
  drive();
  EXPECT_EQ(read<std::uint8_t>(common(20)), 15 | 64);
  EXPECT_THAT(refusals, ElementsAre("the rings make no sense"));
  EXPECT_THAT(wires.sent, ElementsAre(0x40U)) << "a change of the configuration";
  device->refuses = false;
  write<std::uint8_t>(common(20), 0);
  drive();
  EXPECT_EQ(read<std::uint8_t>(common(20)), 15);
  device->events->broken({.kind = ErrorKind::usage, .what = "a loop"});
  EXPECT_EQ(read<std::uint8_t>(common(20)), 15 | 64);
}

TEST_P(VirtioPci, AttendsToWhoAsks) {
  pci->attend();
  EXPECT_THAT(device->heard, ElementsAre());
  device->events->attention();
  EXPECT_EQ(attentions, 1U);
  pci->attend();
  pci->attend();
  EXPECT_THAT(device->heard, ElementsAre("attend"));
}

TEST_P(VirtioPci, DecodesNoMemoryThatItWasNotGiven) {
  std::uint32_t value = 0;
  const auto bytes = std::as_writable_bytes(std::span{&value, 1});
  EXPECT_FALSE(pci->memory_read(GuestPhysical{window - 4}, bytes));
  EXPECT_FALSE(pci->memory_read(GuestPhysical{window + PciDevice::window_bytes}, bytes));
  pci->config_write(0x04, 0, 0xFFFF);
  EXPECT_FALSE(pci->memory_read(GuestPhysical{window}, bytes));
}

INSTANTIATE_TEST_SUITE_P(Events, VirtioPci, testing::Bool(),
                         [](const auto& test) { return test.param ? "WiredByKvm" : "Itself"; });

class WiredVirtioPci : public VirtioPci {};

TEST_P(WiredVirtioPci, WiresQueuesWhileTheDriverUsesThem) {
  EXPECT_TRUE(wires.stores.empty());
  drive();
  ASSERT_EQ(wires.stores.size(), 1U) << "queue 1 is not enabled";
  EXPECT_EQ(wires.stores.begin()->first, notify_address(0));
  EXPECT_EQ(wires.stores.begin()->second, device->notify_fds[0].get());
  EXPECT_EQ(wires.interrupts.at(device->used_fds[0].get()), 0x41U);
  write<std::uint8_t>(common(20), 0);
  EXPECT_TRUE(wires.stores.empty());
  EXPECT_TRUE(wires.interrupts.empty());
}

TEST_P(WiredVirtioPci, FollowsMasksMessagesAndBars) {
  drive();
  set_vector(1, 0x51, true);
  EXPECT_TRUE(wires.interrupts.empty()) << "masked: the event keeps what comes";
  set_vector(1, 0x52);
  EXPECT_EQ(wires.interrupts.at(device->used_fds[0].get()), 0x52U);
  pci->config_write(0x10, 0xE800'0000, 0xFFFF'FFFF);
  ASSERT_EQ(wires.stores.size(), 1U);
  EXPECT_EQ(wires.stores.begin()->first, notify_address(0) - window + 0xE800'0000);
  pci->config_write(0x04, 0, 0xFFFF);
  EXPECT_TRUE(wires.stores.empty()) << "it decodes no memory";
}

INSTANTIATE_TEST_SUITE_P(Events, WiredVirtioPci, testing::Values(true));

}  // namespace
}  // namespace vmm::virtio
