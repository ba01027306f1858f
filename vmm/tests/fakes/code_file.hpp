#pragma once
#include <elf.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "exec/tests/fixtures/assembled.hpp"

namespace vmm::test {

/// A kernel's file with the given machine code. The destructor removes the file.
class CodeFile {
 public:
  /// A static 64-bit ELF file, or a 32-bit one with a multiboot header before the code.
  enum class Kind : std::uint8_t { elf, multiboot };
  explicit CodeFile(const std::vector<std::uint8_t>& code, Kind kind = Kind::elf) {
    if (kind == Kind::elf)
      write<Elf64_Ehdr, Elf64_Phdr>(ELFCLASS64, EM_X86_64, {}, code);
    else
      write<Elf32_Ehdr, Elf32_Phdr>(ELFCLASS32, EM_386, {0x1BADB002, 0, 0U - 0x1BADB002}, code);
  }
  ~CodeFile() { ::unlink(path_.c_str()); }
  CodeFile(const CodeFile&) = delete;
  CodeFile& operator=(const CodeFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  static constexpr std::uint32_t at = 2U << 20U;

  template <class FileHeader, class ProgramHeader>
  void write(unsigned char of_class, unsigned short machine, const std::vector<std::uint32_t>& front,
             const std::vector<std::uint8_t>& code) {
    FileHeader header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = of_class;
    header.e_type = ET_EXEC;
    header.e_machine = machine;
    const std::size_t front_bytes = front.size() * sizeof front[0];
    header.e_entry = static_cast<std::uint32_t>(at + front_bytes);
    header.e_phoff = sizeof header;
    header.e_phentsize = sizeof(ProgramHeader);
    header.e_phnum = 1;
    ProgramHeader segment{};
    segment.p_type = PT_LOAD;
    segment.p_offset = sizeof header + sizeof segment;
    segment.p_paddr = at;
    segment.p_filesz = segment.p_memsz = static_cast<std::uint32_t>(front_bytes + code.size());
    std::ofstream file{path_, std::ios::binary};
    const auto put = [&](const void* bytes, std::size_t size) {
      file.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
    };
    put(&header, sizeof header);
    put(&segment, sizeof segment);
    put(front.data(), front_bytes);
    put(code.data(), code.size());
  }

  std::string path_{std::filesystem::temp_directory_path() / ("code_file_" + std::to_string(::getpid()) + ".elf")};
};

/// Makes PMC0 overflow after 100 instructions, with INT, and loops for ever: writes PMC0, PERFEVTSEL0 (all
/// instructions) and PERF_GLOBAL_CTRL.
inline const std::vector<std::uint8_t> pmi_that_waits =
    X86("mov $0xC1, %ecx; mov $-100, %eax; mov $0, %edx; wrmsr; "
        "mov $0x186, %ecx; mov $0x5300C0, %eax; mov $0, %edx; wrmsr; "
        "mov $0x38F, %ecx; mov $1, %eax; mov $0, %edx; wrmsr; "
        "1: jmp 1b");

}  // namespace vmm::test
