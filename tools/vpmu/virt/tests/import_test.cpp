#include "virt/import.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "fake_domains.hpp"
#include "samples.hpp"

namespace vmm::tool::test {
namespace {

/// A domain that our VMM can run.
const std::string bootable = R"(<domain type='kvm'>
  <name>guest</name>
  <memory unit='MiB'>512</memory>
  <vcpu placement='static' current='2'>4</vcpu>
  <os>
    <type arch='x86_64' machine='pc-q35-7.2'>hvm</type>
    <kernel>/boot/vmlinuz</kernel>
    <initrd>/boot/initrd.img</initrd>
    <cmdline>console=ttyS0 a=&quot;b&quot;</cmdline>
  </os>
  <cpu mode='host-model'><topology sockets='1' dies='1' cores='2' threads='2'/></cpu>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' index='0' model='qemu-xhci'/>
    <serial type='pty'/>
    <graphics type='vnc'/>
    <memballoon model='virtio'/>
  </devices>
</domain>)";

std::string import_refusal(const std::string& xml) {
  const auto result = import_domain(xml);
  return result ? "" : describe(result.error());
}

TEST(VirtImport, ReadsWhatTheDefinitionSaysOfTheMachine) {
  const auto machine = import_domain(bootable);
  ASSERT_TRUE(machine) << import_refusal(bootable);
  EXPECT_EQ(machine->kernel, "/boot/vmlinuz");
  EXPECT_EQ(machine->initrd, "/boot/initrd.img");
  EXPECT_EQ(machine->command_line, "console=ttyS0 a=\"b\"");
  EXPECT_EQ(machine->memory_bytes, 512ULL << 20U);
  EXPECT_EQ(machine->cpus, 2U);
  EXPECT_EQ(machine->threads_per_core, 2U);
}

TEST(VirtImport, KnowsLibvirtsUnitsOfMemory) {
  const auto bytes = [](const std::string& memory) {
    return import_domain(with(bootable, "<memory unit='MiB'>512</memory>", memory))->memory_bytes;
  };
  EXPECT_EQ(bytes("<memory>524288</memory>"), 512ULL << 20U);
  EXPECT_EQ(bytes("<memory unit='GB'>1</memory>"), 1'000'000'000ULL);
  EXPECT_EQ(bytes("<memory unit='b'>1073741824</memory>"), 1ULL << 30U);
}

TEST(VirtImport, RefusesByNameWhatTheGuestWouldMiss) {
  const std::vector<std::array<const char*, 3>> rows{
      {"<devices>", "<devices><disk type='file'><target dev='vda'/></disk>",
       "the domain has <disk> vda, a device that `vpmu run` does not have"},
      {"<devices>", "<devices><interface type='network'/>", "the domain has <interface>,"},
      {"<devices>", "<devices><hostdev mode='subsystem'/>", "the domain has <hostdev>,"},
      {"<devices>", "<devices><filesystem/>", "the domain has <filesystem>,"},
      {"<kernel>/boot/vmlinuz</kernel>", "", "the domain boots from a disk or the network"},
      {"<kernel>", "<loader type='pflash'/><kernel>", "<os> has <loader>"},
      {"arch='x86_64'", "arch='aarch64'", "not of type hvm"},
      {"<devices>", "<launchSecurity type='sev'/><devices>", "launchSecurity"},
      {"unit='MiB'", "unit='furlong'", "memory is \"512\" furlong"},
      {">512<", ">lots<", "memory is \"lots\" MiB"},
      {">512<", ">18446744073709551615<", "memory is \"18446744073709551615\" MiB"},
      {"current='2'", "current='0'", "number of CPUs is \"0\""},
      {"threads='2'", "threads='4'", "4 threads a core"},
      {"<domain ", "<network ", "malformed"},
  };
  for (const auto& [what, by, why] : rows) {
    const auto text = import_refusal(with(bootable, what, by));
    EXPECT_NE(text.find(why), std::string::npos) << by << ": " << text;
  }
}

TEST(VirtImport, RefusesEachDeviceThatItHasNot) {
  for (const std::string name :
       {"disk", "filesystem", "interface", "hostdev", "vsock", "shmem", "memory", "tpm", "crypto", "smartcard"})
    EXPECT_NE(
        import_refusal(with(bootable, "<devices>", "<devices><" + name + "/>")).find("the domain has <" + name + ">,"),
        std::string::npos)
        << name;
}

TEST(VirtImport, MakesTheMachineTheDomains) {
  FakeDomains domains{{.name = "guest", .xml = bootable, .persistent = true, .active = false}};
  MachineConfig machine{.kernel = ""};
  machine.command_line = "quiet";
  ASSERT_TRUE(take_domain(domains, "guest", machine));
  EXPECT_EQ(machine.kernel, "/boot/vmlinuz");
  EXPECT_EQ(machine.command_line, "console=ttyS0 a=\"b\" quiet");
  EXPECT_EQ(machine.cpus, 2U);
  EXPECT_EQ(take_domain(domains, "nobody", machine).error().what, "no domain nobody");
  domains.here = false;
  EXPECT_EQ(take_domain(domains, "guest", machine).error().what,
            "the domain guest is another host's, and so are its files");
  FakeDomains others{{.name = "guest", .xml = libvirt_domain, .persistent = true, .active = false}};
  EXPECT_EQ(take_domain(others, "guest", machine).error().what,
            "guest: the domain boots from a disk or the network: its <os> has no <kernel>");
}

}  // namespace
}  // namespace vmm::tool::test
