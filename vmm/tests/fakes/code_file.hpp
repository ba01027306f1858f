#pragma once
#include <elf.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace vmm::test {

/// Machine code as a static ELF file on disk, gone with the object.
class CodeFile {
 public:
  explicit CodeFile(const std::vector<std::uint8_t>& code) {
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_type = ET_EXEC;
    header.e_machine = EM_X86_64;
    header.e_entry = entry;
    header.e_phoff = sizeof header;
    header.e_phentsize = sizeof(Elf64_Phdr);
    header.e_phnum = 1;
    Elf64_Phdr segment{};
    segment.p_type = PT_LOAD;
    segment.p_offset = sizeof header + sizeof segment;
    segment.p_paddr = entry;
    segment.p_filesz = segment.p_memsz = code.size();
    std::ofstream file{path_, std::ios::binary};
    file.write(reinterpret_cast<const char*>(&header), sizeof header);
    file.write(reinterpret_cast<const char*>(&segment), sizeof segment);
    file.write(reinterpret_cast<const char*>(code.data()), static_cast<std::streamsize>(code.size()));
  }
  ~CodeFile() { ::unlink(path_.c_str()); }
  CodeFile(const CodeFile&) = delete;
  CodeFile& operator=(const CodeFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  static constexpr std::uint64_t entry = 2ULL << 20U;
  std::string path_{std::filesystem::temp_directory_path() / ("code_file_" + std::to_string(::getpid()) + ".elf")};
};

/// Makes PMC0 overflow after 100 instructions, with INT, and goes round for ever: mov $index, %ecx; mov $value, %eax;
/// mov $0, %edx; wrmsr, for PMC0, PERFEVTSEL0 (all instructions) and PERF_GLOBAL_CTRL; jmp .
inline const std::vector<std::uint8_t> pmi_that_waits{
    0xB9, 0xC1, 0, 0,    0,    0xB8, 0x9C, 0xFF, 0xFF, 0xFF, 0xBA, 0, 0, 0,    0,    0x0F, 0x30, 0xB9,
    0x86, 0x01, 0, 0,    0xB8, 0xC0, 0,    0x53, 0,    0xBA, 0,    0, 0, 0,    0x0F, 0x30, 0xB9, 0x8F,
    0x03, 0,    0, 0xB8, 1,    0,    0,    0,    0xBA, 0,    0,    0, 0, 0x0F, 0x30, 0xEB, 0xFE};

}  // namespace vmm::test
