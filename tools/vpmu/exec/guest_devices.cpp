#include "exec/guest_devices.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "virtio/vhost_user_device.hpp"

namespace vmm::tool {
namespace {

using virtio::VhostUserDevice;

constexpr unsigned port_output = 2, port_error = 3;  // of ports_

/// Virtio 1.2 5.11.4: tag[36], num_request_queues.
std::vector<std::byte> file_system_configuration(const std::string& tag) {
  constexpr std::size_t longest_tag = 36;
  constexpr std::uint32_t request_queues = 1;
  std::vector<std::byte> bytes(longest_tag + sizeof request_queues);
  std::memcpy(bytes.data(), tag.data(), std::min(tag.size(), longest_tag));
  std::memcpy(bytes.data() + longest_tag, &request_queues, sizeof request_queues);
  return bytes;
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// A descriptor of our own.
Result<Fd> stream(int number) {
  Fd own{::fcntl(number, F_DUPFD_CLOEXEC, 0)};
  if (!own.valid()) return host_error("a descriptor for the command's streams", errno);
  return own;
}

}  // namespace

Result<GuestDevices> GuestDevices::start(const std::vector<Share>& shares) {
  GuestDevices devices;
  const virtio::ProgramChoice program{.path = variable("VPMU_VIRTIOFSD"), .search_path = variable("PATH")};
  for (const Share& share : shares) {
    VMM_ASSIGN(auto back_end, virtio::share_directory(share.directory, share.access, program));
    devices.file_systems_.push_back({.tag = share.tag, .back_end = std::move(back_end)});
  }
  return devices;
}

Result<void> GuestDevices::connect(const Fd& channel, bool has_terminal, bool drops_output) {
  VMM_ASSIGN(Fd hears, stream(channel.get()));
  VMM_ASSIGN(Fd says, stream(channel.get()));
  VMM_ASSIGN(Fd input, stream(STDIN_FILENO));
  const Fd nowhere{::open("/dev/null", O_WRONLY | O_CLOEXEC)};
  VMM_ASSIGN(Fd output, stream(drops_output ? nowhere.get() : STDOUT_FILENO));
  VMM_ASSIGN(Fd error, stream(drops_output ? nowhere.get() : STDERR_FILENO));
  ports_.push_back({.name = "vpmu.control", .input = std::move(hears), .output = std::move(says)});
  ports_.push_back({.name = "vpmu.stdin", .input = std::move(input), .at_end = [this](std::uint64_t bytes) {
                      if (input_ends_) input_ends_(bytes);
                    }});
  ports_.push_back({.name = "vpmu.stdout", .output = std::move(output)});
  if (!has_terminal) ports_.push_back({.name = "vpmu.stderr", .output = std::move(error)});
  return {};
}

Machine::Hooks::DeviceFactory GuestDevices::factory(Accel accel) {
  return [this, accel](const GuestMemory& memory) { return make(memory, accel); };
}

Result<std::vector<std::unique_ptr<virtio::Device>>> GuestDevices::make(const GuestMemory& memory, Accel accel) {
  std::vector<std::unique_ptr<virtio::Device>> devices;
  const bool by_kvm = accel == Accel::kvm;
  const auto work = by_kvm ? virtio::Console::Work::by_itself : virtio::Console::Work::by_vcpu;
  VMM_ASSIGN(auto console, virtio::Console::create(memory, std::move(ports_), work));
  console_ = console.get();
  devices.push_back(std::move(console));
  for (FileSystem& file_system : file_systems_) {
    // A queue for requests that overtake the others, and one for these. Virtio 1.2 5.11.2.
    const VhostUserDevice::Options options{
        .type = virtio::DeviceType::file_system,
        .queue_sizes = {64, 128},
        .configuration = file_system_configuration(file_system.tag),
        .answers = by_kvm ? VhostUserDevice::Answers::by_kvm : VhostUserDevice::Answers::before_return};
    VMM_ASSIGN(auto device, VhostUserDevice::create(file_system.back_end.take_peer(), memory, options));
    devices.push_back(std::move(device));
  }
  return devices;
}

WrittenLine GuestDevices::passed_on() const {
  return {.output = console_->passed_on(port_output),
          .error = console_->ports() > port_error ? console_->passed_on(port_error) : 0};
}

}  // namespace vmm::tool
