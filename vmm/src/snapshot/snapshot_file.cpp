#include "snapshot/snapshot_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>

#include <fmt/format.h>

namespace vmm {
namespace {

constexpr std::uint64_t magic = 0x5041'4E53'554D'5056;      // "VPMUSNAP"
constexpr std::uint64_t end_magic = 0x444E'4553'554D'5056;  // "VPMUSEND"
constexpr std::uint64_t version = 1;
/// Of all but RAM; a snapshot has some ten KiB for each vCPU.
constexpr std::uint64_t most_image_bytes = 64ULL << 20U;

using Page = std::array<std::byte, vpmu::page_size>;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

/// A stream of plain words and runs.
class SnapshotStream {
 public:
  static SnapshotStream reading(const std::string& path) { return {path, ::open(path.c_str(), O_RDONLY | O_CLOEXEC), "r"}; }
  /// For the owner only: it will hold all that the guest has in memory.
  static SnapshotStream writing(const std::string& path) {
    constexpr mode_t owner_only = 0600;
    return {path, ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, owner_only), "w"};
  }
  [[nodiscard]] bool is_open() const { return file_ != nullptr; }

  bool write(std::span<const std::byte> bytes) { return std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size(); }
  bool write(std::uint64_t word) { return write(std::as_bytes(std::span{&word, 1})); }
  bool read(std::span<std::byte> bytes) { return std::fread(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size(); }
  bool read(std::uint64_t& word) { return read(std::as_writable_bytes(std::span{&word, 1})); }
  bool flush() { return std::fflush(file_.get()) == 0 && ::fsync(::fileno(file_.get())) == 0; }

  [[nodiscard]] Failure cannot(const std::string& what, const std::string& option) const {
    return usage_error(fmt::format("cannot {} the snapshot {}: {}", what, printable(path_), errno_text(errno)), option);
  }
  [[nodiscard]] Failure is_no_snapshot(const std::string& why) const {
    return usage_error(fmt::format("{} is no snapshot that can be restored: {}", printable(path_), why), "give a file that `vpmu ctl SOCKET snapshot` of this version wrote");
  }

 private:
  SnapshotStream(const std::string& path, int fd, const char* mode) : path_{path}, file_{fd < 0 ? nullptr : ::fdopen(fd, mode)} {}

  std::string path_;
  std::unique_ptr<std::FILE, CloseFile> file_;
};

Bytes encode(const MachineImage& image) {
  ByteWriter out;
  out.put_run(std::as_bytes(std::span{image.model}));
  out.put(image.memory_bytes);
  out.put(image.cpus);
  out.put(image.threads_per_core);
  out.put(std::uint64_t{image.bare_metal});
  out.put_run(image.chips);
  out.put_run(image.devices);
  for (const Bytes& vcpu : image.vcpus) out.put_run(vcpu);
  return out.take();
}

Bytes copy(std::span<const std::byte> run) { return {run.begin(), run.end()}; }

/// False where it is not of this form.
bool decode(std::span<const std::byte> bytes, MachineImage& image) {
  ByteReader in{bytes};
  const auto model = in.get_run();
  image.model.assign(reinterpret_cast<const char*>(model.data()), model.size());
  image.memory_bytes = in.get<std::uint64_t>();
  image.cpus = in.get<std::uint32_t>();
  image.threads_per_core = in.get<std::uint32_t>();
  image.bare_metal = in.get<std::uint64_t>() != 0;
  image.chips = copy(in.get_run());
  image.devices = copy(in.get_run());
  for (std::uint32_t i = 0; i < image.cpus && in.good(); ++i) image.vcpus.push_back(copy(in.get_run()));
  return in.done();
}

/// What stands before the RAM; leaves the stream there.
Result<Bytes> read_head(SnapshotStream& file) {
  std::uint64_t found_magic = 0, found_version = 0, size = 0;
  if (!file.is_open()) return file.cannot("read", "give a file that `vpmu ctl SOCKET snapshot` wrote with --restore");
  if (!file.read(found_magic) || found_magic != magic) return file.is_no_snapshot("it does not begin like one");
  if (!file.read(found_version) || found_version != version) return file.is_no_snapshot(fmt::format("it has format {}, not {}", found_version, version));
  if (!file.read(size) || size > most_image_bytes) return file.is_no_snapshot(fmt::format("{} bytes of state", size));
  Bytes bytes(size);
  if (!file.read(bytes)) return file.is_no_snapshot("it is cut short");
  return bytes;
}

bool is_zero(const Page& page) {
  return std::ranges::all_of(page, [](std::byte b) { return b == std::byte{}; });
}

bool write_memory(SnapshotStream& file, const GuestMemory& memory) {
  Page page;
  for (const MemoryRange& range : memory.ranges())
    for (std::uint64_t offset = 0; offset < range.bytes; offset += page.size()) {
      const vpmu::GuestPhysical at{range.first.value() + offset};
      if (!memory.read(at, page)) return false;
      if (!is_zero(page) && (!file.write(at.value()) || !file.write(page))) return false;
    }
  return file.write(end_magic);
}

}  // namespace

Result<void> write_snapshot(const std::string& path, const MachineImage& image, const GuestMemory& memory) {
  const std::string unfinished = path + ".part";
  const std::string advice = "give a path with room for the guest's memory";
  auto file = SnapshotStream::writing(unfinished);
  if (!file.is_open()) return file.cannot("write", advice);
  const Bytes head = encode(image);
  const bool written = file.write(magic) && file.write(version) && file.write(head.size()) && file.write(head) && write_memory(file, memory) && file.flush();
  if (written && std::rename(unfinished.c_str(), path.c_str()) == 0) return {};
  const Failure failure = file.cannot("write", advice);
  ::unlink(unfinished.c_str());
  return failure;
}

Result<MachineImage> read_snapshot(const std::string& path) {
  auto file = SnapshotStream::reading(path);
  VMM_ASSIGN(const Bytes head, read_head(file));
  MachineImage image;
  if (!decode(head, image)) return file.is_no_snapshot("its state is not of this form");
  return image;
}

Result<void> read_memory(const std::string& path, const GuestMemory& memory) {
  auto file = SnapshotStream::reading(path);
  VMM_TRY(read_head(file));
  Page page;
  for (;;) {
    std::uint64_t at = 0;
    if (!file.read(at)) return file.is_no_snapshot("it is cut short");
    if (at == end_magic) return {};
    if (!file.read(page)) return file.is_no_snapshot("it is cut short");
    if (!memory.write(vpmu::GuestPhysical{at}, page)) return file.is_no_snapshot(fmt::format("a page at {:#x} is not RAM", at));
  }
}

}  // namespace vmm
