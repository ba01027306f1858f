#include "virt/domain.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "samples.hpp"
#include "virt/xml.hpp"

namespace vmm::tool::test {
namespace {

const VirtOptions haswell{.model = "haswell", .source = "exact", .wrapper = "/usr/libexec/vpmu/qemu-vpmu"};

std::string enabled(const std::string& xml, const VirtOptions& options = haswell) {
  return text_of(enable_virt(xml, options));
}

/// The reason why a domain is refused; "" if it is accepted.
std::string refusal(const std::string& xml, const VirtOptions& options = haswell) {
  const auto result = enable_virt(xml, options);
  if (result) return "";
  EXPECT_EQ(result.error().kind, ErrorKind::usage);
  return describe(result.error());
}

std::string environment(const XmlDocument& document, const std::string& name) {
  for (const auto variable : document.root().child("commandline", qemu).children("env", qemu))
    if (variable.attribute("name") == name) return *variable.attribute("value");
  return "none";
}

TEST(VirtEnable, GivesTheDomainTheWrapperTheModelAndNoPmuOfKvms) {
  const auto document = std::move(XmlDocument::parse(enabled(libvirt_domain))).value();
  const auto domain = document.root();
  EXPECT_EQ(domain.child("devices").child("emulator").text(), haswell.wrapper);
  const auto cpu = domain.child("cpu");
  EXPECT_EQ(cpu.attribute("mode"), "host-passthrough");
  EXPECT_EQ(cpu.attribute("migratable"), "on");
  EXPECT_FALSE(cpu.attribute("match"));
  EXPECT_FALSE(cpu.child("model"));
  EXPECT_FALSE(cpu.child("feature"));
  EXPECT_EQ(cpu.child("topology").attribute("cores"), "2");
  EXPECT_EQ(domain.child("features").child("pmu").attribute("state"), "off");
  EXPECT_EQ(environment(document, "VPMU_MODEL"), "haswell");
  EXPECT_EQ(environment(document, "VPMU_SOURCE"), "exact");
  EXPECT_EQ(environment(document, "VPMU_QEMU"), "/usr/bin/qemu-system-x86_64");
  EXPECT_EQ(domain.child("devices").child("disk").child("target").attribute("dev"), "vda");
}

TEST(VirtDisable, GivesTheIdenticalTextBack) {
  const std::string no_emulator = with(libvirt_domain, "    <emulator>/usr/bin/qemu-system-x86_64</emulator>\n", "");
  const std::string bare = "<domain type='kvm'><os><type>hvm</type></os><devices/></domain>";
  const std::string odd =
      "<domain type='kvm'><os><type>hvm</type></os><features/>\n<cpu><![CDATA[x]]></cpu><!-- c "
      "--><devices>\n\t<emulator>/usr/bin/kvm<!-- d "
      "--></emulator></devices></domain>";
  const auto no_value = with(crowded_domain, " value='nehalem'", "");
  for (const std::string& xml : {libvirt_domain, crowded_domain, no_emulator, bare, odd, no_value}) {
    const auto changed = enabled(xml);
    EXPECT_NE(changed, xml);
    EXPECT_EQ(text_of(disable_virt(changed)), xml);
  }
}

TEST(VirtDisable, GivesItBackAfterEveryChangeOfModel) {
  auto xml = crowded_domain;
  for (const auto* const model : {"haswell", "skylake", "nehalem"}) {
    xml = enabled(xml, {.model = model, .source = "auto", .wrapper = "/opt/vpmu/qemu-vpmu"});
    EXPECT_EQ(virt_status(xml)->model, model);
    EXPECT_EQ(virt_status(xml)->qemu, "/usr/bin/kvm");
  }
  EXPECT_EQ(text_of(disable_virt(xml)), crowded_domain);
}

TEST(VirtDisable, KeepsWhatOthersChangedMeanwhile) {
  // Each row: a change of the enabled definition, and the same change of the original.
  const std::vector<std::array<std::pair<const char*, const char*>, 2>> changes{
      {{{"<vcpu placement='static'>2", "<vcpu placement='static'>4"},
        {"<vcpu placement='static'>2", "<vcpu placement='static'>4"}}},
      {{{"cores='2'", "cores='4'"}, {"cores='2'", "cores='4'"}}},
      {{{"    <topology sockets='1' dies='1' cores='2' threads='1'/>\n", ""},
        {"    <topology sockets='1' dies='1' cores='2' threads='1'/>\n", ""}}},
      {{{"<apic/>", "<apic/>\n    <pae/>"}, {"<apic/>", "<apic/>\n    <pae/>"}}},
      {{{"<emulator>/usr/libexec/vpmu/qemu-vpmu<", "<emulator>/usr/bin/other<"},
        {"<emulator>/usr/bin/qemu-system-x86_64<", "<emulator>/usr/bin/other<"}}},
  };
  for (const auto& [ours, originals] : changes) {
    auto meanwhile = enabled(libvirt_domain);
    meanwhile = with(meanwhile, ours.first, ours.second);
    const auto back = XmlDocument::parse(text_of(disable_virt(meanwhile)));
    ASSERT_TRUE(back) << meanwhile;
    const auto wanted = XmlDocument::parse(with(libvirt_domain, originals.first, originals.second));
    EXPECT_TRUE(equivalent(back->root(), wanted->root())) << back->text();
  }
}

TEST(VirtDisable, KeepsWhatOthersPutIntoElementsThatWereNotThere) {
  const auto meanwhile = with(enabled(libvirt_domain), "    <qemu:env name='VPMU_MODEL'",
                              "    <qemu:arg value='-no-hpet'/>\n    <qemu:env name='VPMU_MODEL'");
  const auto back = text_of(disable_virt(meanwhile));
  EXPECT_TRUE(contains(back, "-no-hpet")) << back;
  EXPECT_FALSE(contains(back, "VPMU_")) << back;
  EXPECT_FALSE(contains(back, "vpmu")) << back;
}

TEST(VirtDisable, RefusesADomainThatIsNotEnabledOrHasNoWayBack) {
  EXPECT_EQ(text_of(disable_virt(libvirt_domain)), "the domain is not enabled; `vpmu virt list` shows those that are");
  const auto without = with(with(enabled(crowded_domain), "<vpmu:before>", "<before>"), "</vpmu:before>", "</before>");
  EXPECT_TRUE(contains(text_of(disable_virt(without)), "no <vpmu:before>")) << without;
  EXPECT_TRUE(contains(refusal(without), "no <vpmu:before>"));
  EXPECT_EQ(text_of(disable_virt("<domain")).substr(0, 16), "the XML is malfo");
}

TEST(VirtStatus, TellsWhatADomainHasAndWhatWasChangedSince) {
  EXPECT_FALSE(virt_status(libvirt_domain)->enabled);
  const auto xml = enabled(libvirt_domain);
  const auto good = virt_status(xml);
  EXPECT_TRUE(good->enabled);
  EXPECT_EQ(good->model, "haswell");
  EXPECT_EQ(good->source, "exact");
  EXPECT_EQ(good->wrapper, haswell.wrapper);
  EXPECT_TRUE(good->changed.empty());
  const auto changed = virt_status(with(with(xml, "<pmu state='off'/>", "<pmu state='on'/>"),
                                        "name='VPMU_MODEL' value='haswell'", "name='VPMU_MODEL' value='skylake'"));
  ASSERT_EQ(changed->changed.size(), 2U);
  EXPECT_EQ(changed->changed[0], "the state of <pmu> is \"on\", not \"off\"");
  EXPECT_EQ(changed->changed[1], "VPMU_MODEL in <qemu:commandline> is \"skylake\", not \"haswell\"");
}

TEST(VirtEnable, KnowsQemusNamespaceWhateverThePrefix) {
  auto xml = crowded_domain;
  for (std::size_t at = 0; (at = xml.find("qemu:", at)) != std::string::npos; ++at) xml.replace(at, 5, "q:");
  xml = with(xml, "xmlns:qemu", "xmlns:q");
  const auto changed = enabled(xml);
  const auto document = std::move(XmlDocument::parse(changed)).value();
  EXPECT_EQ(environment(document, "VPMU_MODEL"), "haswell");
  EXPECT_EQ(environment(document, "VPMU_SOURCE"), "exact");
  EXPECT_EQ(text_of(disable_virt(changed)), xml);
  // Here the prefix is declared for another namespace.
  const auto taken = with(libvirt_domain, "<domain type='kvm'>", "<domain type='kvm' xmlns:qemu='urn:other'>");
  EXPECT_TRUE(virt_status(enabled(taken))->changed.empty());
  EXPECT_EQ(text_of(disable_virt(enabled(taken))), taken);
}

TEST(VirtRefusals, NameTheReason) {
  const std::vector<std::array<const char*, 3>> rows{
      {"<domain type='kvm'>", "<domain type='qemu'>", "of type \"qemu\", not kvm"},
      {"<domain type='kvm'>", "<domain type='xen'>", "of type \"xen\", not kvm"},
      {"<domain type='kvm'>", "<domain type='lxc'>", "of type \"lxc\", not kvm"},
      {"<domain type='kvm'>", "<domain>", "of type \"\", not kvm"},
      {">hvm<", ">exe<", "boots \"exe\", not hvm"},
      {"arch='x86_64'", "arch='aarch64'", "processors are \"aarch64\", not x86_64"},
      {"<on_poweroff>", "<launchSecurity type='sev'/><on_poweroff>", "launchSecurity of type \"sev\""},
      {"<on_poweroff>", "<launchSecurity type='tdx'/><on_poweroff>", "launchSecurity of type \"tdx\""},
      {"/usr/bin/qemu-system-x86_64", "/opt/strace-qemu.sh", "/opt/strace-qemu.sh is not QEMU"},
      {"/usr/bin/qemu-system-x86_64", "/usr/libexec/vpmu/qemu-vpmu", "is /usr/libexec/vpmu/qemu-vpmu already"},
      {"<acpi/>", "<acpi/><kvm><dirty-ring state='on' size='4096'/></kvm>", "KVM's dirty ring"},
      {"policy='disable' name='rtm'", "policy='require' name='vmx'", "its CPU must have vmx"},
      {"policy='disable' name='rtm'", "policy='force' name='svm'", "its CPU must have svm"},
      {"<devices>", "<devices></devices><devices>", "several <devices>"},
      {"<cpu mode", "<cpu/><cpu mode", "several <cpu>"},
      {"<features>", "<features/><features>", "several <features>"},
      {"<emulator>", "<emulator/><emulator>", "several <emulator>"},
      {"<acpi/>", "<pmu/><pmu/>", "several <pmu>"},
      {"<name>", "<metadata/><metadata/><name>", "several <metadata>"},
      {"<domain type='kvm'>", "<network type='kvm'>", "malformed"},
  };
  for (const auto& [what, by, why] : rows)
    EXPECT_TRUE(contains(refusal(with(libvirt_domain, what, by)), why))
        << by << ": " << refusal(with(libvirt_domain, what, by));
  EXPECT_TRUE(contains(refusal("<network/>"), "is a <network>, not a <domain>"));
  EXPECT_TRUE(contains(refusal("<domain type='kvm'><os><type>hvm</type></os></domain>"), "no <devices>"));
  EXPECT_EQ(refusal(libvirt_domain), "");
}

TEST(VirtRefusals, NameWhatIsPassedToQemuBesideTheDefinition) {
  const auto passing = [](const std::string& element) {
    return with(crowded_domain, "<qemu:arg value='-no-hpet'/>", element);
  };
  EXPECT_TRUE(contains(refusal(passing("<qemu:env name='LD_PRELOAD' value='/usr/lib/libjemalloc.so'/>")),
                       "preloads /usr/lib/libjemalloc.so"));
  EXPECT_TRUE(contains(refusal(passing("<qemu:arg value='-cpu'/><qemu:arg value='host,pmu=on'/>")),
                       "has -cpu, which overrides"));
  EXPECT_TRUE(contains(refusal(passing("<qemu:arg value='--accel'/>")), "has -accel, which overrides"));
  EXPECT_TRUE(contains(refusal(passing("<qemu:env name='VPMU_LOG' value='/two'/>")), "the variable VPMU_LOG twice"));
  EXPECT_TRUE(contains(refusal(with(crowded_domain, "</domain>", "<qemu:commandline/></domain>")),
                       "several <qemu:commandline>"));
  EXPECT_EQ(refusal(passing("<qemu:env name='LD_PRELOAD' value='/opt/vpmu/libvpmu-kvm.so'/>")), "");
}

TEST(VirtRefusals, NameWrongOptions) {
  const auto with_option = [](auto change) {
    auto options = haswell;
    change(options);
    return refusal(libvirt_domain, options);
  };
  EXPECT_TRUE(
      contains(with_option([](auto& o) { o.model = "pentium"; }), "unknown model \"pentium\"; give one of: nehalem"));
  EXPECT_TRUE(contains(with_option([](auto& o) { o.source = "guess"; }), "unknown source \"guess\"; give one of: "));
  EXPECT_TRUE(contains(with_option([](auto& o) { o.source = "kvm"; }), "means the PMU of the host's KVM"));
  EXPECT_TRUE(contains(with_option([](auto& o) { o.model = "host"; }), "model \"host\" is for the source kvm"));
  EXPECT_TRUE(contains(with_option([](auto& o) { o.wrapper = "qemu-vpmu"; }), "\"qemu-vpmu\" is not an absolute path"));
}

TEST(VirtDifference, IsEmptyWhenOnlyTheLayoutDiffers) {
  auto back = enabled(libvirt_domain);
  for (auto& c : back) c = c == '\n' ? ' ' : c;
  EXPECT_EQ(text_of(difference(libvirt_domain, back, {})), "");
  EXPECT_EQ(text_of(difference(enabled(libvirt_domain), back, {})), "");
}

TEST(VirtDifference, TellsWhatWasNotKept) {
  const auto good = enabled(libvirt_domain);
  EXPECT_EQ(text_of(difference(libvirt_domain, libvirt_domain, {})), "the domain's metadata of vpmu is missing");
  EXPECT_TRUE(contains(text_of(difference(libvirt_domain, with(good, "name='VPMU_MODEL'", "name='X'"), {})),
                       "VPMU_MODEL in <qemu:commandline> is \"\""));
  EXPECT_EQ(text_of(difference(libvirt_domain, with(good, "<apic/>", ""), {})),
            "`vpmu virt disable` would not restore <features>");
  EXPECT_EQ(text_of(difference(libvirt_domain, with(good, "<name>", "<title>new</title><name>"), {})),
            "`vpmu virt disable` would leave what was added");
  EXPECT_EQ(
      text_of(difference(libvirt_domain, with(good, "name='VPMU_MODEL' value='haswell'", "name='VPMU_MODEL' value=''"),
                         {.keeps_environment = false})),
      "`vpmu virt disable` would leave what was added");
}

}  // namespace
}  // namespace vmm::tool::test
