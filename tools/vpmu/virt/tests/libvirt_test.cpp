// With libvirt's own test driver in this process: no daemon, and a separate host for each connection.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "samples.hpp"
#include "virt/libvirt_calls.hpp"
#include "virt/switch.hpp"

namespace vmm::tool::test {
namespace {

namespace fs = std::filesystem;

class VirtLibvirt : public testing::Test {
 protected:
  void SetUp() override {
    const auto named = [](const std::string& name, const std::string& uuid_end) {
      return with(with(libvirt_domain, "<name>guest<", "<name>" + name + "<"), "4f</uuid>", uuid_end + "</uuid>");
    };
    const std::string test_space =
        "<domain type='kvm' xmlns:test='http://libvirt.org/schemas/domain/test/1.0'><test:transient/>";
    const std::string asleep =
        "<test:runstate>5</test:runstate><test:hasmanagedsave>1</test:hasmanagedsave>";  // shut off
    std::ofstream{file_} << "<node>" << libvirt_domain
                         << with(named("fleeting", "60"), "<domain type='kvm'>", test_space)
                         << with(named("asleep", "62"), "<domain type='kvm'>",
                                 with(test_space, "<test:transient/>", asleep))
                         << with(named("emulated", "61"), "type='kvm'", "type='qemu'") << "</node>";
    auto connected = connect_to_libvirt("test://" + file_.string());
    ASSERT_TRUE(connected) << describe(connected.error());
    domains_ = std::move(*connected);
  }
  void TearDown() override { fs::remove(file_); }

  [[nodiscard]] std::string xml(const std::string& name) const { return domains_->read(name)->xml; }
  [[nodiscard]] static EnableRequest request(const std::string& domain) {
    return {.domain = domain,
            .options = {.model = "haswell", .source = "exact", .wrapper = "/opt/vpmu/qemu-vpmu"},
            .apparmor = {}};
  }

  fs::path file_ = fs::temp_directory_path() / ("vpmu-libvirt-" + std::to_string(getpid()) + ".xml");
  std::unique_ptr<Domains> domains_;
};

TEST(VirtLibvirtLibrary, WhatCannotBeLoadedIsNamedWithTheReason) {
  const auto missing = load_libvirt("libvirt-that-is-not-there.so.0");
  ASSERT_FALSE(missing);
  EXPECT_TRUE(contains(describe(missing.error()), "cannot load libvirt (libvirt-that-is-not-there.so.0): "))
      << describe(missing.error());
  EXPECT_TRUE(contains(describe(missing.error()), "package libvirt0"));
  const auto other = load_libvirt("libm.so.6");
  ASSERT_FALSE(other);
  EXPECT_TRUE(contains(describe(other.error()), "undefined symbol: virConnectClose")) << describe(other.error());
}

TEST_F(VirtLibvirt, ADomainGoesThroughEnableStatusDisableAndIsTheSameAgain) {
  const auto before = xml("guest");
  EXPECT_TRUE(contains(before, "<model fallback='forbid'>Haswell-noTSX</model>"));
  // The domains of a test driver are running from the start.
  EXPECT_EQ(text_of(enable_domain(*domains_, request("guest"))),
            "guest has the PMU of haswell; guest runs: this takes effect when it is shut down and started again\n");
  const auto enabled = xml("guest");
  EXPECT_TRUE(contains(enabled, "<emulator>/opt/vpmu/qemu-vpmu</emulator>"));
  EXPECT_TRUE(contains(enabled, "<cpu mode='host-passthrough' check='none' migratable='on'>"));
  EXPECT_TRUE(contains(enabled, "<pmu state='off'/>"));
  EXPECT_TRUE(contains(text_of(describe_domain(*domains_, "guest")), "guest: enabled\nmodel haswell\nsource exact\n"));
  EXPECT_TRUE(
      contains(text_of(list_domains(*domains_)), "guest                    enabled   haswell          exact\n"));
  auto other = request("7abac94b-98fa-4b74-8abe-158ee158da4f");  // by its UUID, another model
  other.options.model = "skylake";
  EXPECT_TRUE(contains(text_of(enable_domain(*domains_, other)), "guest has the PMU of skylake"));
  EXPECT_TRUE(disable_domain(*domains_, "guest"));
  EXPECT_EQ(xml("guest"), before);
}

TEST_F(VirtLibvirt, EnabledADomainKeepsWhatIsEditedMeanwhile) {
  ASSERT_TRUE(enable_domain(*domains_, request("guest")));
  ASSERT_TRUE(domains_->define(with(xml("guest"), "<on_poweroff>destroy<", "<on_poweroff>restart<")));
  ASSERT_TRUE(disable_domain(*domains_, "guest"));
  EXPECT_TRUE(contains(xml("guest"), "<on_poweroff>restart<"));
  EXPECT_FALSE(contains(xml("guest"), "vpmu"));
}

TEST_F(VirtLibvirt, SavedStateIsKnown) {
  EXPECT_FALSE(domains_->read("guest")->saved);
  EXPECT_TRUE(domains_->read("asleep")->saved);
  EXPECT_FALSE(domains_->read("asleep")->active);
}

TEST_F(VirtLibvirt, RefusalsLeaveTheDefinitionAsItWas) {
  for (const std::string name : {"fleeting", "emulated"}) {
    const auto before = xml(name);
    const auto result = enable_domain(*domains_, request(name));
    ASSERT_FALSE(result) << name;
    EXPECT_EQ(result.error().kind, ErrorKind::usage);
    EXPECT_TRUE(contains(result.error().what, name == "fleeting" ? "transient" : "not kvm")) << result.error().what;
    EXPECT_EQ(xml(name), before);
  }
}

TEST_F(VirtLibvirt, ErrorsOfLibvirtsBecomeOurs) {
  const auto none = domains_->read("nobody");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().kind, ErrorKind::usage);
  EXPECT_TRUE(contains(describe(none.error()), "no domain \"nobody\" at test:///")) << describe(none.error());
  const auto bad = domains_->define("<domain type='kvm'><name>x</name></domain>");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().kind, ErrorKind::host);
  EXPECT_TRUE(contains(bad.error().what, "libvirt does not take the definition: ")) << bad.error().what;
  const auto malformed = domains_->define("<domain>\n<a></domain>");  // libvirt's own message has several lines
  EXPECT_TRUE(contains(malformed.error().what, "mismatch"));
  EXPECT_FALSE(contains(malformed.error().what, "\n"));
  const auto nowhere = connect_to_libvirt("test:///no/such/file.xml");
  ASSERT_FALSE(nowhere);
  EXPECT_TRUE(contains(describe(nowhere.error()), "cannot connect to libvirt at test:///no/such/file.xml: "))
      << describe(nowhere.error());
  EXPECT_TRUE(contains(describe(connect_to_libvirt("nonsense://x/y").error()),
                       "cannot connect to libvirt at nonsense://x/y: "));
}

TEST_F(VirtLibvirt, KnowsWhatItsDriverKeeps) {
  EXPECT_FALSE(domains_->driver().keeps_environment);
  EXPECT_TRUE(domains_->local());
}

}  // namespace
}  // namespace vmm::tool::test
