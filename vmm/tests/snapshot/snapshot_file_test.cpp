#include "snapshot/snapshot_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

namespace vmm::test {
namespace {

constexpr std::uint64_t ram = GuestMemory::min_bytes;

Bytes bytes_of(std::string_view text) {
  const auto raw = std::as_bytes(std::span{text});
  return {raw.begin(), raw.end()};
}

Result<void> save(const std::string& path, const MachineImage& image, const GuestMemory& memory) {
  VMM_ASSIGN(auto file, new_snapshot_file(path));
  return write_snapshot(std::move(file), image, memory);
}

class SnapshotFile : public testing::Test {
 protected:
  void TearDown() override {
    for (const std::string& name : files()) std::filesystem::remove_all(path_ + name);
  }
  [[nodiscard]] std::string read_all() const {
    std::ifstream file{path_, std::ios::binary};
    return {std::istreambuf_iterator<char>{file}, {}};
  }
  void write_all(const std::string& text) const { std::ofstream{path_, std::ios::binary} << text; }
  /// Reads the whole file; the error, or empty if there is none.
  [[nodiscard]] std::string refusal() const {
    auto snapshot = SnapshotReader::open(path_);
    if (!snapshot) return describe(snapshot.error());
    const auto memory = snapshot->read_memory(fresh_);
    return memory ? std::string{} : describe(memory.error());
  }
  /// A snapshot with a page that is not zero.
  [[nodiscard]] std::string small_one() const {
    const auto memory = *GuestMemory::create(ram);
    EXPECT_TRUE(memory.write(vpmu::GuestPhysical{0x5000}, bytes_of("x")));
    const auto written = save(path_, image_, memory);
    EXPECT_TRUE(written) << describe(written.error());
    return read_all();
  }
  /// What follows the snapshot's path in the names of all files that begin with it.
  [[nodiscard]] std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator{testing::TempDir()})
      if (entry.path().string().starts_with(path_)) names.insert(entry.path().string().substr(path_.size()));
    return names;
  }

  std::string path_{testing::TempDir() + "snapshot_" + std::to_string(::getpid())};
  MachineImage image_{.model = "haswell",
                      .memory_bytes = ram,
                      .cpus = 2,
                      .threads_per_core = 1,
                      .bare_metal = true,
                      .without_kvm = true,
                      .epoch = -5,
                      .turn = 50,
                      .turn_seed = 7,
                      .time = 1,
                      .changes = "l3=16M",
                      .chips = bytes_of("chips"),
                      .devices = bytes_of("devices"),
                      .vcpus = {bytes_of("first"), bytes_of("second")}};
  GuestMemory fresh_{*GuestMemory::create(ram)};
};

TEST_F(SnapshotFile, ComesBackAsItWas) {
  const auto memory = *GuestMemory::create(ram);
  const Bytes text = bytes_of("in RAM");
  ASSERT_TRUE(memory.write(vpmu::GuestPhysical{0x5FFC}, text)) << "over the end of a page";
  ASSERT_TRUE(memory.write(vpmu::GuestPhysical{ram - text.size()}, text));
  ASSERT_TRUE(save(path_, image_, memory));
  struct stat is{};
  ASSERT_EQ(::stat(path_.c_str(), &is), 0);
  EXPECT_EQ(is.st_mode & 0777, 0600U) << "what the guest has in memory is the owner's only";
  auto snapshot = SnapshotReader::open(path_);
  ASSERT_TRUE(snapshot) << describe(snapshot.error());
  const MachineImage& image = snapshot->image();
  EXPECT_EQ(image.model, image_.model);
  EXPECT_EQ(image.memory_bytes, ram);
  EXPECT_EQ(image.cpus, 2U);
  EXPECT_EQ(image.threads_per_core, 1U);
  EXPECT_TRUE(image.bare_metal);
  EXPECT_TRUE(image.without_kvm);
  EXPECT_EQ(image.epoch, -5);
  EXPECT_EQ(image.turn, 50U);
  EXPECT_EQ(image.turn_seed, 7U);
  EXPECT_EQ(image.time, 1U);
  EXPECT_EQ(image.changes, "l3=16M");
  EXPECT_EQ(image.chips, image_.chips);
  EXPECT_EQ(image.devices, image_.devices);
  EXPECT_EQ(image.vcpus, image_.vcpus);
  const auto fresh = *GuestMemory::create(ram);
  ASSERT_TRUE(snapshot->read_memory(fresh));
  Bytes before(ram), after(ram);
  ASSERT_TRUE(memory.read(vpmu::GuestPhysical{0}, before) && fresh.read(vpmu::GuestPhysical{0}, after));
  EXPECT_EQ(before, after);
  EXPECT_LT(read_all().size(), 4U * 4096) << "three pages are not zero";
}

