#include "virt/switch.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "fake_domains.hpp"
#include "samples.hpp"

namespace vmm::tool::test {
namespace {

namespace fs = std::filesystem;

constexpr auto guests_file = "local/abstractions/libvirt-qemu";
constexpr auto daemon_file = "local/usr.sbin.libvirtd";

EnableRequest plain_request() {
  return {.domain = "guest",
          .options = {.model = "haswell", .source = "auto", .wrapper = "/opt/vpmu/qemu-vpmu"},
          .apparmor = {}};
}
FakeDomains persistent() {
  return FakeDomains{{.name = "guest", .xml = libvirt_domain, .persistent = true, .active = false}};
}

TEST(VirtSwitch, EnablesAndDisables) {
  auto domains = persistent();
  EXPECT_EQ(text_of(enable_domain(domains, plain_request())), "guest has the PMU of haswell\n");
  EXPECT_EQ(
      text_of(describe_domain(domains, "guest")),
      "guest: enabled\nmodel haswell\nsource auto\nemulator /opt/vpmu/qemu-vpmu\nqemu /usr/bin/qemu-system-x86_64\n");
  EXPECT_EQ(text_of(list_domains(domains)),
            "DOMAIN                   PMU       MODEL            SOURCE\nguest                    enabled   haswell    "
            "      auto\n");
  EXPECT_EQ(text_of(disable_domain(domains, "guest")), "guest is as it was before\n");
  EXPECT_EQ(domains.xml(), libvirt_domain);
  EXPECT_EQ(text_of(describe_domain(domains, "guest")), "guest: not enabled\n");
  EXPECT_TRUE(contains(text_of(list_domains(domains)), "guest                    -         -                -\n"));
  EXPECT_EQ(text_of(disable_domain(domains, "guest")),
            "guest: the domain is not enabled; `vpmu virt list` shows those that are");
}

TEST(VirtSwitch, TellsThatARunningDomainHasItLater) {
  FakeDomains domains{{.name = "guest", .xml = libvirt_domain, .persistent = true, .active = true}};
  EXPECT_EQ(text_of(enable_domain(domains, plain_request())),
            "guest has the PMU of haswell; guest runs: this takes effect when it is shut down and started again\n");
  EXPECT_TRUE(contains(text_of(disable_domain(domains, "guest")), "takes effect when it is shut down"));
}

TEST(VirtSwitch, TellsThatSavedStateGoesOnWithoutIt) {
  FakeDomains domains{{.name = "guest", .xml = libvirt_domain, .persistent = true, .active = false, .saved = true}};
  EXPECT_TRUE(
      contains(text_of(enable_domain(domains, plain_request())), "`virsh managedsave-remove guest` drops that"));
}

TEST(VirtSwitch, TellsThatLibvirtAsksAnotherQemuThanTheDomains) {
  const auto of = [](const char* path) { return with(libvirt_domain, "/usr/bin/qemu-system-x86_64", path); };
  FakeDomains other{
      {.name = "guest", .xml = of("/opt/qemu/bin/qemu-system-x86_64"), .persistent = true, .active = false}};
  for (int n = 0; n < 2; ++n) {
    const std::string told = text_of(enable_domain(other, plain_request()));
    EXPECT_TRUE(contains(
        told, "its QEMU is /opt/qemu/bin/qemu-system-x86_64, and libvirt will ask /usr/bin/qemu-system-x86_64"))
        << told;
  }
  for (const char* known : {"/usr/bin/qemu-system-x86_64", "/usr/libexec/qemu-kvm"}) {
    FakeDomains domains{{.name = "guest", .xml = of(known), .persistent = true, .active = false}};
    EXPECT_EQ(text_of(enable_domain(domains, plain_request())), "guest has the PMU of haswell\n");
  }
}

TEST(VirtSwitch, RefusesATransientDomain) {
  FakeDomains domains{{.name = "guest", .xml = libvirt_domain, .persistent = false, .active = true}};
  EXPECT_TRUE(contains(text_of(enable_domain(domains, plain_request())), "the domain guest is transient"));
  EXPECT_TRUE(contains(text_of(disable_domain(domains, "guest")), "the domain guest is transient"));
  EXPECT_EQ(domains.defined, 0);
}

TEST(VirtSwitch, DefinesNothingForADomainThatCannotHaveIt) {
  FakeDomains domains{
      {.name = "guest", .xml = with(libvirt_domain, "type='kvm'", "type='qemu'"), .persistent = true, .active = false}};
  EXPECT_TRUE(contains(text_of(enable_domain(domains, plain_request())), "not kvm"));
  EXPECT_EQ(domains.defined, 0);
}

TEST(VirtSwitch, TellsWhatWasChangedSince) {
  auto domains = persistent();
  ASSERT_TRUE(enable_domain(domains, plain_request()));
  ASSERT_TRUE(domains.define(with(domains.xml(), "<pmu state='off'/>", "<pmu state='on'/>")));
  EXPECT_TRUE(contains(text_of(describe_domain(domains, "guest")), "guest: enabled, but changed since\n"));
  EXPECT_TRUE(
      contains(text_of(describe_domain(domains, "guest")), "changed: the state of <pmu> is \"on\", not \"off\"\n"));
  EXPECT_TRUE(contains(text_of(list_domains(domains)), " changed "));
}

TEST(VirtSwitch, PutsTheOldDefinitionBackWhenLibvirtKeepsAnother) {
  auto domains = persistent();
  domains.reword = [](const std::string& xml) {  // like a driver that does not know <qemu:commandline>
    const auto at = xml.find("  <qemu:commandline"), end = xml.find("</qemu:commandline>");
    return at == std::string::npos ? xml : xml.substr(0, at) + xml.substr(end + 19);
  };
  const auto error = text_of(enable_domain(domains, plain_request()));
  EXPECT_TRUE(contains(error, "than it was given: VPMU_MODEL in <qemu:commandline> is \"\"")) << error;
  EXPECT_EQ(domains.xml(), libvirt_domain);
}

TEST(VirtSwitch, SaysSoWhenTheOldDefinitionCannotBePutBack) {
  auto domains = persistent();
  domains.reword = [](const std::string& xml) { return with(xml, "<apic/>", "<pae/>"); };
  domains.refused = {1};
  const auto error = text_of(enable_domain(domains, plain_request()));
  EXPECT_TRUE(contains(error, "would not restore <features>, and its old definition could not be put back")) << error;
}

/// AppArmor's files in a directory of the test's own; records which profiles were reloaded.
class VirtAppArmor : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(host_.directory / "local/abstractions");
    write("usr.sbin.libvirtd", "profile");
    write(guests_file, "# ours\n/data r,");
    host_.reload = [this](const fs::path& profile) -> Result<void> {
      reloaded_.push_back(profile.filename());
      if (reload_fails_) return host_error("apparmor_parser does not take it");
      return {};
    };
  }
  void TearDown() override { fs::remove_all(host_.directory); }

