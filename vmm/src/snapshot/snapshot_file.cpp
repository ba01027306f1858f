#include "snapshot/snapshot_file.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include <fmt/format.h>

namespace vmm {
namespace {

// The sections, in their order: "machine", "chips", "devices", "vcpu 0" and so on, "pages" (a bit for each page of the
// RAM, set where the page is not zero), "memory" (those pages).
constexpr std::uint64_t max_machine_bytes = 4096;
/// Of the chips, and of the devices: some ten KiB.
constexpr std::uint64_t max_state_bytes = 1U << 20U;
/// Of each vCPU: the same, and a few MiB with a model of the processor.
constexpr std::uint64_t max_vcpu_bytes = 32U << 20U;
constexpr std::size_t max_model_length = 64;

/// How much is written, read and added to a checksum at a time: it stays in the cache meanwhile.
constexpr std::uint64_t max_run_pages = 64;

std::string vcpu_section(std::size_t id) { return fmt::format("vcpu {}", id); }

Bytes encode(const MachineImage& image) {
  ByteWriter out;
  out.put_run(std::as_bytes(std::span{image.model}));
  out.put(image.memory_bytes);
  out.put(image.cpus);
  out.put(image.threads_per_core);
  out.put(std::uint64_t{image.bare_metal});
  out.put(std::uint64_t{image.without_kvm});
  out.put(image.epoch);
  out.put(image.turn);
  out.put(image.turn_seed);
  out.put(image.time);
  out.put_run(std::as_bytes(std::span{image.changes}));
  return out.take();
}

/// False if the bytes do not have this form.
bool decode(std::span<const std::byte> bytes, MachineImage& image) {
  ByteReader in{bytes};
  const auto get_text = [&in] {
    const auto run = in.get_run();
    return std::string{reinterpret_cast<const char*>(run.data()), run.size()};
  };
  image.model = get_text();
  image.memory_bytes = in.get<std::uint64_t>();
  image.cpus = in.get<std::uint32_t>();
  image.threads_per_core = in.get<std::uint32_t>();
  image.bare_metal = in.get<std::uint64_t>() != 0;
  image.without_kvm = in.get<std::uint64_t>() != 0;
  image.epoch = in.get<std::int64_t>();
  image.turn = in.get<std::uint64_t>();
  image.turn_seed = in.get<std::uint64_t>();
  image.time = in.get<std::uint64_t>();
  image.changes = get_text();
  return in.done() && image.model.size() <= max_model_length && image.cpus >= 1 &&
         image.cpus <= MachineImage::max_vcpus;
}

/// A bit for each page of RAM, in the order of the memory's ranges.
class PageSet {
 public:
  explicit PageSet(const GuestMemory& memory) : bits_((memory.bytes() / vpmu::page_size + 7) / 8) {}

  [[nodiscard]] bool has(std::uint64_t page) const { return (bits_[page / 8] & bit(page)) != std::byte{}; }
  void add(std::uint64_t page) { bits_[page / 8] |= bit(page); }
  [[nodiscard]] std::uint64_t count() const {
    std::uint64_t count = 0;
    for (const std::byte b : bits_) count += static_cast<unsigned>(std::popcount(std::to_integer<std::uint8_t>(b)));
    return count;
  }
  [[nodiscard]] const Bytes& bits() const { return bits_; }
  /// False if the bits do not fit this memory.
  bool take(const GuestMemory& memory, Bytes bits) {
    const std::uint64_t pages = memory.bytes() / vpmu::page_size;
    if (bits.size() != bits_.size()) return false;
    bits_ = std::move(bits);
    for (std::uint64_t page = pages; page < bits_.size() * 8; ++page)
      if (has(page)) return false;
    return true;
  }

