#include "boot/linux_image.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "boot/byte_view.hpp"
#include "boot/layout.hpp"
#include "boot/zero_page.hpp"

namespace vmm {
namespace {

// Offsets in the file (boot.rst, "The Real-Mode Kernel Header").
constexpr std::uint64_t setup_sectors_at = 0x1F1;
constexpr std::uint64_t code_paragraphs_at = 0x1F4;
constexpr std::uint64_t boot_flag_at = 0x1FE;
constexpr std::uint64_t header_length_at = 0x201;
constexpr std::uint64_t magic_at = 0x202;
constexpr std::uint64_t protocol_at = 0x206;
constexpr std::uint64_t load_flags_at = 0x211;
constexpr std::uint64_t initrd_highest_at = 0x22C;
constexpr std::uint64_t alignment_at = 0x230;
constexpr std::uint64_t relocatable_at = 0x234;
constexpr std::uint64_t extra_load_flags_at = 0x236;
constexpr std::uint64_t command_line_size_at = 0x238;
constexpr std::uint64_t preferred_address_at = 0x258;
constexpr std::uint64_t memory_bytes_at = 0x260;
constexpr std::uint64_t min_header_end = 0x268;

constexpr std::uint16_t boot_flag = 0xAA55;
constexpr std::uint32_t setup_magic = 0x53726448;  // "HdrS"
constexpr std::uint16_t oldest_protocol = 0x20C;
constexpr std::uint8_t loaded_high = 1;
constexpr std::uint16_t has_64_bit_entry = 1;
constexpr std::uint64_t sector = 512;
constexpr std::uint64_t paragraph = 16;
constexpr std::uint64_t entry_64_offset = 0x200;

constexpr auto kernel_advice =
    "give a whole x86-64 bzImage with --kernel, for example /boot/vmlinuz-6.1.0-*-cloud-amd64";

Failure bad_kernel(const std::string& what) { return usage_error("bad kernel: " + what, kernel_advice); }

std::uint64_t round_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

/// The load address: the preferred one, or the lowest aligned one above 1 MiB that has room.
Result<vpmu::GuestPhysical> choose_address(const LinuxHeader& header, const MemoryRange& low) {
  const auto fits = [&](std::uint64_t at) { return at <= low.bytes && low.bytes - at >= header.memory_bytes; };
  if (header.preferred_address >= layout::high_ram.value() && fits(header.preferred_address)) {
    return vpmu::GuestPhysical{header.preferred_address};
  }
  if (header.alignment != 0) {
    const auto at = round_up(layout::high_ram.value(), header.alignment);
    if (fits(at)) {
      return vpmu::GuestPhysical{at};
    }
  }
  return usage_error(
      fmt::format("the kernel needs {} MiB at {:#x} and the guest has {} MiB below 3 GiB",
                  round_up(header.memory_bytes, 1U << 20U) >> 20U, header.preferred_address, low.bytes >> 20U),
      "give more memory, for example --memory 512M");
}

/// Puts the initrd as high as it may go, page aligned, above the kernel.
Result<InitrdPlace> place_initrd(const GuestMemory& memory, const LinuxHeader& header, vpmu::GuestPhysical kernel,
                                 std::span<const std::byte> initrd) {
  if (initrd.empty()) {
    return InitrdPlace{};
  }
  const std::uint64_t low_bytes = memory.ranges().front().bytes;
  const std::uint64_t top = std::min(low_bytes, header.initrd_highest + 1) & ~(vpmu::page_size - 1);
  const std::uint64_t floor = kernel.value() + header.memory_bytes;
  if (top < floor || top - floor < round_up(initrd.size(), vpmu::page_size)) {
    return usage_error(fmt::format("the initrd of {} MiB does not fit beside the kernel in {} MiB of memory",
                                   round_up(initrd.size(), 1U << 20U) >> 20U, memory.bytes() >> 20U),
                       "give more memory with --memory, or a smaller --initrd");
  }
  const vpmu::GuestPhysical at{top - round_up(initrd.size(), vpmu::page_size)};
  if (!memory.write(at, initrd)) {
    return usage_error(fmt::format("the initrd of {} bytes does not fit", initrd.size()), "give more --memory");
  }
  return InitrdPlace{.at = at, .bytes = initrd.size()};
}

}  // namespace

bool is_linux_image(std::span<const std::byte> file) {
  const ByteView view{file};
  return view.read<std::uint16_t>(boot_flag_at) == boot_flag && view.read<std::uint32_t>(magic_at) == setup_magic;
}

Result<LinuxHeader> parse_linux_header(std::span<const std::byte> file) {
  const ByteView view{file};
  if (file.size() < min_header_end) {
    return bad_kernel(fmt::format("{} bytes are too short for a bzImage header", file.size()));
  }
  if (!is_linux_image(file)) {
    return bad_kernel(fmt::format("it is not a bzImage: boot flag {:#06x} is not 0xaa55, or the header is not \"HdrS\"",
                                  *view.read<std::uint16_t>(boot_flag_at)));
  }
  const auto protocol = *view.read<std::uint16_t>(protocol_at);
  if (protocol < oldest_protocol) {
    return bad_kernel(fmt::format("boot protocol {}.{:02} is older than 2.12", protocol >> 8U, protocol & 0xFFU));
  }
  if ((*view.read<std::uint8_t>(load_flags_at) & loaded_high) == 0 ||
      (*view.read<std::uint16_t>(extra_load_flags_at) & has_64_bit_entry) == 0) {
    return bad_kernel("it has no 64-bit entry point");
  }
  const std::uint64_t sectors = *view.read<std::uint8_t>(setup_sectors_at);
  const std::uint64_t code_offset = ((sectors == 0 ? 4 : sectors) + 1) * sector;
  const std::uint64_t code_bytes = *view.read<std::uint32_t>(code_paragraphs_at) * paragraph;
  if (code_bytes == 0 || code_offset + code_bytes > file.size()) {
    return bad_kernel(
        fmt::format("truncated: the header promises {} bytes, the file has {}", code_offset + code_bytes, file.size()));
  }
  if (code_bytes <= entry_64_offset) {
    return bad_kernel(
        fmt::format("its {} bytes of code end before the entry point at {}", code_bytes, entry_64_offset));
  }
  const std::uint64_t header_end = magic_at + *view.read<std::uint8_t>(header_length_at);
  const auto setup_header = view.slice(setup_sectors_at, header_end - setup_sectors_at);
  const std::uint64_t memory_bytes = *view.read<std::uint32_t>(memory_bytes_at);
  const std::uint32_t alignment = *view.read<std::uint32_t>(alignment_at);
  if (!setup_header || header_end < min_header_end || memory_bytes < code_bytes || (alignment & (alignment - 1)) != 0) {
    return bad_kernel(
        fmt::format("its header has impossible values: {} bytes of header, {} bytes of memory needed, alignment {:#x}",
                    header_end, memory_bytes, alignment));
  }
  const bool relocatable = *view.read<std::uint8_t>(relocatable_at) != 0;
  return LinuxHeader{.protocol = protocol,
                     .code_offset = code_offset,
                     .code_bytes = code_bytes,
                     .memory_bytes = memory_bytes,
                     .preferred_address = *view.read<std::uint64_t>(preferred_address_at),
                     .alignment = relocatable ? alignment : 0,
                     .command_line_bytes = *view.read<std::uint32_t>(command_line_size_at),
                     .initrd_highest = *view.read<std::uint32_t>(initrd_highest_at),
                     .setup_header = *setup_header};
}

Result<void> write_command_line(const GuestMemory& memory, const std::string& line) {
  if (line.size() < layout::command_line_room &&
      memory.write(layout::command_line, std::as_bytes(std::span{line.c_str(), line.size() + 1})))
    return {};
  return usage_error(
      fmt::format("the command line has {} characters, more than {}", line.size(), layout::command_line_room - 1),
      "shorten --append");
}

Result<LoadedLinux> load_linux(const GuestMemory& memory, std::span<const std::byte> kernel,
                               std::span<const std::byte> initrd, const std::string& command_line,
                               vpmu::GuestPhysical rsdp) {
  VMM_ASSIGN(const auto header, parse_linux_header(kernel));
  if (command_line.size() > std::min(header.command_line_bytes, layout::command_line_room - 1)) {
    return usage_error(fmt::format("the command line has {} characters, and the kernel takes at most {}",
                                   command_line.size(), header.command_line_bytes),
                       "shorten --append");
  }
  VMM_ASSIGN(const auto at, choose_address(header, memory.ranges().front()));
  VMM_ASSIGN(const auto initrd_place, place_initrd(memory, header, at, initrd));
  const bool written = memory.write(at, kernel.subspan(header.code_offset, header.code_bytes)) &&
                       write_command_line(memory, command_line).has_value() &&
                       write_zero_page(memory, {.setup_header = header.setup_header,
                                                .command_line_bytes = command_line.size(),
                                                .initrd = initrd_place,
                                                .rsdp = rsdp});
  if (!written) {
    return usage_error(fmt::format("the kernel does not fit in {} MiB of memory", memory.bytes() >> 20U),
                       "give more --memory");
  }
  return LoadedLinux{.entry = at + entry_64_offset};
}

}  // namespace vmm