  void write(const fs::path& name, const std::string& text) const { std::ofstream{host_.directory / name} << text; }
  [[nodiscard]] std::string read(const fs::path& name) const {
    std::ifstream file{host_.directory / name};
    return file ? std::string{std::istreambuf_iterator<char>{file}, {}} : "missing";
  }
  [[nodiscard]] EnableRequest request() const {
    auto all = plain_request();
    all.apparmor = host_;
    return all;
  }
  void expect_untouched() const {
    EXPECT_EQ(read(guests_file), "# ours\n/data r,");
    EXPECT_EQ(read(daemon_file), "missing");
    EXPECT_EQ(std::distance(fs::recursive_directory_iterator{host_.directory}, {}), 4);
  }

  AppArmorHost host_{.directory = fs::temp_directory_path() / ("vpmu-apparmor-" + std::to_string(getpid())),
                     .reload = {}};
  std::vector<std::string> reloaded_;
  bool reload_fails_{};
};

TEST_F(VirtAppArmor, IsToldOfTheWrapperAndTheLibrary) {
  auto domains = persistent();
  ASSERT_TRUE(enable_domain(domains, request()));
  const std::string guests =
      "# begin vpmu: written by `vpmu virt enable --apparmor`\n\"/opt/vpmu/qemu-vpmu\" "
      "rmix,\n\"/opt/vpmu/libvpmu-kvm.so\" mr,\n# end vpmu\n";
  EXPECT_EQ(read(guests_file), "# ours\n/data r,\n" + guests);
  EXPECT_EQ(read(daemon_file),
            "# begin vpmu: written by `vpmu virt enable --apparmor`\n\"/opt/vpmu/qemu-vpmu\" PUx,\n# end vpmu\n");
  EXPECT_EQ(read("local/usr.sbin.virtqemud"), "missing");  // no such profile here
  EXPECT_EQ(reloaded_, std::vector<std::string>{"usr.sbin.libvirtd"});
  // A second time must not add the lines again.
  ASSERT_TRUE(enable_domain(domains, request()));
  EXPECT_EQ(read(guests_file), "# ours\n/data r,\n" + guests);
  ASSERT_TRUE(AppArmorChange::remove(host_));
  EXPECT_EQ(read(guests_file), "# ours\n/data r,\n");
  EXPECT_EQ(read(daemon_file), "");
}