TEST_F(SnapshotFile, OneProcessNamesTheFileAndAnotherWritesIt) {
  auto named = *new_snapshot_file(path_);
  const auto given = [&named] { return given_snapshot_file(Fd{::dup(named.descriptor().get())}); };
  ASSERT_TRUE(write_snapshot(*given(), image_, fresh_));
  EXPECT_FALSE(std::filesystem::exists(path_)) << "that is the other's to do";
  ASSERT_TRUE(named.finish());
  EXPECT_EQ(refusal(), "");
}

TEST_F(SnapshotFile, GoesToAPipeAsWell) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const Fd from{ends[0]};
  ASSERT_TRUE(write_snapshot(*given_snapshot_file(Fd{ends[1]}), image_, fresh_));
  auto named = *new_snapshot_file(path_);
  std::array<std::byte, 4096> part{};
  while (const ssize_t got = ::read(from.get(), part.data(), part.size()))
    ASSERT_TRUE(got > 0 && named.write(std::span{part}.first(static_cast<std::size_t>(got))));
  ASSERT_TRUE(named.finish());
  EXPECT_EQ(refusal(), "");
}

TEST_F(SnapshotFile, IsNotWrittenToADevice) {
  const auto refused = given_snapshot_file(Fd{::open("/dev/full", O_WRONLY | O_CLOEXEC)});
  ASSERT_FALSE(refused);
  EXPECT_NE(describe(refused.error()).find("cannot write the snapshot that was sent: it is a device"),
            std::string::npos)
      << describe(refused.error());
}

TEST_F(SnapshotFile, PagesOnBothSidesOfTheHoleComeBack) {
  constexpr std::uint64_t large = GuestMemory::hole_first + 2 * vpmu::page_size;
  const auto memory = *GuestMemory::create(large);
  image_.memory_bytes = large;
  const std::array places{vpmu::GuestPhysical{0}, vpmu::GuestPhysical{GuestMemory::hole_first - 8},
                          vpmu::GuestPhysical{GuestMemory::hole_end},
                          vpmu::GuestPhysical{GuestMemory::hole_end + 2 * vpmu::page_size - 8}};
  for (const auto at : places) ASSERT_TRUE(memory.store(at, at.value() | 1));
  ASSERT_TRUE(save(path_, image_, memory));
  const auto fresh = *GuestMemory::create(large);
  auto snapshot = SnapshotReader::open(path_);
  ASSERT_TRUE(snapshot && snapshot->read_memory(fresh));
  for (const auto at : places) EXPECT_EQ(fresh.load<std::uint64_t>(at), at.value() | 1);
}

TEST_F(SnapshotFile, CutAnywhereItIsRefusedByTheNameOfASection) {
  const std::string whole = small_one();
  EXPECT_EQ(refusal(), "");
  for (std::size_t size = whole.size(); size-- > 0;) {
    ASSERT_EQ(::truncate(path_.c_str(), static_cast<off_t>(size)), 0);
    ASSERT_NE(refusal().find(": section \""), std::string::npos) << size << " bytes: " << refusal();
  }
}

