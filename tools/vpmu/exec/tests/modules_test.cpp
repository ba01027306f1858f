#include "exec/modules.hpp"

#include <elf.h>
#include <gtest/gtest.h>
#include <lzma.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "exec/decompress.hpp"
#include "exec/module_info.hpp"

namespace vmm::tool {
namespace {

namespace fs = std::filesystem;

using Bytes = std::vector<std::byte>;

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span{text});
  return {bytes.begin(), bytes.end()};
}

/// The smallest object file with a section .modinfo: header, strings, sections.
Bytes module_with(std::string info) {
  const std::string names{"\0.modinfo\0.shstrtab\0", 20};
  info.push_back('\0');
  const std::size_t names_place = sizeof(Elf64_Ehdr);
  const std::size_t info_place = names_place + names.size();
  const std::size_t sections_place = info_place + info.size();
  Elf64_Ehdr header{.e_type = ET_REL,
                    .e_machine = EM_X86_64,
                    .e_shoff = sections_place,
                    .e_shentsize = sizeof(Elf64_Shdr),
                    .e_shnum = 3,
                    .e_shstrndx = 2};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  const std::array<Elf64_Shdr, 3> sections{Elf64_Shdr{},
                                           {.sh_name = 1, .sh_offset = info_place, .sh_size = info.size()},
                                           {.sh_name = 10, .sh_offset = names_place, .sh_size = names.size()}};
  Bytes file;
  for (const std::span<const std::byte> part : {std::span<const std::byte>{std::as_bytes(std::span{&header, 1})},
                                                std::span<const std::byte>{std::as_bytes(std::span{names})},
                                                std::span<const std::byte>{std::as_bytes(std::span{info})},
                                                std::span<const std::byte>{std::as_bytes(std::span{sections})}})
    file.insert(file.end(), part.begin(), part.end());
  return file;
}

Bytes xz_of(const Bytes& content) {
  Bytes file(content.size() + 4096);
  std::size_t size = 0;
  EXPECT_EQ(lzma_easy_buffer_encode(0, LZMA_CHECK_CRC32, nullptr, reinterpret_cast<const std::uint8_t*>(content.data()),
                                    content.size(), reinterpret_cast<std::uint8_t*>(file.data()), &size, file.size()),
            LZMA_OK);
  file.resize(size);
  return file;
}

Bytes zstd_of(const Bytes& content) {
  Bytes file(content.size() + 4096);
  file.resize(ZSTD_compress(file.data(), file.size(), content.data(), content.size(), 1));
  return file;
}

/// A directory of modules. The destructor removes it.
class Directory {
 public:
  Directory() { EXPECT_NE(::mkdtemp(path_.data()), nullptr); }
  ~Directory() { fs::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  [[nodiscard]] fs::path path() const { return path_; }
  void add(const fs::path& name, const Bytes& content) const {
    fs::create_directories((path() / name).parent_path());
    std::ofstream{path() / name}.write(reinterpret_cast<const char*>(content.data()),
                                       static_cast<std::streamsize>(content.size()));
  }

 private:
  std::string path_ = testing::TempDir() + "/vpmu-modules-XXXXXX";
};

std::string names_of(const Result<std::vector<KernelModule>>& modules) {
  if (!modules) return modules.error().what;
  std::string names;
  for (const KernelModule& module : *modules) names += module.name + " ";
  return names;
}

TEST(ModuleInfo, NamesWhatTheModuleDependsOn) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(module_dependencies(module_with("license=GPL")).value(), Names{});
  EXPECT_EQ(module_dependencies(module_with(std::string{"license=GPL\0depends=virtio_ring,fuse\0name=x", 42})).value(),
            (Names{"virtio_ring", "fuse"}));
  EXPECT_EQ(module_dependencies(module_with("depends=")).value(), Names{});
  EXPECT_EQ(module_dependencies(module_with("depends=,a,")).value(), Names{"a"});
}

TEST(ModuleInfo, RefusesEachFileThatIsCutOff) {
  const Bytes whole = module_with("depends=fuse");
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(module_dependencies(std::span{whole}.first(size))) << size;
}

TEST(ModuleInfo, ReadsNothingOutsideOfTheFileWhateverByteIsWrong) {
  const Bytes whole = module_with("depends=fuse");
  for (std::size_t place = 0; place < whole.size(); ++place)
    for (const unsigned value : {0x00U, 0x7FU, 0x80U, 0xFFU}) {
      Bytes damaged = whole;
      damaged[place] = std::byte(value);
      const auto ignored = module_dependencies(damaged);  // for the sanitizers
      static_cast<void>(ignored);
    }
}

