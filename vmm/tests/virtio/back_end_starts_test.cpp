#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "fakes/own_directory.hpp"
#include "fakes/sizes.hpp"
#include "virtio/back_ends.hpp"
#include "virtio/vhost_user_device.hpp"

// Failures that keep a daemon from becoming a device. The daemons themselves are not needed here.

namespace vmm::test {
namespace {

using namespace virtio;
using virtio::Access;
namespace fs = std::filesystem;

TEST(ServeDisk, LetsNobodyShareAnImageThatOneMayWriteTo) {
  const Directory directory;
  const fs::path image = directory.path() / "disk.img";
  std::ofstream{image} << std::string(mib, '\0');
  const ProgramChoice any{.path = "/bin/true"};
  const auto served = [&image, &any](Access access) { return serve_disk(image, DiskFormat::raw, access, any); };
  {
    const auto writer = served(Access::read_write);
    ASSERT_TRUE(writer) << describe(writer.error());
    for (const Access access : {Access::read_only, Access::read_write})
      EXPECT_EQ(describe(served(access).error()), image.string() +
                                                      " is in use as another machine's disk; wait until that ends, or "
                                                      "let both only read it (,ro)");
  }
  const auto reader = served(Access::read_only), other_reader = served(Access::read_only);
  EXPECT_TRUE(reader && other_reader);
  EXPECT_FALSE(served(Access::read_write));
}

/// A program that prints `text` and fails.
ProgramChoice program_that_says(const Directory& directory, const std::string& text) {
  const fs::path program = directory.path() / "program";
  std::ofstream{program} << "#!/bin/sh\necho '" << text << "'\nexit 1\n";
  fs::permissions(program, fs::perms::owner_all);
  return {.path = program};
}

const NetworkAddresses addresses{.guest = "10.0.2.15", .gateway = "10.0.2.2", .name_server = "10.0.2.3", .prefix = 24};

TEST(StartNetwork, RefusesAPasstWithoutVhostUserByItsVersion) {
  const Directory directory;
  const auto refused = start_network(addresses, program_that_says(directory, "passt unknown version"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(describe(refused.error()),
            directory.path().string() +
                "/program has no vhost-user: its --version says \"passt unknown version\"; install "
                "passt of January 2025 or later (Debian 13 has it), or name that program");
}

TEST(StartNetwork, TellsWhatToInstall) {
  const auto refused = start_network(addresses, {.path = "/no/such"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(describe(refused.error()),
            "/no/such is not a program that can be started; install passt of January 2025 or later (Debian 13 has it), "
            "or name the program");
}

TEST(StartNetwork, TellsTheLastWordsOfAPasstThatEnds) {
  const Directory directory;
  const auto memory = *GuestMemory::create(16 * mib, GuestBacking::shared);
  auto started = start_network(addresses, program_that_says(directory, "\"net\" but no route"));
  ASSERT_TRUE(started) << describe(started.error());
  const auto device = VhostUserDevice::create(started->take_peer(), memory,
                                              {.type = DeviceType::net, .queue_sizes = {64, 64}, .configuration = {}});
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().what.substr(0, 6), "passt:");
  EXPECT_NE(device.error().what.find("(it said: \"net\" but no route)"), std::string::npos) << device.error().what;
}

TEST(JoinBackEnd, TellsWhereNobodyListens) {
  const Directory directory;
  const std::string nothing = directory.path() / "nothing";
  const std::string too_long(200, 'x');
  EXPECT_EQ(describe(join_back_end(nothing, "the disk", "start it").error()),
            "the disk at " + nothing + ": cannot connect: No such file or directory; start it");
  EXPECT_EQ(describe(join_back_end(directory.path() / "file", "the disk", "start it").error()),
            "the disk at " + (directory.path() / "file").string() + ": cannot connect: Connection refused; start it");
  const auto refused = join_back_end(too_long, "the disk", "start it");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("too long for the path of a socket"), std::string::npos) << refused.error().what;
  EXPECT_FALSE(join_back_end("", "the disk", "start it"));
}

}  // namespace
}  // namespace vmm::test
