#include "exec/request.hpp"

#include <gtest/gtest.h>

#include "support/error.hpp"

namespace vmm::tool {
namespace {

ExecRequest full_request() {
  return {.arguments = {"perf", "stat", "", "a b=c"},
          .environment = {"PATH=/bin", "NAME=of\nlines", ""},
          .directory = "/home/somebody's",
          .user = 1000,
          .group = 4'294'967'294,
          .groups = {4, 27},
          .file_mode_mask = 077,
          .terminal = TerminalSize{24, 80},
          .root_tag = "root",
          .root_disk = ExecRootDisk{"vdb", 2},
          .file_server = FileServer::user,
          .mounts = {{"rw0", "/with a space", ExecAccess::read_write}, {"ro0", "/usr", ExecAccess::read_only}},
          .network = ExecNetwork{"10.0.2.15", 24, "10.0.2.2", "10.0.2.3"},
          .hostname = "guest",
          .clock = 1'234'567'890'123'456'789,
          .random_seed = std::string(32, 's'),
          .modules = {"virtio_pci.ko", "fuse.ko"}};
}

std::string file_of(std::initializer_list<std::string> fields) {
  std::string file{"vpmu exec request 1\0", 20};
  for (const std::string& field : fields) (file += field).push_back('\0');
  return file;
}

std::string failure_of(const Result<ExecRequest>& request) { return request ? "none" : request.error().what; }

TEST(ExecRequest, IsReadAsItWasWritten) {
  const auto file = write_request(full_request());
  ASSERT_TRUE(file) << describe(file.error());
  const auto read = read_request(*file);
  ASSERT_TRUE(read) << describe(read.error());
  EXPECT_EQ(*read, full_request());
}

TEST(ExecRequest, HasDefaultsForAllButTheCommand) {
  const auto read = read_request(file_of({"argument=true"}));
  ASSERT_TRUE(read) << describe(read.error());
  EXPECT_EQ(*read, ExecRequest{.arguments = {"true"}});
}

TEST(ExecRequest, IsRefusedWhereverItIsCutOffWithinAField) {
  const auto file = write_request(full_request());
  ASSERT_TRUE(file);
  for (std::size_t size = 0; size < file->size(); ++size) {
    const auto read = read_request(std::string_view{*file}.substr(0, size));
    EXPECT_TRUE(!read || (*file)[size - 1] == '\0') << size;
  }
}

struct BadFile {
  const char* name;
  std::string file;
  const char* failure;
};

void PrintTo(const BadFile& bad, std::ostream* out) { *out << bad.name; }

class ExecRequestBadFile : public testing::TestWithParam<BadFile> {};

TEST_P(ExecRequestBadFile, IsRefused) { EXPECT_EQ(failure_of(read_request(GetParam().file)), GetParam().failure); }

const std::string command = "argument=true";

INSTANTIATE_TEST_SUITE_P(
    Fields, ExecRequestBadFile,
    testing::ValuesIn(std::vector<BadFile>{
        {"Empty", "", "exec request: it is none of this version"},
        {"OtherVersion", std::string{"vpmu exec request 2\0", 20}, "exec request: it is none of this version"},
        {"CutOff", file_of({}) + "argument=true", "exec request: it is cut off"},
        {"NoCommand", file_of({}), "exec request: argument names no command"},
        {"EmptyCommand", file_of({"argument="}), "exec request: argument names no command"},
        {"UnknownField", file_of({command, "colour=red"}), "exec request: it has a field that is not known"},
        {"NoValue", file_of({command, "user"}), "exec request: it has a field that is not known"},
        {"EmptyField", file_of({command, ""}), "exec request: it has a field that is not known"},
        {"TwoUsers", file_of({command, "user=1", "user=1"}), "exec request: user is there twice"},
        {"NoNumber", file_of({command, "user=root"}), "exec request: user cannot be read"},
        {"NegativeNumber", file_of({command, "user=-1"}), "exec request: user cannot be read"},
        {"LargeNumber", file_of({command, "group=4294967296"}), "exec request: group cannot be read"},
        {"NumberAndMore", file_of({command, "groups=1 2"}), "exec request: groups cannot be read"},
        {"LargeMask", file_of({command, "umask=512"}), "exec request: umask is out of range"},
        {"LateClock", file_of({command, "clock=9223372036854775808"}), "exec request: clock is too late"},
        {"HugeClock", file_of({command, "clock=18446744073709551616"}), "exec request: clock cannot be read"},
        {"HalfATerminal", file_of({command, "terminal=24"}), "exec request: terminal cannot be read"},
        {"WideTerminal", file_of({command, "terminal=24 65536"}), "exec request: terminal is too large"},
        {"RelativeDirectory", file_of({command, "directory=tmp"}), "exec request: directory is no absolute path"},
        {"RelativeMount", file_of({command, "mount=rw rw0 tmp"}), "exec request: mount is no absolute path"},
        {"MountWithoutPath", file_of({command, "mount=rw rw0"}), "exec request: mount cannot be read"},
        {"MountWithoutAccess", file_of({command, "mount=rw0 /tmp"}), "exec request: mount cannot be read"},
        {"MountWithoutTag", file_of({command, "mount=ro  /tmp"}), "exec request: mount is empty or too long"},
        {"LongTag", file_of({command, "root=" + std::string(37, 'x')}), "exec request: root is empty or too long"},
        {"TagWithAControlCharacter", file_of({command, "root=a\x01"}),
         "exec request: root has a character that no name has"},
        {"ModuleElsewhere", file_of({command, "module=../init"}), "exec request: module is a path"},
        {"ParentAsModule", file_of({command, "module=.."}), "exec request: module is a path"},
        {"RootDiskWithoutPartition", file_of({command, "root-disk=vda"}), "exec request: root-disk cannot be read"},
        {"RootDiskElsewhere", file_of({command, "root-disk=../vda 1"}), "exec request: root-disk is a path"},
        {"RootDiskWithoutName", file_of({command, "root-disk= 1"}), "exec request: root-disk is empty or too long"},
        {"LargePartition", file_of({command, "root-disk=vda 129"}),
         "exec request: root-disk has a partition that is none"},
        {"HalfANetwork", file_of({command, "network=10.0.2.15 24"}),
         "exec request: network has an address that is none"},
        {"NetworkWithoutPrefix", file_of({command, "network=10.0.2.15 10.0.2.2 10.0.2.3"}),
         "exec request: network cannot be read"},
        {"LargePrefix", file_of({command, "network=10.0.2.15 31 10.0.2.2 10.0.2.3"}),
         "exec request: network has a prefix that is none"},
        {"PrefixOfNothing", file_of({command, "network=10.0.2.15 0 10.0.2.2 10.0.2.3"}),
         "exec request: network has a prefix that is none"},
        {"NameServerByName", file_of({command, "network=10.0.2.15 24 10.0.2.2 localhost"}),
         "exec request: network has an address that is none"},
        {"NetworkAndMore", file_of({command, "network=10.0.2.15 24 10.0.2.2 10.0.2.3 x"}),
         "exec request: network has an address that is none"},
        {"ShortSeed", file_of({command, "seed=" + std::string(31, 's')}),
         "exec request: seed is too short or too long"},
        {"LongSeed", file_of({command, "seed=" + std::string(257, 's')}),
         "exec request: seed is too short or too long"},
        {"LongHostname", file_of({command, "hostname=" + std::string(65, 'x')}),
         "exec request: hostname is empty or too long"},
        {"LongField", file_of({command, "environment=" + std::string(std::size_t{1} << 19, 'x')}),
         "exec request: it has a field that is too long"},
        {"LongFile", std::string((std::size_t{4} << 20) + 1, 'x'), "exec request: it is too long"},
    }),
    [](const auto& test) { return std::string{test.param.name}; });

TEST(ExecRequest, DoesNotTakeAStringThatExecveDoesNot) {
  ExecRequest request = full_request();
  request.arguments.emplace_back(std::size_t{128} << 10, 'x');
  EXPECT_EQ(write_request(request).error().what, "exec request: argument is too long");
  request.arguments.back() = std::string{"a\0b", 3};
  EXPECT_EQ(write_request(request).error().what, "exec request: argument has a NUL in it");
  request = full_request();
  request.environment.assign(40, std::string((std::size_t{128} << 10) - 1, 'x'));
  EXPECT_EQ(write_request(request).error().what, "exec request: environment is more than a request has room for");
}

}  // namespace
}  // namespace vmm::tool
