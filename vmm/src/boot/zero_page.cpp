#include "boot/zero_page.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "boot/layout.hpp"
#include "support/assert.hpp"

namespace vmm {
namespace {

// Offsets in the zero page (zero-page.rst and boot.rst).
constexpr std::size_t rsdp_at = 0x070;
constexpr std::size_t ext_initrd_at = 0x0C0;
constexpr std::size_t ext_initrd_bytes_at = 0x0C4;
constexpr std::size_t memory_map_count_at = 0x1E8;
constexpr std::size_t setup_header_at = 0x1F1;
constexpr std::size_t loader_type_at = 0x210;
constexpr std::size_t page_load_flags_at = 0x211;
constexpr std::size_t initrd_at = 0x218;
constexpr std::size_t initrd_bytes_at = 0x21C;
constexpr std::size_t command_line_at = 0x228;
constexpr std::size_t setup_header_end = 0x290;
constexpr std::size_t memory_map_at = 0x2D0;

constexpr std::uint8_t undefined_loader = 0xFF;
constexpr std::uint8_t quiet_setup = 0x20;

enum class MapKind : std::uint32_t { ram = 1, reserved = 2 };

/// A page under construction.
class Page {
 public:
  template <class T>
  void put(std::size_t at, T value) {
    VMM_ASSERT(at + sizeof(T) <= bytes_.size());
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
  }
  void copy(std::size_t at, std::span<const std::byte> in) {
    std::ranges::copy(in, bytes_.begin() + static_cast<std::ptrdiff_t>(at));
  }
  template <class T>
  [[nodiscard]] T get(std::size_t at) const {
    T value;
    std::memcpy(&value, bytes_.data() + at, sizeof(T));
    return value;
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

  /// Adds an entry to the E820 map.
  void map(std::uint64_t first, std::uint64_t end, MapKind kind) {
    const auto count = get<std::uint8_t>(memory_map_count_at);
    const std::size_t at = memory_map_at + std::size_t{count} * 20;
    put(at, first);
    put(at + 8, end - first);
    put(at + 16, static_cast<std::uint32_t>(kind));
    put(memory_map_count_at, static_cast<std::uint8_t>(count + 1));
  }

 private:
  std::array<std::byte, vpmu::page_size> bytes_{};
};

}  // namespace

bool write_zero_page(const GuestMemory& memory, const ZeroPageContents& contents) {
  Page page;
  page.copy(setup_header_at,
            contents.setup_header.first(std::min(contents.setup_header.size(), setup_header_end - setup_header_at)));
  page.put(loader_type_at, undefined_loader);
  page.put(page_load_flags_at, static_cast<std::uint8_t>(page.get<std::uint8_t>(page_load_flags_at) | quiet_setup));
  page.put(command_line_at, static_cast<std::uint32_t>(layout::command_line.value()));
  page.put(rsdp_at, contents.rsdp.value());
  const auto initrd = contents.initrd;
  page.put(initrd_at, static_cast<std::uint32_t>(initrd.at.value()));
  page.put(initrd_bytes_at, static_cast<std::uint32_t>(initrd.bytes));
  page.put(ext_initrd_at, static_cast<std::uint32_t>(initrd.at.value() >> 32U));
  page.put(ext_initrd_bytes_at, static_cast<std::uint32_t>(initrd.bytes >> 32U));

  page.map(0, layout::low_ram_end.value(), MapKind::ram);
  page.map(layout::low_ram_end.value(), layout::high_ram.value(), MapKind::reserved);
  for (const auto& range : memory.ranges()) {
    const auto first = std::max(range.first, layout::high_ram).value();
    page.map(first, range.first.value() + range.bytes, MapKind::ram);
  }
  return memory.write(layout::zero_page, page.bytes());
}

}  // namespace vmm