TEST_F(SnapshotFile, EachSingleBitThatChangesIsFoundAndItsSectionNamed) {
  std::string whole = small_one();
  const int file = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  std::map<std::string, int> by_section;
  for (std::size_t at = 0; at < whole.size(); ++at)
    for (unsigned bit = 0; bit < 8; ++bit) {
      const auto changed = static_cast<char>(whole[at] ^ static_cast<char>(1U << bit));
      ASSERT_EQ(::pwrite(file, &changed, 1, static_cast<off_t>(at)), 1);
      const std::string why = refusal();
      const auto name = why.find("section \"");
      ASSERT_NE(name, std::string::npos) << "bit " << bit << " of byte " << at << ": " << why;
      ASSERT_EQ(std::ranges::count(why, '\n'), 0) << why;
      ++by_section[why.substr(name + 9, why.find('"', name + 9) - name - 9)];
      ASSERT_EQ(::pwrite(file, &whole[at], 1, static_cast<off_t>(at)), 1);
    }
  ::close(file);
  EXPECT_EQ(refusal(), "");
  constexpr int frame = 8 * (16 + 8 + 8);
  const std::map<std::string, int> expected{{"header", 8 * 16},
                                            {"machine", frame + 8 * (8 + 7 + 8 + 4 + 4 + 6 * 8 + 8 + 6)},
                                            {"chips", frame + 8 * 5},
                                            {"devices", frame + 8 * 7},
                                            {"vcpu 0", frame + 8 * 5},
                                            {"vcpu 1", frame + 8 * 6},
                                            {"pages", frame + static_cast<int>(ram / vpmu::page_size)},
                                            {"memory", frame + 8 * 4096}};
  EXPECT_EQ(by_section, expected) << "each change is told as one of the section that it is in";
}

TEST_F(SnapshotFile, WhatIsNoneIsRefusedWithTheReason) {
  const std::string whole = small_one();
  const auto changed = [&](std::size_t at, char value) {
    std::string other = whole;
    other[at] = value;
    write_all(other);
    return refusal();
  };
  EXPECT_NE(changed(0, '!').find("does not begin as a snapshot does"), std::string::npos);
  EXPECT_NE(changed(8, 99).find("format 99"), std::string::npos);
  EXPECT_NE(changed(16, 'M').find("section \"machine\": section \"Machine\" is in its place"), std::string::npos);
  EXPECT_NE(changed(16 + 16 + 6, 0x7F).find("section \"machine\": it is cut short"), std::string::npos);
  EXPECT_NE(changed(whole.size() - 1, '\0').find("section \"memory\": it is damaged: its checksum is 0x"),
            std::string::npos);
  write_all(whole + "more");
  EXPECT_NE(refusal().find("section \"end\": the file goes on for 4 bytes"), std::string::npos);
  ::unlink(path_.c_str());
  EXPECT_NE(refusal().find("cannot read the snapshot"), std::string::npos);
}

// Right checksums prove nothing, since anybody can compute them: the contents must be checked, too.
TEST_F(SnapshotFile, OneWithGoodChecksumsIsNotBelieved) {
  const auto memory = *GuestMemory::create(ram);
  const auto refusal_of = [&](const MachineImage& image) {
    EXPECT_TRUE(save(path_, image, memory));
    return refusal();
  };
  MachineImage image = image_;
  image.cpus = 0xFFFFFFFF;
  EXPECT_NE(refusal_of(image).find("section \"machine\": it has another format than this version's"),
            std::string::npos);
  image = image_;
  image.cpus = 3;
  EXPECT_NE(refusal_of(image).find("section \"vcpu 2\": section \"pages\" is in its place"), std::string::npos)
      << refusal_of(image);
  image = image_;
  image.model = std::string(65, 'x');
  EXPECT_NE(refusal_of(image).find("section \"machine\": it has another format than this version's"),
            std::string::npos);
  image = image_;
  image.chips.resize((1U << 20U) + 1);
  EXPECT_NE(refusal_of(image).find("section \"chips\": 1048577 bytes are more than the 1048576"), std::string::npos);
  ASSERT_TRUE(save(path_, image_, *GuestMemory::create(2 * ram)));
  EXPECT_NE(refusal().find("section \"pages\""), std::string::npos) << "of another memory: " << refusal();
}

TEST_F(SnapshotFile, WhatIsNoFileIsNotReadAndNobodyWaits) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_NE(refusal().find("cannot read the snapshot " + printable(path_) + ": not a regular file"), std::string::npos)
      << refusal();
  EXPECT_FALSE(SnapshotReader::open("/dev/zero"));
  EXPECT_FALSE(SnapshotReader::open(testing::TempDir()));
}

