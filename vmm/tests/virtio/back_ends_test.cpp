#include "virtio/back_ends.hpp"

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <linux/fuse.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>

#include "fakes/driver_queue.hpp"
#include "fakes/own_directory.hpp"
#include "fakes/sizes.hpp"
#include "jail/jail.hpp"
#include "virtio/vhost_user_device.hpp"

// The real daemons, if they are installed or tools/dev/bed has fetched them; environment variables may name others.

namespace vmm::test {
namespace {

using namespace virtio;
using virtio::Access;
using Answers = VhostUserDevice::Answers;
namespace fs = std::filesystem;

constexpr std::uint64_t request_at = 0x100000, answer_at = 0x200000;

/// The program that the environment variable names, else the one that tools/dev/bed has fetched, else the host's.
ProgramChoice choice_of(const char* variable, const std::string& fetched) {
  const char* const path = std::getenv(variable);
  const char* const search = std::getenv("PATH");
  ProgramChoice choice{.search_path = search != nullptr ? search : ""};
  if (path != nullptr)
    choice.path = path;
  else if (const std::string cached = VPMU_CACHE "/" + fetched; fs::exists(cached))
    choice.path = cached;
  return choice;
}
ProgramChoice virtiofsd() { return choice_of("VPMU_VIRTIOFSD", "virtiofsd/usr/lib/qemu/virtiofsd"); }
ProgramChoice storage_daemon() {
  // This one has its libraries beside it; the one that comes with virtiofsd has not.
  const std::string libraries = VPMU_CACHE "/qemu7/lib/x86_64-linux-gnu:" VPMU_CACHE "/qemu7/usr/lib/x86_64-linux-gnu";
  const auto choice = choice_of("VPMU_STORAGE_DAEMON", "qemu7/usr/bin/qemu-storage-daemon");
  if (choice.path.starts_with(VPMU_CACHE)) ::setenv("LD_LIBRARY_PATH", libraries.c_str(), 1);
  return choice;
}

class Events final : public DeviceEvents {
 public:
  void used(unsigned /*queue*/) override { ++answers; }
  void configuration_changed() override {}
  void written(vpmu::GuestPhysical at, std::uint64_t /*bytes*/) override { answer_written |= at.value() == answer_at; }
  void broken(const Error& error) override { failure = describe(error); }
  void attention() override {}
  void failed(Error error) override { failure = describe(error); }
  unsigned answers{};
  bool answer_written{false};
  std::string failure;
};

/// A driver of a file system device: one request at a time, on the second queue.
class FileSystem {
 public:
  FileSystem(const fs::path& directory, Access access, SpecialFiles special = SpecialFiles::refused) {
    auto shared = share_directory(directory, access, virtiofsd(), special);
    EXPECT_TRUE(shared) << describe(shared.error());
    if (!shared) return;
    back_end_.emplace(std::move(*shared));
    auto device = VhostUserDevice::create(back_end_->take_peer(), memory_,
                                          {.type = DeviceType::file_system,
                                           .queue_sizes = {64, 64},
                                           .configuration = std::vector<std::byte>(40),
                                           .answers = Answers::before_return});
    EXPECT_TRUE(device) << describe(device.error());
    if (!device) return;
    device_ = std::move(*device);
  }
  /// A machine makes the device, calls begin() on its own thread, and start() on a vCPU's. So these are apart.
  void begin() { EXPECT_TRUE(device_->begin(events)); }
  void start() {
    queue_ = DriverQueue{memory_, 0x10000, 64};
    queue_.set_available(0);
    const auto started =
        device_->start({.features = f_version_1, .rings = {DriverQueue{memory_, 0x20000, 64}.ring(), queue_.ring()}});
    EXPECT_TRUE(started) << describe(started.error());
    fuse_init_in init{};
    init.major = FUSE_KERNEL_VERSION;
    init.minor = 31;
    init.max_readahead = 65536;
    version = ask<fuse_init_out>(FUSE_INIT, 0, init);
  }
  void stop() { device_->stop(); }
  void end() {
    device_.reset();
    back_end_->daemon->end();
  }
  [[nodiscard]] bool run() {
    if (device_ == nullptr) return false;
    begin();
    start();
    return true;
  }

