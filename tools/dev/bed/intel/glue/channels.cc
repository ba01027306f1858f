// Channels between a program in the emulated machine and files of ours: BED_CHANNELS has their descriptors, "IN:OUT"
// for each, separated by commas. A read blocks, and with it the whole machine, which has nothing else to do then.
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include <unistd.h>

#include "channel.h"
#include "guest_memory.hpp"
#include "options.hpp"

#include "bochs.h"
#include "iodev/iodev.h"

namespace bed {
namespace {

struct Ends {
  int in{-1}, out{-1};
};

std::array<Ends, bed_channel_count> channels() {
  std::array<Ends, bed_channel_count> all{};
  const char* at = std::getenv("BED_CHANNELS");
  for (Ends& ends : all) {
    int used = 0;
    if (at == nullptr || std::sscanf(at, "%d:%d%n", &ends.in, &ends.out, &used) != 2) break;
    at += used;
    if (*at == ',') ++at;
  }
  return all;
}

template <class Call>
ssize_t again(Call&& call) {
  ssize_t done = -1;
  do done = call();
  while (done < 0 && errno == EINTR);
  return done < 0 ? -errno : done;
}

ssize_t write_all(int file, std::span<const std::byte> data) {
  for (std::size_t done = 0; done < data.size();) {
    const ssize_t n = again([&] { return ::write(file, data.data() + done, data.size() - done); });
    if (n < 0) return n;
    done += static_cast<std::size_t>(n);
  }
  return static_cast<ssize_t>(data.size());
}

ssize_t serve(const bed_channel_request& request) {
  static const auto all = channels();
  static std::vector<std::byte> buffer(bed_channel_most);
  if (request.channel >= all.size() || request.bytes > buffer.size()) return -EINVAL;
  const Ends& ends = all[request.channel];
  const std::span data = std::span{buffer}.first(request.bytes);
  if (request.what == bed_channel_write) return read_guest(request.buffer, data) ? -EFAULT : write_all(ends.out, data);
  if (request.what != bed_channel_read) return -EINVAL;
  if (probe_guest(request.buffer, request.bytes)) return -EFAULT;
  const ssize_t n = again([&] { return ::read(ends.in, data.data(), data.size()); });
  if (n > 0 && write_guest(request.buffer, data.first(static_cast<std::size_t>(n)))) return -EFAULT;
  return n;
}

void on_write(void*, Bit32u, Bit32u value, unsigned) {
  bed_channel_request request;
  const auto bytes = std::as_writable_bytes(std::span{&request, 1});
  if (read_guest(value, bytes)) return;
  request.done = static_cast<std::int32_t>(serve(request));
  (void)write_guest(value, bytes);
}

}  // namespace

void connect_channels() {
  static bool connected = false;
  if (!connected) DEV_register_iowrite_handler(nullptr, on_write, bed_channel_port, "channels to the bed", 4);
  connected = true;
}

}  // namespace bed