TEST_F(SnapshotFile, AnUnfinishedOneTakesNoNameAndLeavesNothing) {
  const auto memory = *GuestMemory::create(ram);
  const auto failed = save("/dev/full/x", image_, memory);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().kind, ErrorKind::usage);
  write_all("old");
  // A page is larger than a file may be here.
  ASSERT_TRUE(memory.write(vpmu::GuestPhysical{0x5000}, bytes_of("x")));
  struct rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct rlimit small{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto too_large = save(path_, image_, memory);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(too_large);
  EXPECT_NE(describe(too_large.error()).find("File too large"), std::string::npos) << describe(too_large.error());
  EXPECT_EQ(read_all(), "old");
  EXPECT_EQ(files(), std::set<std::string>{""});
}

TEST_F(SnapshotFile, ReplacesAFileAndNothingElse) {
  const auto memory = *GuestMemory::create(ram);
  write_all("old, and for everybody");
  ::chmod(path_.c_str(), 0644);
  const int reader = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_TRUE(save(path_, image_, memory));
  struct stat is{};
  ASSERT_EQ(::stat(path_.c_str(), &is), 0);
  EXPECT_EQ(is.st_mode & 0777, 0600U);
  EXPECT_EQ(::fstat(reader, &is), 0);
  EXPECT_EQ(is.st_size, 22) << "who has the old file open sees the old one";
  ::close(reader);
  ::unlink(path_.c_str());
  const auto refuses = [&](const std::string& kind) {
    const auto failed = save(path_, image_, memory);
    ASSERT_FALSE(failed) << kind;
    EXPECT_NE(describe(failed.error()).find(": it is " + kind + "; give the path of a file"), std::string::npos)
        << describe(failed.error());
    EXPECT_EQ(files(), std::set<std::string>{""});
  };
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  refuses("a named pipe");
  ::unlink(path_.c_str());
  ASSERT_EQ(::mkdir(path_.c_str(), 0700), 0);
  refuses("a directory");
  ::rmdir(path_.c_str());
  ASSERT_EQ(::symlink("/dev/null", path_.c_str()), 0);
  refuses("a symbolic link");
  EXPECT_NE(describe(save("/dev/null", image_, memory).error()).find("it is a device"), std::string::npos);
}

// In a directory that others may write to, somebody could have placed a link.
TEST_F(SnapshotFile, ALinkOrAFileBesideItIsLeftAlone) {
  const auto memory = *GuestMemory::create(ram);
  const std::string victim = path_ + ".victim";
  std::ofstream{victim} << "dear";
  ASSERT_EQ(::symlink(victim.c_str(), (path_ + ".part").c_str()), 0);
  ASSERT_TRUE(save(path_, image_, memory));
  std::ifstream file{victim};
  EXPECT_EQ((std::string{std::istreambuf_iterator<char>{file}, {}}), "dear");
  EXPECT_EQ(files(), (std::set<std::string>{"", ".part", ".victim"}));
}

TEST(ByteReader, MissingBytesAreZerosAndNotGood) {
  ByteWriter out;
  out.put(std::uint16_t{0x1234});
  out.put_run(bytes_of("run"));
  const Bytes bytes = out.take();
  ByteReader in{bytes};
  EXPECT_EQ(in.get<std::uint16_t>(), 0x1234);
  EXPECT_FALSE(in.done());
  EXPECT_EQ(in.get_run().size(), 3U);
  EXPECT_TRUE(in.done());
  EXPECT_EQ(in.get<std::uint32_t>(), 0U);
  EXPECT_FALSE(in.good());
  ByteReader hostile{std::span{bytes}.first(6)};
  EXPECT_TRUE(hostile.get_run().empty()) << "longer than all there is";
  EXPECT_FALSE(hostile.good());
  EXPECT_EQ(hostile.get<std::uint8_t>(), 0) << "and nothing behind it is looked at";
}

}  // namespace
}  // namespace vmm::test