  /// Makes a request and returns the answer's body; the answer's (negative) error is in `error`.
  template <class Answer, class Body>
  Answer ask(std::uint32_t operation, std::uint64_t node, const Body& body, const std::string& name = {}) {
    fuse_in_header header{};
    header.len = static_cast<std::uint32_t>(sizeof header + sizeof body + (name.empty() ? 0 : name.size() + 1));
    header.opcode = operation;
    header.unique = ++unique_;
    header.nodeid = node;
    queue_.put(request_at, header);
    queue_.put(request_at + sizeof header, body);
    EXPECT_TRUE(memory_.write(vpmu::GuestPhysical{request_at + sizeof header + sizeof body},
                              std::as_bytes(std::span{name.c_str(), name.size() + 1})));
    return finish<Answer>(header.len);
  }
  /// A request with nothing but a name.
  template <class Answer>
  Answer look_up(const std::string& name) {
    fuse_in_header header{};
    header.len = static_cast<std::uint32_t>(sizeof header + name.size() + 1);
    header.opcode = FUSE_LOOKUP;
    header.unique = ++unique_;
    header.nodeid = FUSE_ROOT_ID;
    queue_.put(request_at, header);
    EXPECT_TRUE(memory_.write(vpmu::GuestPhysical{request_at + sizeof header},
                              std::as_bytes(std::span{name.c_str(), name.size() + 1})));
    return finish<Answer>(header.len);
  }

  std::int32_t error{};
  fuse_init_out version{};
  Events events;
  [[nodiscard]] pid_t process() const { return back_end_->daemon->process(); }

 private:
  template <class Answer>
  Answer finish(std::uint32_t request_bytes) {
    queue_.describe(0, {request_at, request_bytes, DriverQueue::next, 1});
    queue_.describe(1, {answer_at, sizeof(fuse_out_header) + 4096, DriverQueue::write, 0});
    queue_.offer(0);
    device_->notify(1);
    fuse_out_header header{};
    Answer answer{};
    EXPECT_TRUE(memory_.read(vpmu::GuestPhysical{answer_at}, std::as_writable_bytes(std::span{&header, 1})));
    EXPECT_TRUE(
        memory_.read(vpmu::GuestPhysical{answer_at + sizeof header}, std::as_writable_bytes(std::span{&answer, 1})));
    EXPECT_EQ(header.unique, unique_);
    error = header.error;
    return answer;
  }

  GuestMemory memory_ = *GuestMemory::create(16 * mib, GuestBacking::shared);
  DriverQueue queue_{memory_, 0x10000, 64};
  std::optional<BackEnd> back_end_;
  std::unique_ptr<VhostUserDevice> device_;
  std::uint64_t unique_{};
};

bool there_is_virtiofsd() {
  const Directory directory;
  const auto tried = share_directory(directory.path(), Access::read_write, virtiofsd());
  return tried || tried.error().what.find("no virtiofsd") == std::string::npos;
}

#define NEEDS_VIRTIOFSD() \
  if (!there_is_virtiofsd()) GTEST_SKIP() << "no virtiofsd on this host, and VPMU_VIRTIOFSD names none"

TEST(ShareDirectory, ShowsAFileWithItsSize) {
  NEEDS_VIRTIOFSD();
  const Directory directory;
  FileSystem shared{directory.path(), Access::read_write};
  ASSERT_TRUE(shared.run());
  EXPECT_EQ(shared.version.major, 7U);
  EXPECT_EQ(shared.error, 0);
  const auto entry = shared.look_up<fuse_entry_out>("file");
  EXPECT_EQ(shared.error, 0);
  EXPECT_EQ(entry.attr.size, 12345U);
  const auto attributes = shared.ask<fuse_attr_out>(FUSE_GETATTR, entry.nodeid, fuse_getattr_in{});
  EXPECT_EQ(shared.error, 0);
  EXPECT_EQ(attributes.attr.size, 12345U);
  (void)shared.look_up<fuse_entry_out>("nothing");
  EXPECT_EQ(shared.error, -ENOENT);
  EXPECT_EQ(shared.events.answers, 4U);
  EXPECT_TRUE(shared.events.answer_written);
  EXPECT_EQ(shared.events.failure, "");
}

void expect_that_nothing_is_written(const fs::path& directory) {
  FileSystem shared{directory, Access::read_only};
  ASSERT_TRUE(shared.run());
  EXPECT_EQ(shared.look_up<fuse_entry_out>("file").attr.size, 12345U);
  fuse_mkdir_in make{};
  make.mode = 0755;
  (void)shared.ask<fuse_entry_out>(FUSE_MKDIR, FUSE_ROOT_ID, make, "new");
  EXPECT_EQ(shared.error, -EROFS);
  EXPECT_FALSE(fs::exists(directory / "new"));
}

TEST(ShareDirectory, IsWrittenToOnlyWhereItMayBe) {
  NEEDS_VIRTIOFSD();
  const Directory directory;
  {
    FileSystem shared{directory.path(), Access::read_write};
    ASSERT_TRUE(shared.run());
    fuse_mkdir_in make{};
    make.mode = 0755;
    (void)shared.ask<fuse_entry_out>(FUSE_MKDIR, FUSE_ROOT_ID, make, "made");
    EXPECT_EQ(shared.error, 0);
    EXPECT_TRUE(fs::is_directory(directory.path() / "made"));
  }
  expect_that_nothing_is_written(directory.path());
}

/// What a guest asks for that would leave files of power on the host.
struct SpecialRequests {
  FileSystem* shared;

