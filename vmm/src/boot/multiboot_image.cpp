#include "boot/multiboot_image.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "boot/byte_view.hpp"
#include "boot/elf_image.hpp"
#include "boot/layout.hpp"
#include "support/assert.hpp"
#include "support/bytes_of.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::bit;

// Multiboot Specification 0.6.96, 3.1: where the header is, and which of its flags a loader may not ignore.
constexpr std::uint64_t header_within = 8192, header_step = 4;
constexpr std::uint32_t header_magic = 0x1BADB002;
constexpr std::uint32_t pages_aligned = bit(0), wants_memory = bit(1), required_flags = 0xFFFF, has_addresses = bit(16);

// 3.3: the information structure.
constexpr std::uint32_t has_memory = bit(0), has_command_line = bit(2), has_modules = bit(3), has_map = bit(6),
                        has_loader_name = bit(9);
struct Info {
  std::uint32_t flags, memory_lower, memory_upper, boot_device, command_line, module_count, modules;
  std::array<std::uint32_t, 4> symbols;
  std::uint32_t map_bytes, map;
  std::uint32_t drive_bytes, drives, config_table, loader_name;
};
struct Module {
  std::uint32_t first, end, name, reserved;
};
struct [[gnu::packed]] MapEntry {
  std::uint32_t size;  ///< Of what follows.
  std::uint64_t first, bytes;
  std::uint32_t kind;
};
constexpr std::uint32_t map_ram = 1;
constexpr std::string_view loader_name = "vpmu";

/// Where these lie, from layout::multiboot_info on.
constexpr std::uint64_t module_at = 0x80, loader_name_at = 0xA0, map_at = 0xC0;
static_assert(sizeof(Info) <= module_at && module_at + sizeof(Module) <= loader_name_at);

Failure bad_multiboot(const std::string& what) {
  return usage_error("bad multiboot kernel: " + what, "give another kernel with --kernel");
}

/// The header's flags.
std::optional<std::uint32_t> find_header(const ByteView& file) {
  for (std::uint64_t at = 0; at < header_within; at += header_step) {
    const auto magic = file.read<std::uint32_t>(at), flags = file.read<std::uint32_t>(at + 4),
               checksum = file.read<std::uint32_t>(at + 8);
    if (!checksum || at + 12 > header_within) return std::nullopt;
    if (*magic == header_magic && *magic + *flags + *checksum == 0) return flags;
  }
  return std::nullopt;
}

std::uint32_t place(vpmu::GuestPhysical at) { return static_cast<std::uint32_t>(at.value()); }

std::vector<MapEntry> map_of(const GuestMemory& memory) {
  constexpr std::uint32_t size = sizeof(MapEntry) - sizeof(MapEntry::size);
  std::vector<MapEntry> map{{.size = size, .first = 0, .bytes = layout::low_ram_end.value(), .kind = map_ram}};
  for (const auto& range : memory.ranges()) {
    const std::uint64_t first = std::max(range.first, layout::high_ram).value();
    map.push_back({.size = size, .first = first, .bytes = range.first.value() + range.bytes - first, .kind = map_ram});
  }
  return map;
}

/// Places the module after the kernel and above 1 MiB, in pages of its own.
Result<Module> place_module(const GuestMemory& memory, vpmu::GuestPhysical kernel_end,
                            std::span<const std::byte> module) {
  const std::uint64_t free = std::max(kernel_end, layout::high_ram).value();
  const vpmu::GuestPhysical at{(free + vpmu::page_size - 1) / vpmu::page_size * vpmu::page_size};
  const std::uint64_t end = at.value() + module.size();
  if (end > GuestMemory::hole_first || !memory.write(at, module))
    return usage_error(fmt::format("an initial RAM disk of {} bytes does not fit after the kernel, which ends at {:#x}",
                                   module.size(), kernel_end.value()),
                       "give more memory with --memory, or a smaller --initrd");
  return Module{.first = place(at), .end = static_cast<std::uint32_t>(end), .name = 0, .reserved = 0};
}

}  // namespace

bool is_multiboot_image(std::span<const std::byte> file) { return find_header(ByteView{file}).has_value(); }

Result<LoadedMultiboot> load_multiboot(const GuestMemory& memory, std::span<const std::byte> kernel,
                                       std::span<const std::byte> module, const std::string& command_line) {
  const auto flags = find_header(ByteView{kernel});
  if (!flags) return bad_multiboot("it has no multiboot header in its first 8 KiB");
  if ((*flags & has_addresses) != 0)
    return bad_multiboot("its header gives load addresses (flag 16); only ELF files are loaded");
  if (const std::uint32_t unknown = *flags & required_flags & ~(pages_aligned | wants_memory); unknown != 0)
    return bad_multiboot(fmt::format("its header requires more than the memory map: flags {:#x}", *flags));
  if (command_line.size() >= layout::command_line_room)
    return usage_error(
        fmt::format("the command line has {} bytes, more than {}", command_line.size(), layout::command_line_room - 1),
        "shorten --append");
  VMM_ASSIGN(const LoadedElf loaded, load_elf(memory, kernel, ElfClass::bits32));
  const auto at = layout::multiboot_info;
  const std::vector<MapEntry> map = map_of(memory);
  const std::uint64_t below_hole = std::min(memory.bytes(), GuestMemory::hole_first);
  Info info{.flags = has_memory | has_command_line | has_map | has_loader_name,
            .memory_lower = static_cast<std::uint32_t>(layout::low_ram_end.value() / 1024),
            .memory_upper = static_cast<std::uint32_t>((below_hole - layout::high_ram.value()) / 1024),
            .command_line = place(layout::command_line),
            .map_bytes = static_cast<std::uint32_t>(map.size() * sizeof(MapEntry)),
            .map = place(at + map_at),
            .loader_name = place(at + loader_name_at)};
  if (!module.empty()) {
    VMM_ASSIGN(Module placed, place_module(memory, loaded.end, module));
    placed.name = place(layout::command_line + command_line.size());  // its terminator: no name
    info.flags |= has_modules;
    info.module_count = 1;
    info.modules = place(at + module_at);
    VMM_ASSERT(memory.write(at + module_at, bytes_of(placed)));
  }
  VMM_ASSERT(memory.write(at, bytes_of(info)) && memory.write(at + map_at, std::as_bytes(std::span{map})) &&
             memory.write(at + loader_name_at, std::as_bytes(std::span{loader_name})) &&
             memory.write(layout::command_line, std::as_bytes(std::span{command_line})));
  return LoadedMultiboot{.entry = loaded.entry, .info = at};
}

}  // namespace vmm
