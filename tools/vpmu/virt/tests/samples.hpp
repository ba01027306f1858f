#pragma once
#include <string>

#include "support/result.hpp"

namespace vmm::tool::test {

inline constexpr auto qemu = "http://libvirt.org/schemas/domain/qemu/1.0";

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// The result, or the error as users see it.
inline std::string text_of(const Result<std::string>& result) { return result ? *result : describe(result.error()); }

/// A definition as libvirt 9 writes it.
inline const std::string libvirt_domain = R"(<domain type='kvm'>
  <name>guest</name>
  <uuid>7abac94b-98fa-4b74-8abe-158ee158da4f</uuid>
  <description>Ann&apos;s &quot;first&quot; &lt;guest&gt; &amp; more</description>
  <memory unit='KiB'>524288</memory>
  <currentMemory unit='KiB'>524288</currentMemory>
  <vcpu placement='static'>2</vcpu>
  <os>
    <type arch='x86_64' machine='pc-q35-7.2'>hvm</type>
    <boot dev='hd'/>
  </os>
  <features>
    <acpi/>
    <apic/>
  </features>
  <cpu mode='custom' match='exact' check='partial'>
    <model fallback='forbid'>Haswell-noTSX</model>
    <topology sockets='1' dies='1' cores='2' threads='1'/>
    <feature policy='disable' name='rtm'/>
  </cpu>
  <clock offset='utc'>
    <timer name='rtc' tickpolicy='catchup'/>
  </clock>
  <on_poweroff>destroy</on_poweroff>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2'/>
      <source file='/var/lib/libvirt/images/guest.qcow2'/>
      <target dev='vda' bus='virtio'/>
    </disk>
    <memballoon model='virtio'/>
  </devices>
</domain>
)";

/// The same, but the elements that `vpmu virt` adds exist already, with somebody else's contents.
inline const std::string crowded_domain = R"(<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>crowded</name>
  <metadata>
    <other:note xmlns:other='urn:other'>keep <b>me</b></other:note>
  </metadata>
  <os>
    <type arch='x86_64' machine='pc-q35-7.2'>hvm</type>
  </os>
  <features>
    <pmu state='on'/>
    <kvm>
      <dirty-ring state='off'/>
    </kvm>
  </features>
  <cpu mode='host-passthrough' check='none' migratable='off'/>
  <devices>
    <!-- by hand -->
    <emulator>/usr/bin/kvm</emulator>
  </devices>
  <qemu:commandline>
    <qemu:arg value='-no-hpet'/>
    <qemu:env name='VPMU_MODEL' value='nehalem'/>
    <qemu:env name='VPMU_LOG' value='/tmp/log'/>
  </qemu:commandline>
</domain>
)";

/// `text` with the first `what` replaced by `by`; fails the test if there is none.
inline std::string with(std::string text, const std::string& what, const std::string& by) {
  const auto at = text.find(what);
  return at == std::string::npos ? "no " + what : text.replace(at, what.size(), by);
}

}  // namespace vmm::tool::test
