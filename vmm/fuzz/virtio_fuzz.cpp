// A guest that uses the console on the PCI bus: accesses to ports and device memory, and the contents of its RAM; and
// consoles that are restored from its state, changed or not.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>

#include "devices/pci_bus.hpp"
#include "fuzz_input.hpp"
#include "memory/guest_memory.hpp"
#include "virtio/console.hpp"
#include "virtio/pci_device.hpp"

namespace vmm::virtio {
namespace {

using vpmu::fuzz::Input;
using vpmu::fuzz::require;

constexpr std::uint32_t window = 0xE000'0000;
constexpr std::uint64_t ram_bytes = GuestMemory::min_bytes, rings_at = 0x10'0000, ring_bytes = 0x1000;
std::uint64_t things_done = 0;

const GuestMemory& memory() {
  static const auto ram = *GuestMemory::create(ram_bytes);
  return ram;
}

/// Counts each message; no processor is interrupted.
class Wires final : public DeviceWires {
 public:
  Result<void> send(const InterruptMessage& /*message*/) override {
    ++things_done;
    return {};
  }
  Result<void> wire_interrupt(const Fd& /*event*/, const std::optional<InterruptMessage>& /*message*/) override {
    return {};
  }
  Result<void> wire_store(vpmu::GuestPhysical /*at*/, const Fd& /*event*/, Wire /*wire*/) override { return {}; }
};

void look_at(const Error& error) {
  require(!error.what.empty() && describe(error).find('\n') == std::string::npos, "an error is one line");
}

std::unique_ptr<Console> make_console() {
  std::vector<Console::Port> ports;
  ports.push_back({.name = "zero", .input = Fd{::open("/dev/zero", O_RDONLY | O_CLOEXEC)}});
  ports.push_back({.name = "null",
                   .input = Fd{::open("/dev/null", O_RDONLY | O_CLOEXEC)},
                   .output = Fd{::open("/dev/null", O_WRONLY | O_CLOEXEC)}});
  return *Console::create(memory(), std::move(ports), Console::Work::by_vcpu);
}

/// A driver's steps to DRIVER_OK, so that an input need not find them. Queue `i` has its rings at a page of its own.
void drive(PciBus& bus) {
  const auto write = [&bus](std::uint32_t at, auto value) {
    bus.mmio_write(vpmu::GuestPhysical{window + at}, std::as_bytes(std::span{&value, 1}));
  };
  write(8, std::uint32_t{1});
  write(12, std::uint32_t{1});
  write(8, std::uint32_t{0});
  write(12, std::uint32_t{2});
  write(20, std::uint8_t{11});
  for (std::uint16_t queue = 0; queue < 6; ++queue) {
    const std::uint64_t at = rings_at + queue * ring_bytes;
    write(22, queue);
    write(24, std::uint16_t{8});
    write(26, static_cast<std::uint16_t>(queue % 3));
    write(32, at);
    write(40, at + 0x100);
    write(48, at + 0x140);
    write(28, std::uint16_t{1});
  }
  write(20, std::uint8_t{15});
  for (std::uint32_t vector = 0; vector < 3; ++vector) {
    write(0x4000 + vector * 16, std::uint32_t{0xFEE0'0000});
    write(0x400C + vector * 16, std::uint32_t{0});
  }
}

void turn_msix_on(PciDevice& device) {
  for (auto at = static_cast<std::uint8_t>(device.config_read(0x34)); at != 0;
       at = static_cast<std::uint8_t>(device.config_read(at) >> 8U))
    if ((device.config_read(at) & 0xFF) == 0x11) device.config_write(at, 0x8000'0000, 0xFFFF'0000);
}

std::unique_ptr<PciDevice> make_device(Wires& wires) {
  return std::make_unique<PciDevice>(
      make_console(), window, wires,
      PciDevice::Machine{.written =
                             [](vpmu::GuestPhysical at, std::uint64_t bytes) {
                               require(memory().bytes_at(at, bytes).size() == bytes, "what is written is RAM");
                             },
                         .failed = [](const Error&) { require(false, "a guest alone makes no device fail"); },
                         .refused = [](const Error& error) { look_at(error); },
                         .attention = [] {}});
}

/// A second device takes over the state, of which a byte is changed, and is used.
void restore_another(PciDevice& device, std::uint16_t at, std::uint8_t changes) {
  ByteWriter out;
  require(device.save(out).has_value(), "a console can be saved at any time");
  Bytes image = out.take();
  image[at % image.size()] ^= static_cast<std::byte>(changes);
  Wires wires;
  const auto other = make_device(wires);
  ByteReader in{image};
  if (const auto restored = other->restore(in); !restored) {
    look_at(restored.error());
  } else {
    ++things_done;
    require(in.good(), "all that was missing is refused");
    require(other->begin().has_value(), "a thread");
    other->attend();
    for (std::uint32_t queue = 0; queue < 6; ++queue)
      other->memory_write(vpmu::GuestPhysical{window + 0x3000 + queue * 4}, std::as_bytes(std::span{&queue, 1}));
  }
  device.go_on();
}

void act(PciBus& bus, PciDevice& device, Input& input) {
  const auto kind = input.take<std::uint8_t>();
  const auto at = input.take<std::uint16_t>();
  const auto value = input.take<std::uint64_t>();
  const std::size_t bytes = std::size_t{1} << (kind >> 4U & 3U);
  auto data = std::as_bytes(std::span{&value, 1}).first(bytes);
  std::array<std::byte, 8> out{};
  switch (kind & 7U) {
    case 0: return bus.mmio_write(vpmu::GuestPhysical{window + at}, data);
    case 1: return bus.mmio_read(vpmu::GuestPhysical{window + at}, std::span{out}.first(bytes));
    case 2:
      return bus.port_write(at % 5 == 4 ? PciBus::address_port : PciBus::data_port + at % 4,
                            data.first(std::min<std::size_t>(bytes, 4)));
    case 3: return bus.port_read(PciBus::data_port + at % 4, std::span{out}.first(std::min<std::size_t>(bytes, 4)));
    case 4: return device.attend();
    case 5: {  // a notification
      const std::uint16_t queue = at % 8;
      return bus.mmio_write(vpmu::GuestPhysical{window + 0x3000 + queue * 4U}, std::as_bytes(std::span{&queue, 1}));
    }
    case 6: return restore_another(device, at, static_cast<std::uint8_t>(value));
    default:  // the driver's memory: descriptors and rings
      static_cast<void>(memory().write(vpmu::GuestPhysical{rings_at + at % (6 * ring_bytes)}, data));
  }
}

}  // namespace

}  // namespace vmm::virtio

extern "C" std::uint64_t fuzz_work() { return vmm::virtio::things_done; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace vmm::virtio;
  constexpr std::size_t max = 4096;
  Input input{data, std::min(size, max)};
  Wires wires;
  vmm::PciBus bus;
  auto owned = make_device(wires);
  PciDevice& device = *owned;
  bus.add(std::move(owned));
  require(device.begin().has_value(), "a thread");
  device.config_write(4, 6, 0xFFFF);
  if (input.take<std::uint8_t>() % 4 != 0) {
    turn_msix_on(device);
    drive(bus);
  }
  while (!input.empty()) act(bus, device, input);
  std::ranges::fill(memory().bytes_at(vpmu::GuestPhysical{rings_at}, 6 * ring_bytes), std::byte{0});
  return 0;
}
