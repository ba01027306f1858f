// 32-bit code against QEMU's user mode, which shares no code with the engine. The same bytes run in both, and must
// leave the same memory.
#include <elf.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "exec/engine.hpp"
#include "exec/tests/fixtures/flat_ram.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"
#include "exec/tests/fixtures/vector_platform.hpp"
#include "exec/tests/oracle/narrow_cases.hpp"

namespace vpmu::exec::test {
namespace {

/// Memory after the program has run in QEMU; empty if there is no QEMU. QEMU provides the initial stack.
std::vector<std::uint8_t> by_qemu(const NarrowCases& program, std::uint32_t base) {
  const std::string path = testing::TempDir() + "narrow_oracle_" + std::to_string(::getpid());
  Elf32_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS32;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_EXEC;
  header.e_machine = EM_386;
  header.e_version = EV_CURRENT;
  header.e_entry = base;
  header.e_phoff = sizeof header;
  header.e_ehsize = sizeof header;
  header.e_phentsize = sizeof(Elf32_Phdr);
  header.e_phnum = 1;
  Elf32_Phdr segment{};
  segment.p_type = PT_LOAD;
  segment.p_offset = page_size;
  segment.p_vaddr = segment.p_paddr = base;
  segment.p_filesz = segment.p_memsz = total;
  segment.p_flags = PF_R | PF_W | PF_X;
  segment.p_align = page_size;
  std::vector<std::uint8_t> file(page_size);
  std::memcpy(file.data(), &header, sizeof header);
  std::memcpy(file.data() + sizeof header, &segment, sizeof segment);
  file.insert(file.end(), program.image().begin(), program.image().end());
  FILE* const out = std::fopen(path.c_str(), "wb");
  if (out == nullptr) return {};
  std::fwrite(file.data(), 1, file.size(), out);
  std::fclose(out);
  ::chmod(path.c_str(), 0700);
  FILE* const from = ::popen((std::string{VPMU_QEMU_I386} + " " + path).c_str(), "r");
  std::vector<std::uint8_t> got(total + 1);
  got.resize(from == nullptr ? 0 : std::fread(got.data(), 1, got.size(), from));
  if (from != nullptr) ::pclose(from);
  ::unlink(path.c_str());
  return got;
}

class NarrowOracle : public testing::Test {
 protected:
  NarrowOracle() { program_.write(); }
  /// Runs the whole program, at most `at_once` instructions in one run.
  void run(std::uint64_t at_once) {
    std::memcpy(ram_.bytes().data(), program_.image().data(), total);
    VectorPlatform platform;
    TestCode code;
    Engine engine{ram_, platform, &code, Compiling{.after = 1}};
    CpuState s;
    s.mode = CodeMode::bits32;
    s.paging.cr4 = 1U << 9;
    s.rip = base_;
    s.rflags = 0x202;  // with IF, as in user mode
    s.gpr[rsp] = base_ + code_bytes + 2 * page_size;
    engine.load(s);
    Stop stop = Stop::budget;
    while (stop == Stop::budget || stop == Stop::again) {
      stop = engine.run(at_once);
      ASSERT_LT(engine.passed().instructions, cases * 100);
    }
    EXPECT_EQ(stop, Stop::unsupported);
    EXPECT_EQ(engine.state().rip, program_.system_call()) << std::hex << engine.state().rip - base_;
  }
  void compare(const std::vector<std::uint8_t>& theirs) {
    const auto* const ours = reinterpret_cast<const std::uint8_t*>(ram_.bytes().data());
    for (std::size_t n = 0; n < cases; ++n) {
      std::array<std::uint32_t, slot_words> a{};
      std::array<std::uint32_t, slot_words> b{};
      const std::size_t at = code_bytes + data_bytes + n * slot_bytes;
      std::memcpy(a.data(), ours + at, sizeof a);
      std::memcpy(b.data(), theirs.data() + at, sizeof b);
      a[flags_word] &= program_.defined_flags(n);
      b[flags_word] &= program_.defined_flags(n);
      ASSERT_EQ(a, b) << program_.describe(n);
    }
    for (std::size_t i = code_bytes; i < code_bytes + data_bytes; ++i)
      ASSERT_EQ(ours[i], theirs[i]) << "of the data, at " << i - code_bytes;
  }
  static std::uint64_t seed() {
    const char* const given = std::getenv("VPMU_ORACLE_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  }

  FlatRam ram_{total};
  std::uint32_t base_{static_cast<std::uint32_t>(ram_.address())};
  NarrowCases program_{seed(), base_};
};

TEST_F(NarrowOracle, DoesWhatQemuDoes) {
  ASSERT_TRUE(program_.fits());
  const auto theirs = by_qemu(program_, base_);
  if (theirs.empty()) GTEST_SKIP() << "no qemu-i386: install qemu-user";
  ASSERT_EQ(theirs.size(), total);
  run(1);
  compare(theirs);
  run(1'000'000);
  compare(theirs);
}

}  // namespace
}  // namespace vpmu::exec::test
