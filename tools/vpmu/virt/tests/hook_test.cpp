#include "virt/hook.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "samples.hpp"
#include "virt/xml.hpp"

namespace vmm::tool::test {
namespace {

namespace fs = std::filesystem;

/// A domain as virt-launcher passes it: on one line, in Go's style of XML.
const std::string kubevirt_domain =
    R"(<domain type="kvm" xmlns:qemu="http://libvirt.org/schemas/domain/qemu/1.0"><name>default_profiled</name><memory unit="b">1073741824</memory>)"
    R"(<os><type arch="x86_64" machine="q35">hvm</type><smbios mode="sysinfo"></smbios></os><sysinfo type="smbios"><system>)"
    R"(<entry name="uuid">5d307ca9-b3ef-428c-8861-06e72d69f223</entry><entry name="family">Ann&#39;s &#34;KubeVirt&#34;</entry></system></sysinfo>)"
    R"(<devices><interface type="ethernet"><source></source><target dev="tap0" managed="no"></target><model type="virtio-non-transitional"></model>)"
    R"(<mac address="52:54:00:0c:ac:4b"></mac><alias name="ua-default"></alias></interface><channel type="unix"><target name="org.qemu.guest_agent.0" )"
    R"(type="virtio"></target></channel><controller type="usb" index="0" model="none"></controller><video><model type="vga" heads="1" vram="16384">)"
    R"(</model></video><graphics type="vnc"><listen type="socket" socket="/var/run/kubevirt-private/5d307ca9/virt-vnc"></listen></graphics>)"
    R"(<memballoon model="virtio-non-transitional"><stats period="10"></stats></memballoon><disk device="disk" type="file"><source file="/var/run/)"
    R"(kubevirt-ephemeral-disks/disk-data/root/disk.qcow2"></source><target bus="virtio" dev="vda"></target><driver cache="none" name="qemu" )"
    R"(type="qcow2" discard="unmap"></driver></disk><serial type="unix"><target port="0"></target></serial></devices><metadata>)"
    R"(<kubevirt xmlns="http://kubevirt.io"><uid>5d307ca9-b3ef-428c-8861-06e72d69f223</uid></kubevirt></metadata><features><acpi></acpi></features>)"
    R"(<cpu mode="host-model"><topology sockets="1" cores="2" threads="1"></topology><feature name="vmx" policy="optional"></feature></cpu>)"
    R"(<vcpu placement="static">2</vcpu><iothreads>1</iothreads></domain>)";

const std::string vmi =
    R"({"kind": "VirtualMachineInstance", "metadata": {"name": "profiled", "annotations": {"vpmu/model": "haswell", "vpmu/source": "exact"}}})";
const VirtOptions none{.model = "", .source = "auto", .wrapper = "/var/run/vpmu/libexec/vpmu/qemu-vpmu"};

std::string hooked(const std::string& vmi_text, const VirtOptions& options = none) {
  return text_of(define_domain_hook(vmi_text, kubevirt_domain, options));
}

TEST(VirtHook, GivesTheModelOfTheVmisAnnotation) {
  const auto status = virt_status(hooked(vmi));
  EXPECT_TRUE(status->enabled);
  EXPECT_TRUE(status->changed.empty());
  EXPECT_EQ(status->model, "haswell");
  EXPECT_EQ(status->source, "exact");
  EXPECT_EQ(status->wrapper, none.wrapper);
  EXPECT_EQ(status->qemu, "");  // the wrapper finds virt-launcher's QEMU
  const auto document = std::move(XmlDocument::parse(hooked(vmi))).value();
  const auto domain = document.root();
  EXPECT_EQ(domain.child("devices").child("emulator").text(), none.wrapper);
  EXPECT_EQ(domain.child("cpu").child("topology").attribute("cores"), "2");
  EXPECT_EQ(domain.child("sysinfo").child("system").children("entry")[1].text(), "Ann's \"KubeVirt\"");
  EXPECT_EQ(domain.child("metadata").child("kubevirt", "http://kubevirt.io").child("uid", "http://kubevirt.io").text(),
            "5d307ca9-b3ef-428c-8861-06e72d69f223");
  EXPECT_EQ(domain.child("commandline", qemu).children("env", qemu).size(), 2U);
}

