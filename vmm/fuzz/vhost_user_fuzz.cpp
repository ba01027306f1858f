#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "fuzz_input.hpp"
#include "virtio/vhost_user_device.hpp"

// A back end and a driver that may send anything. Half of the inputs are a daemon's answers, sent all at once before it
// stops sending: a device that is made, started, notified and stopped with them must come to an end. With the other
// inputs the daemon's answers are good, and the bytes are the guest's memory around the ring.

namespace {

using namespace vmm;
using namespace vmm::virtio;
using vpmu::fuzz::Input;
using vpmu::fuzz::require;

constexpr std::uint64_t ring_at = 0x1000, size_of_ram = GuestMemory::min_bytes;
constexpr std::uint16_t entries = 16;

std::uint64_t things_done = 0;

const GuestMemory& memory() {
  static const auto ram = *GuestMemory::create(size_of_ram, GuestBacking::shared);
  return ram;
}

struct Events final : DeviceEvents {
  void used(unsigned queue) override { require(++things_done != 0 && queue < 2, "of a queue that there is"); }
  void configuration_changed() override {}
  void written(vpmu::GuestPhysical at, std::uint64_t bytes) override {
    require(bytes != 0 && memory().bytes_at(at, bytes).size() == bytes, "what is written is RAM");
  }
  void broken(const Error& error) override { check(error); }
  void attention() override { device->attend(); }
  VhostUserDevice* device{};
  void failed(Error error) override { check(error); }
  static void check(const Error& error) {
    require(!error.what.empty() && describe(error).find('\n') == std::string::npos, "an error is one line");
  }
};

void add(std::string& to, std::uint32_t request, std::uint64_t value) {
  const std::array<std::uint32_t, 5> words{request, 5, 8, static_cast<std::uint32_t>(value),
                                           static_cast<std::uint32_t>(value >> 32U)};
  to.append(reinterpret_cast<const char*>(words.data()), sizeof words);
}

/// A good daemon's answers until its two queues run, and when they stop.
std::string good_answers(const std::array<bool, 2>& rings) {
  std::string answers;
  add(answers, 1, f_version_1 | 1ULL << 30U);
  add(answers, 15, 9);  // multiple queues, REPLY_ACK
  add(answers, 17, 2);
  for (const std::uint32_t request : {3U, 2U, 5U}) add(answers, request, 0);
  for (const bool there : rings)
    for (const std::uint32_t request : {8U, 10U, 9U, 12U, 13U, 18U})
      if (there) add(answers, request, 0);
  for (std::uint32_t index = 0; index < rings.size(); ++index)
    if (rings.at(index)) add(answers, 11, index);
  return answers;
}

Ring ring_of(Input& input, bool anywhere) {
  Ring ring{.size = entries,
            .descriptors = vpmu::GuestPhysical{ring_at},
            .available = vpmu::GuestPhysical{ring_at + 0x100},
            .used = vpmu::GuestPhysical{ring_at + 0x140}};
  if (!anywhere) return ring;
  ring.size = input.take<std::uint16_t>();
  for (auto* const part : {&ring.descriptors, &ring.available, &ring.used})
    *part = vpmu::GuestPhysical{input.take<std::uint64_t>()};
  return ring;
}

void live(const std::string& answers, Input& input, std::uint8_t choices) {
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "a pair of sockets");
  Fd front{ends[0]};
  const Fd back{ends[1]};
  require(::write(back.get(), answers.data(), answers.size()) == static_cast<ssize_t>(answers.size()), "answers fit");
  // No more answers will come, so no request waits for one; sending a request does not fail.
  ::shutdown(back.get(), SHUT_WR);
  VhostUserDevice::Options options{.type = DeviceType::block,
                                   .queue_sizes = {entries, entries},
                                   .features = ~0ULL,
                                   .configuration = std::vector<std::byte>(8),
                                   .answers = VhostUserDevice::Answers::before_return};
  if ((choices & 2U) != 0) options.configuration = VhostUserDevice::FromBackEnd{60};
  const bool receives = choices >> 5U == 7;  // like a network device; there is no queue of that number to notify
  if (receives) options.asynchronous = {0, 1};
  Events events;  // outlives the device, whose thread reports to it
  auto device = VhostUserDevice::create({.name = "the daemon", .socket = std::move(front)}, memory(), options);
  if (!device) return Events::check(device.error());
  ++things_done;
  events.device = device->get();
  if ((choices & 4U) != 0) require((*device)->begin(events).has_value(), "a thread");
  std::array<std::byte, 16> some{};
  (*device)->read_configuration(4, some);
  const DriverSetup setup{.features = f_version_1,
                          .rings = {ring_of(input, (choices & 8U) != 0), ring_of(input, (choices & 16U) != 0)}};
  if (const auto started = (*device)->start(setup); !started) return Events::check(started.error());
  ++things_done;
  // Memory around the ring: descriptors, both rings, and tables.
  for (std::uint64_t at = ring_at; !input.empty(); at += 8)
    if (!memory().store<std::uint64_t>(vpmu::GuestPhysical{at}, input.take<std::uint64_t>())) break;
  (*device)->notify(choices >> 5U);
  (*device)->notify(0);
  if (receives) (*device)->attend();
  (*device)->write_configuration(2, some);
  (*device)->stop();
}

}  // namespace

extern "C" std::uint64_t fuzz_work() { return things_done; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  size = std::min<std::size_t>(size, 2048);
  Input input{data, size};
  const auto choices = input.take<std::uint8_t>();
  if ((choices & 1U) == 0) {
    live(good_answers({true, true}), input, static_cast<std::uint8_t>(choices & ~2U));
    // The next input uses the same ring memory, so it is cleared.
    std::ranges::fill(memory().bytes_at(vpmu::GuestPhysical{ring_at}, 4096), std::byte{0});
    return 0;
  }
  Input none{nullptr, 0};
  live(std::string{reinterpret_cast<const char*>(data) + 1, size - 1}, none, static_cast<std::uint8_t>(choices & ~24U));
  return 0;
}