TEST_F(VirtAppArmor, HasNothingOfUsAfterAnEnableThatFailed) {
  auto domains = persistent();
  domains.refused = {0};
  EXPECT_FALSE(enable_domain(domains, request()));
  expect_untouched();
  EXPECT_EQ(reloaded_.size(), 2U);  // once with the lines, and once without
  domains.refused = {};
  domains.reword = [](const std::string& xml) { return with(xml, "VPMU_MODEL", "X"); };
  EXPECT_FALSE(enable_domain(domains, request()));
  expect_untouched();
}

TEST_F(VirtAppArmor, HasNothingOfUsWhenAProfileIsNotTaken) {
  auto domains = persistent();
  reload_fails_ = true;
  EXPECT_EQ(text_of(enable_domain(domains, request())), "apparmor_parser does not take it");
  expect_untouched();
  EXPECT_EQ(domains.defined, 0);
}

TEST_F(VirtAppArmor, KeepsAFileThatCannotBeWritten) {
  fs::remove_all(host_.directory / "local");
  auto domains = persistent();
  EXPECT_TRUE(contains(text_of(enable_domain(domains, request())), "local/abstractions; is AppArmor in use here?"));
  fs::create_directories(host_.directory / guests_file);  // a directory where the file should be
  EXPECT_TRUE(contains(text_of(enable_domain(domains, request())), "libvirt-qemu: Is a directory"));
  EXPECT_EQ(domains.defined, 0);
}

TEST_F(VirtAppArmor, IsNotToldOfAPathThatMeansSomethingToIt) {
  auto domains = persistent();
  auto wild = request();
  wild.options.wrapper = "/opt/**/qemu-vpmu";
  EXPECT_TRUE(contains(text_of(enable_domain(domains, wild)), "characters with a meaning in AppArmor's files"));
  expect_untouched();
  EXPECT_TRUE(enable_domain(domains, plain_request()));
  expect_untouched();
}

TEST(VirtAppArmorText, TellsWhereEachLineGoes) {
  const auto text = describe_apparmor("/opt/vpmu/qemu-vpmu");
  EXPECT_TRUE(contains(text, "add to /etc/apparmor.d/local/abstractions/libvirt-qemu:\n# begin vpmu"));
  EXPECT_TRUE(contains(text, "\"/opt/vpmu/libvpmu-kvm.so\" mr,\n"));
  EXPECT_TRUE(contains(text, "run: apparmor_parser --replace /etc/apparmor.d/usr.sbin.libvirtd\n"));
}

}  // namespace
}  // namespace vmm::tool::test
