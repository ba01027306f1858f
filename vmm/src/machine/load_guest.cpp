#include "machine/load_guest.hpp"

#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "boot/acpi.hpp"
#include "boot/elf_image.hpp"
#include "boot/layout.hpp"
#include "boot/linux_image.hpp"
#include "boot/multiboot_image.hpp"
#include "files/input_file.hpp"
#include "support/assert.hpp"

namespace vmm {
namespace {

/// Far larger than any kernel; an initial RAM disk may be as large as memory.
constexpr std::uint64_t max_kernel_bytes = 1ULL << 30U;

Result<std::vector<std::byte>> read_image(const std::string& path, const std::string& name, std::uint64_t max) {
  return read_whole_file(path, {.what = "the " + name, .advice = "give a readable file with --" + name}, max);
}

/// Empty if there is none.
Result<std::shared_ptr<const std::vector<std::byte>>> read_initrd(const MachineConfig& config) {
  if (config.initrd_content) return config.initrd_content;
  auto initrd = std::make_shared<std::vector<std::byte>>();
  if (config.initrd.empty()) return initrd;
  VMM_ASSIGN(*initrd, read_image(config.initrd, "initrd", std::max(max_kernel_bytes, config.memory_bytes)));
  return initrd;
}

Result<StartRegisters> load_multiboot_guest(const GuestMemory& memory, const MachineConfig& config,
                                            std::span<const std::byte> kernel) {
  VMM_ASSIGN(const auto module, read_initrd(config));
  VMM_ASSIGN(const auto loaded, load_multiboot(memory, kernel, *module, config.command_line));
  return StartRegisters{.mode = StartRegisters::Mode::bits32,
                        .rip = loaded.entry,
                        .rax = multiboot_boot_magic,
                        .rbx = loaded.info.value(),
                        .rsp = layout::stack_top.value()};
}

}  // namespace

Result<LoadedGuest> load_guest(const GuestMemory& memory, const MachineConfig& config, PciBridge bridge) {
  VMM_ASSIGN(const auto kernel, read_image(config.kernel, "kernel", max_kernel_bytes));
  const auto rsdp = write_acpi_tables(memory, config.cpus, bridge);
  VMM_ASSERT(write_cpu_tables(memory));
  if (is_multiboot_image(kernel)) {
    VMM_ASSIGN(const StartRegisters start, load_multiboot_guest(memory, config, kernel));
    return LoadedGuest{.start = start};
  }
  if (is_elf_image(kernel)) {
    if (!config.initrd.empty() || !config.command_line.empty())
      return usage_error(fmt::format("{} is an ELF file, which gets neither an initial RAM disk nor a command line",
                                     printable(config.kernel)),
                         "leave out --initrd and --append, or give a bzImage with --kernel");
    VMM_ASSIGN(const auto loaded, load_elf(memory, kernel));
    return LoadedGuest{.start = {.rip = loaded.entry,
                                 .rsp = layout::stack_top.value(),
                                 .rdi = config.elf_arguments.rdi,
                                 .rsi = config.elf_arguments.rsi}};
  }
  VMM_ASSIGN(const auto initrd, read_initrd(config));
  VMM_ASSIGN(const auto linux, load_linux(memory, kernel, *initrd, config.command_line, rsdp));
  return LoadedGuest{.start = {.rip = linux.entry, .rsp = layout::stack_top.value(), .rsi = layout::zero_page.value()},
                     .is_linux = true};
}

Result<void> tell_tsc_rate(const GuestMemory& memory, const MachineConfig& config, const LoadedGuest& loaded,
                           std::optional<std::uint64_t> tsc_khz) {
  constexpr std::string_view parameter = "tsc_early_khz=";
  const std::string& line = config.command_line;
  if (!loaded.is_linux || !tsc_khz || line.find(parameter) != std::string::npos) return {};
  return write_command_line(memory, fmt::format("{}{}{}{}", line, line.empty() ? "" : " ", parameter, *tsc_khz));
}

}  // namespace vmm
