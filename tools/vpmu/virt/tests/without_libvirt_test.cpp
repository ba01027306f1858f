// The substitute for libvirt in a build without it.
#include <gtest/gtest.h>

#include "virt/domains.hpp"

namespace vmm::tool::test {
namespace {

TEST(VirtWithoutLibvirt, SaysSo) {
  const auto connected = connect_to_libvirt("test:///default");
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().kind, ErrorKind::host);
  EXPECT_EQ(describe(connected.error()),
            "vpmu was built without libvirt; install libvirt-dev and build again; `vpmu virt hook` works without");
}

}  // namespace
}  // namespace vmm::tool::test
