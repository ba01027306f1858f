#include "exec/guest_devices.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "exec/kernel.hpp"
#include "files/output_file.hpp"

namespace vmm::tool {
namespace {

using virtio::VhostUserDevice;

constexpr unsigned port_output = 3, port_error = 4;  // of ports_

/// Virtio 1.2 5.11.4: tag[36], num_request_queues.
std::vector<std::byte> file_system_configuration(const std::string& tag) {
  constexpr std::size_t max_tag_length = 36;
  constexpr std::uint32_t request_queues = 1;
  std::vector<std::byte> bytes(max_tag_length + sizeof request_queues);
  std::memcpy(bytes.data(), tag.data(), std::min(tag.size(), max_tag_length));
  std::memcpy(bytes.data() + max_tag_length, &request_queues, sizeof request_queues);
  return bytes;
}

// Virtio 1.2 5.2.3: SIZE_MAX, SEG_MAX, GEOMETRY, RO, BLK_SIZE, FLUSH, TOPOLOGY, CONFIG_WCE, DISCARD, WRITE_ZEROES. One
// queue suffices for a guest with few processors.
constexpr std::uint64_t disk_features =
    1U << 1U | 1U << 2U | 1U << 4U | 1U << 5U | 1U << 6U | 1U << 9U | 1U << 10U | 1U << 11U | 1U << 13U | 1U << 14U;
constexpr std::uint32_t disk_configuration_bytes = 60;  // 5.2.4
// Virtio 1.2 5.1.3: MRG_RXBUF, which lets a packet fill several buffers. The driver makes up its own MAC address.
constexpr std::uint64_t network_features = 1U << 15U;
constexpr std::uint32_t network_configuration_bytes = 12;  // 5.1.4: the driver reads only fields of offered features

constexpr const char* start_first = "start the daemon first, and let it listen there";

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The daemon that this environment variable names, else this host's own, else a fetched one.
virtio::ProgramChoice program(const char* name, std::string fetched = {}) {
  return {.path = variable(name), .search_path = variable("PATH"), .last = std::move(fetched)};
}

/// Where the packages of Debian 12 or 13 install it.
std::string fetched_virtiofsd() {
  for (const char* const path : {"virtiofsd/usr/lib/qemu/virtiofsd", "virtiofsd/usr/libexec/virtiofsd"})
    if (const std::string fetched = fetched_file(path); ::access(fetched.c_str(), X_OK) == 0) return fetched;
  return {};
}

/// A duplicate of the descriptor, which is ours to close.
Result<Fd> stream(int number) {
  Fd own{::fcntl(number, F_DUPFD_CLOEXEC, 0)};
  if (!own.valid()) return host_error("a descriptor for the command's streams", errno);
  return own;
}

/// A file without a name that has this content, to read from its start.
Result<Fd> file_with(std::string_view content) {
  Fd file{::memfd_create("vpmu-request", MFD_CLOEXEC)};
  const bool written = file.valid() && write_all(file.get(), content) == 0 && ::lseek(file.get(), 0, SEEK_SET) == 0;
  if (!written) return host_error("a file for the guest's request", errno);
  return file;
}

}  // namespace

Result<GuestDevices> GuestDevices::start(const Choice& choice) {
  GuestDevices devices;
  for (const Share& share : choice.shares) VMM_TRY(devices.add(share));
  for (const Disk& disk : choice.disks) VMM_TRY(devices.add(disk));
  if (choice.network) VMM_TRY(devices.add(*choice.network));
  return devices;
}

Result<void> GuestDevices::add(const Share& share) {
  VMM_ASSIGN(auto back_end, share.socket.empty()
                                ? virtio::share_directory(share.directory, share.access,
                                                          program("VPMU_VIRTIOFSD", fetched_virtiofsd()), share.special)
                                : virtio::join_back_end(share.socket, "the virtiofsd of --root-socket", start_first));
  // The queue for high-priority requests, and one for all others. Virtio 1.2 5.11.2.
  started_.push_back({.back_end = std::move(back_end),
                      .options = {.type = virtio::DeviceType::file_system,
                                  .queue_sizes = {64, 128},
                                  .configuration = file_system_configuration(share.tag)}});
  return {};
}

Result<void> GuestDevices::add(const Disk& disk) {
  const DiskImage& image = disk.image;
  VMM_ASSIGN(auto back_end,
             disk.socket.empty()
                 ? virtio::serve_disk(image.path, image.format, image.access, program("VPMU_STORAGE_DAEMON"))
                 : virtio::join_back_end(disk.socket, "the disk of --disk-socket", start_first));
  started_.push_back({.back_end = std::move(back_end),
                      .options = {.type = virtio::DeviceType::block,
                                  .queue_sizes = {128},
                                  .features = disk_features,
                                  .configuration = VhostUserDevice::FromBackEnd{disk_configuration_bytes}}});
  return {};
}

Result<void> GuestDevices::add(const Network& network) {
  VMM_ASSIGN(auto back_end, network.socket.empty()
                                ? virtio::start_network(network.addresses, program("VPMU_PASST"))
                                : virtio::join_back_end(network.socket, "the network of --net-socket", start_first));
  constexpr unsigned receiver = 0;
  started_.push_back({.back_end = std::move(back_end),
                      .options = {.type = virtio::DeviceType::net,
                                  .queue_sizes = {256, 256},
                                  .features = network_features,
                                  .configuration = std::vector<std::byte>(network_configuration_bytes),
                                  .asynchronous = {receiver}}});
  return {};
}

Result<void> GuestDevices::connect(const Fd& channel, std::string_view request, bool drops_output) {
  VMM_ASSIGN(Fd hears, stream(channel.get()));
  VMM_ASSIGN(Fd says, stream(channel.get()));
  VMM_ASSIGN(Fd input, stream(STDIN_FILENO));
  const Fd nowhere{::open("/dev/null", O_WRONLY | O_CLOEXEC)};
  VMM_ASSIGN(Fd output, stream(drops_output ? nowhere.get() : STDOUT_FILENO));
  VMM_ASSIGN(Fd error, stream(drops_output ? nowhere.get() : STDERR_FILENO));
  VMM_ASSIGN(Fd request_file, file_with(request));
  ports_.push_back({.name = "vpmu.control",
                    .input = std::move(hears),
                    .output = std::move(says),
                    .heard = [this](std::span<const std::byte> bytes) { heard(bytes); }});
  // Its end is in the request, so the port stays open.
  ports_.push_back(
      {.name = "vpmu.request", .input = std::move(request_file), .at_end = [](std::uint64_t /*bytes*/) {}});
  ports_.push_back({.name = "vpmu.stdin", .input = std::move(input), .at_end = [this](std::uint64_t bytes) {
                      if (input_ends_) input_ends_(bytes);
                    }});
  ports_.push_back(output_port("vpmu.stdout", std::move(output), lost_output_));
  ports_.push_back(output_port("vpmu.stderr", std::move(error), lost_error_));
  return {};
}

void GuestDevices::heard(std::span<const std::byte> bytes) {
  if (!ready_) return;
  said_.add({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  while (const auto text = said_.take_line()) {
    const auto line = read_guest_line(*text);
    if (!line || !std::holds_alternative<ReadyLine>(*line)) continue;
    return std::exchange(ready_, nullptr)();
  }
}

virtio::Console::Port GuestDevices::output_port(const char* name, Fd output, std::shared_ptr<Loss> loss) {
  return {.name = name, .output = std::move(output), .lost = [loss = std::move(loss)](std::uint64_t bytes, int error) {
            loss->bytes += bytes;
            loss->error = error;
          }};
}

std::vector<LostOutput> GuestDevices::lost_output() const {
  std::vector<LostOutput> all;
  for (const auto& [stream, loss] : {std::pair{"output", lost_output_.get()}, std::pair{"error", lost_error_.get()}})
    if (loss->bytes != 0) all.push_back({.stream = stream, .bytes = loss->bytes, .error = loss->error});
  return all;
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
  for (Started& started : started_) {
    started.options.answers = by_kvm ? VhostUserDevice::Answers::by_kvm : VhostUserDevice::Answers::before_return;
    VMM_ASSIGN(auto device, VhostUserDevice::create(started.back_end.take_peer(), memory, std::move(started.options)));
    devices.push_back(std::move(device));
  }
  return devices;
}

WrittenLine GuestDevices::passed_on() const {
  return {.output = console_->passed_on(port_output), .error = console_->passed_on(port_error)};
}

}  // namespace vmm::tool