  struct Created {
    fuse_entry_out entry;
    fuse_open_out file;
  };
  [[nodiscard]] Created create(const std::string& name, std::uint32_t mode) const {
    fuse_create_in in{};
    in.flags = O_RDWR | O_CREAT;
    in.mode = S_IFREG | mode;
    return shared->ask<Created>(FUSE_CREATE, FUSE_ROOT_ID, in, name);
  }
  void set_mode(std::uint64_t node, std::uint32_t mode) const {
    fuse_setattr_in in{};
    in.valid = FATTR_MODE;
    in.mode = S_IFREG | mode;
    (void)shared->ask<fuse_attr_out>(FUSE_SETATTR, node, in);
  }
  void make_node(const std::string& name, std::uint32_t mode, std::uint32_t device = 0) const {
    fuse_mknod_in in{};
    in.mode = mode;
    in.rdev = device;
    (void)shared->ask<fuse_entry_out>(FUSE_MKNOD, FUSE_ROOT_ID, in, name);
  }
  /// Changes the content, as any write.
  void shorten(std::uint64_t node) const {
    fuse_setattr_in in{};
    in.valid = FATTR_SIZE;
    in.size = 5;
    (void)shared->ask<fuse_attr_out>(FUSE_SETATTR, node, in);
  }
};

mode_t mode_of(const fs::path& path) {
  struct stat is{};
  return ::lstat(path.c_str(), &is) == 0 ? is.st_mode : 0;
}

TEST(ShareDirectory, GetsNoSetuidBitsAndNoDevices) {
  NEEDS_VIRTIOFSD();
  const Directory directory;
  ASSERT_EQ(::chmod((directory.path() / "file").c_str(), 06755), 0);
  FileSystem shared{directory.path(), Access::read_write};
  ASSERT_TRUE(shared.run());
  const SpecialRequests guest{&shared};
  for (const std::uint32_t bits : {04000U, 02000U, 06000U}) {
    (void)guest.create("created", bits | 0755U);
    EXPECT_EQ(shared.error, -EPERM) << bits;
    guest.make_node("node", S_IFREG | bits | 0755U);
    EXPECT_EQ(shared.error, -EPERM) << bits;
  }
  for (const std::uint32_t type : {std::uint32_t{S_IFCHR}, std::uint32_t{S_IFBLK}}) {
    guest.make_node("device", type | 0666U, 0x103);
    EXPECT_EQ(shared.error, -EPERM) << type;
  }
  for (const char* const name : {"created", "node", "device"}) EXPECT_FALSE(fs::exists(directory.path() / name));
  const auto made = guest.create("created", 0755);
  ASSERT_EQ(shared.error, 0) << "other files as ever";
  for (const std::uint32_t bits : {04000U, 02000U}) {
    guest.set_mode(made.entry.nodeid, bits | 0755U);
    EXPECT_EQ(shared.error, -EPERM) << bits;
  }
  guest.set_mode(made.entry.nodeid, 01700);
  EXPECT_EQ(shared.error, 0);
  EXPECT_EQ(mode_of(directory.path() / "created"), S_IFREG | 01700);
  guest.make_node("pipe", S_IFIFO | 0600U);
  EXPECT_EQ(shared.error, 0);
  // Nor does a program of the host that has the bits keep them with the guest's content in it.
  guest.shorten(shared.look_up<fuse_entry_out>("file").nodeid);
  EXPECT_EQ(shared.error, 0);
  EXPECT_EQ(mode_of(directory.path() / "file"), S_IFREG | 0755);
}

TEST(ShareDirectory, GetsThemWhereTheyAreAllowed) {
  NEEDS_VIRTIOFSD();
  const Directory directory;
  FileSystem shared{directory.path(), Access::read_write, SpecialFiles::allowed};
  ASSERT_TRUE(shared.run());
  const SpecialRequests guest{&shared};
  const auto made = guest.create("created", 04755);
  EXPECT_EQ(shared.error, 0);
  EXPECT_EQ(mode_of(directory.path() / "created"), S_IFREG | 04755);
  guest.set_mode(made.entry.nodeid, 06755);
  EXPECT_EQ(shared.error, 0);
  guest.shorten(made.entry.nodeid);
  EXPECT_EQ(shared.error, 0);
  EXPECT_EQ(mode_of(directory.path() / "created"), S_IFREG | (::geteuid() == 0 ? 06755U : 0755U));
}

/// Runs as another user, in a process of its own.
TEST(ShareDirectory, NeedsNoRoot) {
  NEEDS_VIRTIOFSD();
  if (::geteuid() != 0) GTEST_SKIP() << "the other tests do that already";
  const Directory directory;
  ASSERT_EQ(::chown(directory.path().c_str(), 65534, 65534), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setgroups(0, nullptr) != 0 || ::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(2);
    ::prctl(PR_SET_DUMPABLE, 1);  // setuid() has cleared it, so that /proc/self is root's
    {
      FileSystem shared{directory.path(), Access::read_write};
      fuse_mkdir_in make{};
      make.mode = 0755;
      if (shared.run()) (void)shared.ask<fuse_entry_out>(FUSE_MKDIR, FUSE_ROOT_ID, make, "made");
    }
    expect_that_nothing_is_written(directory.path());
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  struct stat made{};
  ASSERT_EQ(::stat((directory.path() / "made").c_str(), &made), 0);
  EXPECT_EQ(made.st_uid, 65534U);
}

/// Does what a machine does, in a jail that ends the process at a forbidden system call.
int live_in_jail(const fs::path& directory) {
  FileSystem shared{directory, Access::read_write};
  Log log;
  const auto jail = Jail::create({.outside_devices = true}, log);
  if (!jail || !(*jail)->enter()) return 2;
  shared.begin();
  std::thread vcpu{[&] {
    if (!(*jail)->confine_vcpu()) ::_exit(3);
    for (int again = 0; again < 2; ++again) {
      shared.start();
      EXPECT_EQ(shared.look_up<fuse_entry_out>("file").attr.size, 12345U);
      shared.stop();
    }
  }};
  if (!(*jail)->confine_main()) return 4;
  vcpu.join();
  shared.end();
  return testing::Test::HasFailure() ? 1 : 0;
}

TEST(ShareDirectory, WorksFromTheJail) {
  NEEDS_VIRTIOFSD();
  const Directory directory;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(live_in_jail(directory.path()));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(ShareDirectory, TellsOfADaemonThatDies) {
  NEEDS_VIRTIOFSD();
  const Directory directory;
  FileSystem shared{directory.path(), Access::read_write};
  ASSERT_TRUE(shared.run());
  ::kill(shared.process(), SIGKILL);
  for (int tries = 0; tries < 500 && shared.events.failure.empty(); ++tries) ::usleep(10'000);
  EXPECT_NE(shared.events.failure.find("virtiofsd for " + directory.path().string()), std::string::npos)
      << shared.events.failure;
}

TEST(ShareDirectory, EndsTheDaemonWithItsOwner) {
  NEEDS_VIRTIOFSD();
  const Directory directory;
  pid_t process = 0;
  {
    auto shared = *share_directory(directory.path(), Access::read_write, virtiofsd());
    process = shared.daemon->process();
    EXPECT_EQ(::kill(process, 0), 0);
  }
  EXPECT_NE(::kill(process, 0), 0);
}

TEST(ShareDirectory, SaysWhatIsNoDirectory) {
  const auto nothing = share_directory("/no/such/place", Access::read_write, {});
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().kind, ErrorKind::usage);
  EXPECT_FALSE(share_directory("/dev/null", Access::read_write, {}));
  const auto other = share_directory("/tmp", Access::read_write, {.path = "/bin/true"});
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().what.find("/bin/true is not virtiofsd"), std::string::npos) << other.error().what;
}

// Reads the first sector. Virtio 1.2 5.2.6.
std::string first_sector(const fs::path& image, DiskFormat format) {
  const auto memory = *GuestMemory::create(16 * mib, GuestBacking::shared);
  auto served = serve_disk(image, format, Access::read_only, storage_daemon());
  EXPECT_TRUE(served) << describe(served.error());
  const auto device = VhostUserDevice::create(served->take_peer(), memory,
                                              {.type = DeviceType::block,
                                               .queue_sizes = {64},
                                               .features = ~0ULL,
                                               .configuration = VhostUserDevice::FromBackEnd{60},
                                               .answers = Answers::before_return});
  if (!device) return describe(device.error());
  Events events;
  EXPECT_TRUE((*device)->begin(events));
  std::uint64_t sectors = 0;
  (*device)->read_configuration(0, std::as_writable_bytes(std::span{&sectors, 1}));
  EXPECT_EQ(sectors, 2048U);
  EXPECT_NE((*device)->features() & 1U << 5U, 0U);  // VIRTIO_BLK_F_RO
  DriverQueue queue{memory, 0x10000, 64};
  const auto started = (*device)->start({.features = (*device)->features(), .rings = {queue.ring()}});
  EXPECT_TRUE(started) << describe(started.error());
  queue.put(request_at, std::array<std::uint64_t, 2>{0, 0});
  queue.describe(0, {request_at, 16, DriverQueue::next, 1});
  queue.describe(1, {answer_at, 512, DriverQueue::next | DriverQueue::write, 2});
  queue.describe(2, {answer_at + 512, 1, DriverQueue::write, 0});
  queue.put(answer_at + 512, std::uint8_t{0xFF});
  queue.offer(0);
  (*device)->notify(0);
  std::string sector(513, '\0');
  EXPECT_TRUE(memory.read(vpmu::GuestPhysical{answer_at}, std::as_writable_bytes(std::span{sector})));
  EXPECT_EQ(sector.back(), '\0');  // VIRTIO_BLK_S_OK
  EXPECT_EQ(events.failure, "");
  return sector.substr(0, 5);
}

TEST(ServeDisk, ReadsAnImage) {
  const Directory directory;
  const fs::path image = directory.path() / "disk.img";
  std::ofstream{image} << "hello" << std::string(mib - 5, '\0');
  const auto tried = serve_disk(image, DiskFormat::raw, Access::read_only, storage_daemon());
  if (!tried && tried.error().what.find("no qemu-storage-daemon") != std::string::npos)
    GTEST_SKIP() << "no qemu-storage-daemon on this host, and VPMU_STORAGE_DAEMON names none";
  EXPECT_EQ(first_sector(image, DiskFormat::raw), "hello");
  // The daemon's message about a file that is no image of this format.
  const std::string refused = first_sector(image, DiskFormat::qcow2);
  EXPECT_NE(refused.find("qemu-storage-daemon for "), std::string::npos) << refused;
  EXPECT_NE(refused.find("not in qcow2 format"), std::string::npos) << refused;
}

}  // namespace
}  // namespace vmm::test