TEST(VirtHook, ChangesNothingElse) {
  const auto back = XmlDocument::parse(text_of(disable_virt(hooked(vmi))));
  EXPECT_TRUE(equivalent(back->root(), XmlDocument::parse(kubevirt_domain)->root())) << back->text();
}

TEST(VirtHook, TakesTheOptionsWhereTheVmiSaysNothing) {
  auto options = none;
  options.model = "skylake";
  EXPECT_EQ(virt_status(hooked("", options))->model, "skylake");
  EXPECT_EQ(virt_status(hooked(R"({"metadata": {}})", options))->model, "skylake");
  EXPECT_EQ(virt_status(hooked(vmi, options))->model, "haswell");
}

TEST(VirtHook, LeavesAVmiThatHasNotAskedAsItIs) {
  for (const auto* const text : {"", "{}", R"({"metadata": {"annotations": {"other": "x"}}})", R"({"metadata": 1})"})
    EXPECT_EQ(hooked(text), kubevirt_domain);
}

TEST(VirtHook, RefusesWhatIsWrong) {
  for (const auto& [text, why] : std::array<std::array<const char*, 2>, 6>{{
           {"[]", "the VMI is not a JSON object"},
           {"{", "the VMI is not a JSON object"},
           {R"({"metadata": {"annotations": {"vpmu/model": 7}}})",
            "the annotation vpmu/model of the VMI is not a text"},
           {R"({"metadata": {"annotations": {"vpmu/model": ""}}})", "the annotation vpmu/model of the VMI is empty"},
           {R"({"metadata": {"annotations": {"vpmu/source": ""}}})", "the annotation vpmu/source of the VMI is empty"},
           {R"({"metadata": {"annotations": {"vpmu/model": "pentium"}}})", "unknown model \"pentium\""},
       }})
    EXPECT_EQ(hooked(text).substr(0, std::string_view{why}.size()), why);
  EXPECT_NE(text_of(define_domain_hook(vmi, with(kubevirt_domain, "\"kvm\"", "\"qemu\""), none)).find("not kvm"),
            std::string::npos);
}

/// Runs the hook of the example manifest as KubeVirt's sidecar-shim does, with the volume claim's mount point moved
/// below a directory.
TEST(VirtHook, OfTheExampleManifestDoesIt) {
  std::ifstream file{VPMU_MANIFEST};
  const std::string manifest{std::istreambuf_iterator<char>{file}, {}};
  const std::string begin = "  onDefineDomain: |\n";
  const auto at = manifest.find(begin) + begin.size();
  auto script = manifest.substr(at, manifest.find("---\n", at) - at);
  for (std::size_t line = 0; line != std::string::npos;
       line = script.find("\n    ", line) == std::string::npos ? std::string::npos : script.find("\n    ", line) + 1)
    script.erase(line, 4);
  ASSERT_TRUE(script.starts_with("#!/bin/sh\n")) << script;
  const auto directory = fs::temp_directory_path() / ("vpmu-hook-" + std::to_string(getpid()));
  fs::create_directories(directory / "bin");
  fs::create_symlink(VPMU_PROGRAM, directory / "bin/vpmu");
  std::ofstream{directory / "onDefineDomain"}
      << with(with(script, "=/vpmu/lib ", "= "), " /vpmu/bin", " " + directory.string() + "/bin");
  fs::permissions(directory / "onDefineDomain", fs::perms::owner_all);
  const auto quoted = [](std::string text) {
    for (auto q = text.find('\''); q != std::string::npos; q = text.find('\'', q + 4)) text.replace(q, 1, "'\\''");
    return "'" + text + "'";
  };
  const auto command =
      directory.string() + "/onDefineDomain --vmi " + quoted(vmi) + " --domain " + quoted(kubevirt_domain) + " 2>&1";
  std::FILE* const pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string text;
  std::array<char, 4096> buffer{};
  while (const auto got = std::fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), got);
  EXPECT_EQ(WEXITSTATUS(pclose(pipe)), 0);
  fs::remove_all(directory);
  EXPECT_EQ(text, hooked(vmi));
}

}  // namespace
}  // namespace vmm::tool::test
