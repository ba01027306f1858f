#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "boot/image_file.hpp"
#include "boot/layout.hpp"
#include "boot/linux_image.hpp"
#include "fuzz_input.hpp"

// Random bytes as a bzImage: as they are, or as changes to the header of a good one, with an initrd and a command line
// of some length. Loaded parts must lie in RAM, and must not overlap each other or the tables below 1 MiB; a refusal
// must give its reason in one line.

namespace {

using namespace vmm;
using vpmu::fuzz::Input;
using vpmu::fuzz::require;

constexpr std::size_t header_at = 0x1F1, header_bytes = 0x80;
std::uint64_t kernels_loaded = 0;

const GuestMemory& memory_of_guest() {
  static const GuestMemory memory = *GuestMemory::create(2 * GuestMemory::min_bytes);
  return memory;
}

void check_parsed(std::span<const std::byte> file, const LinuxHeader& header) {
  require(header.code_offset <= file.size() && header.code_bytes <= file.size() - header.code_offset,
          "the code is in the file");
  require(header.memory_bytes >= header.code_bytes, "the code fits where it wants to be");
  require((header.alignment & (header.alignment - 1)) == 0, "an alignment is a power of two");
  require(!header.setup_header.empty() && header.setup_header.data() >= file.data() &&
              header.setup_header.data() + header.setup_header.size() <= file.data() + file.size(),
          "the setup header is in the file");
}

void check_loaded(const GuestMemory& memory, std::span<const std::byte> file, const LoadedLinux& linux,
                  std::uint64_t initrd_bytes) {
  const auto header = *parse_linux_header(file);
  const std::uint64_t at = linux.entry.value() - 0x200;
  require(at >= layout::high_ram.value() && !memory.bytes_at(vpmu::GuestPhysical{at}, header.memory_bytes).empty(),
          "the kernel has the RAM that it needs");
  const auto code = memory.bytes_at(vpmu::GuestPhysical{at}, header.code_bytes);
  require(std::equal(code.begin(), code.end(), file.begin() + static_cast<std::ptrdiff_t>(header.code_offset)),
          "the code is what the file has");
  const auto word = [&](std::uint64_t offset) {
    return std::uint64_t{*memory.load<std::uint32_t>(layout::zero_page + offset)};
  };
  require(word(0x21C) == initrd_bytes, "the zero page has the size of the initrd");
  if (initrd_bytes != 0) {
    require(word(0x218) >= at + header.memory_bytes && word(0x218) + initrd_bytes <= memory.bytes(),
            "the initrd is in RAM above the kernel");
    require(word(0x218) + initrd_bytes - 1 <= header.initrd_highest, "the initrd is where the kernel can have it");
  }
  ++kernels_loaded;
}

void load(std::span<const std::byte> file, std::uint64_t initrd_bytes, std::uint64_t line_length) {
  const GuestMemory& memory = memory_of_guest();
  static const std::vector<std::byte> initrd(1U << 16U, std::byte{0x5A});
  const auto header = parse_linux_header(file);
  if (header) check_parsed(file, *header);
  const auto linux = load_linux(memory, file, std::span{initrd}.first(initrd_bytes), std::string(line_length, 'a'),
                                layout::acpi_tables);
  require(!linux || header, "what is loaded was understood");
  if (linux) return check_loaded(memory, file, *linux, initrd_bytes);
  require(linux.error().kind == ErrorKind::usage && describe(linux.error()).find('\n') == std::string::npos,
          "a refusal is the user's, and one line");
}

}  // namespace

extern "C" std::uint64_t fuzz_work() { return kernels_loaded; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  load(std::as_bytes(std::span{data, size}), 0, 0);
  Input input{data, size};
  const auto initrd_bytes = input.take<std::uint16_t>();
  const auto line_length = input.take<std::uint16_t>() % 4096U;
  const auto cut = input.take<std::uint16_t>();
  static const test::ImageFile good = test::small_bzimage();
  std::vector<std::byte> file{good.bytes().begin(), good.bytes().end()};
  // Header bytes for which the input has 0 stay good.
  const auto changes = input.take<std::array<std::byte, header_bytes>>();
  for (std::size_t i = 0; i < header_bytes; ++i) file[header_at + i] ^= changes[i];
  file.resize(file.size() - std::min<std::size_t>(cut % 8 == 0 ? cut : 0, file.size()));
  load(file, initrd_bytes, line_length);
  return 0;
}