 private:
  static std::byte bit(std::uint64_t page) { return std::byte{1} << (page % 8); }
  Bytes bits_;
};

bool is_zero(std::span<const std::byte> page) {
  std::uint64_t any = 0;
  for (std::size_t at = 0; at < page.size(); at += 64) {
    std::array<std::uint64_t, 8> line{};
    std::memcpy(line.data(), page.data() + at, sizeof line);
    for (const std::uint64_t word : line) any |= word;
    if (any != 0) return false;
  }
  return true;
}

PageSet used_pages(const GuestMemory& memory) {
  PageSet pages{memory};
  std::uint64_t page = 0;
  for (const MemoryRange& range : memory.ranges())
    for (std::uint64_t offset = 0; offset < range.bytes; offset += vpmu::page_size, ++page)
      if (!is_zero(memory.bytes_at(range.first + offset, vpmu::page_size))) pages.add(page);
  return pages;
}

/// Calls `visit` with the address and the bytes of each run of pages, in order, up to its first failure.
template <class Visit>
Result<void> for_each_run(const GuestMemory& memory, const PageSet& pages, const Visit& visit) {
  std::uint64_t page = 0;
  for (const MemoryRange& range : memory.ranges()) {
    const std::uint64_t end = page + range.bytes / vpmu::page_size;
    const std::uint64_t first = page;
    while (page < end) {
      const std::uint64_t from = page;
      while (page < end && page - from < max_run_pages && pages.has(page)) ++page;
      const vpmu::GuestPhysical at = range.first + (from - first) * vpmu::page_size;
      if (page != from)
        VMM_TRY(visit(at, memory.bytes_at(at, (page - from) * vpmu::page_size)));
      else
        ++page;
    }
  }
  return {};
}

}  // namespace

Result<WholeFile> new_snapshot_file(const std::string& path) {
  return WholeFile::create(path, {.what = "the snapshot",
                                  .advice = "give the path of a file, new or old, with room for the guest's memory"});
}

Result<WholeFile> given_snapshot_file(Fd fd) {
  return WholeFile::given(std::move(fd), {.what = "the snapshot",
                                          .advice = "send the descriptor of a file with room for the guest's memory"});
}

Result<void> write_snapshot(WholeFile whole, const MachineImage& image, const GuestMemory& memory) {
  VMM_ASSIGN(auto file, SectionWriter::create(std::move(whole)));
  VMM_TRY(file.put("machine", encode(image)));
  VMM_TRY(file.put("chips", image.chips));
  VMM_TRY(file.put("devices", image.devices));
  for (std::size_t id = 0; id < image.vcpus.size(); ++id) VMM_TRY(file.put(vcpu_section(id), image.vcpus[id]));
  const PageSet pages = used_pages(memory);
  VMM_TRY(file.put("pages", pages.bits()));
  VMM_TRY(file.begin("memory", pages.count() * vpmu::page_size));
  VMM_TRY(for_each_run(memory, pages,
                       [&file](vpmu::GuestPhysical /*at*/, std::span<const std::byte> run) { return file.add(run); }));
  VMM_TRY(file.end());
  return file.finish();
}

Result<SnapshotReader> SnapshotReader::open(const std::string& path) {
  VMM_ASSIGN(auto file, SectionReader::open(path));
  SnapshotReader reader{std::move(file)};
  VMM_TRY(reader.read_image());
  return reader;
}

Result<void> SnapshotReader::read_image() {
  VMM_ASSIGN(const Bytes machine, file_.get("machine", max_machine_bytes));
  if (!decode(machine, image_)) return file_.refused("machine", "it has another format than this version's");
  VMM_ASSIGN(image_.chips, file_.get("chips", max_state_bytes));
  VMM_ASSIGN(image_.devices, file_.get("devices", max_state_bytes));
  for (std::uint32_t id = 0; id < image_.cpus; ++id) {
    VMM_ASSIGN(image_.vcpus.emplace_back(), file_.get(vcpu_section(id), max_vcpu_bytes));
  }
  return {};
}

Result<void> SnapshotReader::read_memory(const GuestMemory& memory) {
  PageSet pages{memory};
  VMM_ASSIGN(Bytes bits, file_.get("pages", pages.bits().size()));
  if (!pages.take(memory, std::move(bits)))
    return file_.refused("pages", fmt::format("it does not describe {} bytes of RAM", memory.bytes()));
  VMM_ASSIGN(const std::uint64_t size, file_.begin("memory"));
  if (size != pages.count() * vpmu::page_size)
    return file_.refused("memory",
                         fmt::format("it has {} bytes, which are not those of {} pages", size, pages.count()));
  Bytes copy(max_run_pages * vpmu::page_size);
  const auto fill = [&](vpmu::GuestPhysical at, std::span<std::byte> run) -> Result<void> {
    const auto bytes = std::span{copy}.first(run.size());
    VMM_TRY(file_.read(bytes));
    return memory.fill(at, bytes);
  };
  VMM_TRY(for_each_run(memory, pages, fill));
  VMM_TRY(file_.end());
  return file_.finish();
}

}  // namespace vmm