TEST(Decompress, GivesTheContentOfEachFormat) {
  Bytes content(300'000);
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = std::byte(i * i >> 7 & 0xFF);
  for (const Bytes& file : {content, xz_of(content), zstd_of(content)}) {
    const auto found = decompress(file, content.size());
    ASSERT_TRUE(found) << found.error().what;
    EXPECT_EQ(*found, content);
    EXPECT_EQ(decompress(file, content.size() - 1).error().what, "decompressed, it is larger than is allowed");
  }
}

TEST(Decompress, RefusesEachFileThatIsCutOffOrDamaged) {
  const Bytes content(1000, std::byte{'x'});
  for (const Bytes& file : {xz_of(content), zstd_of(content)}) {
    for (std::size_t size = 6; size < file.size(); ++size)
      EXPECT_FALSE(decompress(std::span{file}.first(size), 1000)) << size;
    Bytes damaged = file;
    damaged[6] = ~damaged[6];
    EXPECT_FALSE(decompress(damaged, 1'000'000));
  }
}

TEST(FindModules, PutsEachBehindWhatItDependsOn) {
  const Directory directory;
  directory.add("kernel/fs/virtiofs.ko", module_with("depends=fuse,virtio"));
  directory.add("kernel/fs/fuse.ko.xz", xz_of(module_with("depends=")));
  directory.add("kernel/drivers/virtio.ko", module_with("depends=virtio_ring"));
  directory.add("kernel/drivers/virtio-ring.ko.zst", zstd_of(module_with("depends=")));
  const std::vector<std::string> names{"fuse", "virtiofs", "virtio-ring"};
  EXPECT_EQ(names_of(find_modules(directory.path(), names)), "fuse virtio_ring virtio virtiofs ");
  EXPECT_EQ(find_modules(directory.path(), names).value()[1].content, module_with("depends="));
  const auto loaded = find_modules(directory.path(), std::vector<std::string>{"virtio"});
  EXPECT_EQ(names_of(find_modules(directory.path(), names, *loaded)), "fuse virtiofs ");
}

TEST(FindModules, GoesByTheListOfDepmodWhereThatIsThere) {
  const Directory directory;
  directory.add("kernel/fuse.ko", module_with("depends="));
  directory.add("updates/fuse.ko", module_with("depends=newer"));
  directory.add("updates/newer.ko", module_with("depends="));
  directory.add("modules.dep", bytes_of("updates/fuse.ko: updates/newer.ko\nupdates/newer.ko:\n"));
  EXPECT_EQ(names_of(find_modules(directory.path(), std::vector<std::string>{"fuse"})), "newer fuse ");
}

TEST(FindModules, NeedsNothingForWhatIsBuiltIn) {
  const Directory directory;
  directory.add("modules.builtin", bytes_of("kernel/fs/fuse/fuse.ko\nkernel/fs/fuse/virtio-fs.ko\n"));
  EXPECT_EQ(names_of(find_modules(directory.path(), std::vector<std::string>{"fuse", "virtio_fs"})), "");
}

TEST(FindModules, EndsWhereModulesDependOnEachOther) {
  const Directory directory;
  directory.add("a.ko", module_with("depends=b"));
  directory.add("b.ko", module_with("depends=a"));
  EXPECT_EQ(names_of(find_modules(directory.path(), std::vector<std::string>{"a"})), "b a ");
}

TEST(FindModules, NamesWhatIsMissingOrDamaged) {
  const Directory directory;
  directory.add("fuse.ko", module_with("depends=absent"));
  directory.add("text.ko", bytes_of("text"));
  directory.add("cut.ko.xz", bytes_of(std::string_view{"\xFD"
                                                       "7zXZ\0",
                                                       6}));
  const std::string place = directory.path().native();
  const auto find = [&](const char* name) {
    const auto found = find_modules(directory.path(), std::vector<std::string>{name});
    return found ? std::string{"found"}
                 : found.error().what.substr(0, found.error().what.find(place)) +
                       found.error().what.substr(found.error().what.find(place) + place.size());
  };
  EXPECT_EQ(find("fuse"), "no module absent in , and it is not built in");
  EXPECT_EQ(find("text"), "the module /text.ko: it is no kernel module for x86-64");
  EXPECT_EQ(find("cut"), "the module /cut.ko.xz: it is damaged: it cannot be decompressed");
}

TEST(FindModuleDirectory, TakesThatOfThePackageBesideTheKernel) {
  const Directory package;
  package.add("boot/vmlinuz", bytes_of("kernel"));
  package.add("lib/modules/1.2.3-none/modules.builtin", bytes_of("x.ko\n"));
  const fs::path modules = package.path() / "lib/modules/1.2.3-none";
  EXPECT_EQ(find_module_directory({}, package.path() / "boot/vmlinuz", "1.2.3-none").value(), modules);
  EXPECT_EQ(find_module_directory({}, modules / "vmlinuz", "1.2.3-none").value(), modules);
  EXPECT_EQ(find_module_directory({}, package.path() / "boot/vmlinuz", "1.2.4-none").value(), std::nullopt);
  EXPECT_EQ(find_module_directory(modules, "/boot/other", "1.2.3-none").value(), modules);
  EXPECT_EQ(find_module_directory(package.path(), "/boot/other", "1.2.3-none").value(), modules);
  const auto none = find_module_directory(package.path() / "boot", "/boot/other", "1.2.3-none");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().advice, "give a directory like /lib/modules/1.2.3-none");
}

}  // namespace
}  // namespace vmm::tool
