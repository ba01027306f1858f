#include "virt/import.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>

#include "virt/xml.hpp"

namespace vmm::tool {
namespace {

constexpr auto advice = "start the domain by libvirt: `vpmu virt enable` gives it the PMU there";

/// A whole number; 0 if the text is none.
std::uint64_t number(std::string_view text) {
  std::uint64_t value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() ? value : 0;
}

/// The number of bytes of libvirt's unit; 0 if it is unknown.
std::uint64_t unit_bytes(std::string_view unit) {
  struct Row {
    std::string_view name;
    std::uint64_t bytes;
  };
  constexpr std::array rows{Row{"", 1024},           Row{"b", 1},
                            Row{"bytes", 1},         Row{"KB", 1'000},
                            Row{"k", 1024},          Row{"KiB", 1024},
                            Row{"MB", 1'000'000},    Row{"M", 1ULL << 20U},
                            Row{"MiB", 1ULL << 20U}, Row{"GB", 1'000'000'000},
                            Row{"G", 1ULL << 30U},   Row{"GiB", 1ULL << 30U}};
  for (const auto& [name, bytes] : rows)
    if (name == unit) return bytes;
  return 0;
}

Result<std::uint64_t> memory_of(XmlElement domain) {
  const auto memory = domain.child("memory");
  const auto amount = number(memory.text()), unit = unit_bytes(memory.attribute("unit").value_or(""));
  if (amount != 0 && unit != 0 && amount <= std::numeric_limits<std::uint64_t>::max() / unit) return amount * unit;
  return usage_error(fmt::format("the domain's memory is \"{}\" {}", printable(memory.text()),
                                 printable(memory.attribute("unit").value_or(""))));
}

/// The CPUs that exist from the start: our VMM cannot add any later.
Result<unsigned> cpus_of(XmlElement domain) {
  const auto vcpu = domain.child("vcpu");
  const auto text = vcpu ? vcpu.attribute("current").value_or(vcpu.text()) : "1";
  const auto count = number(text);
  if (count >= 1 && count <= std::numeric_limits<unsigned>::max()) return static_cast<unsigned>(count);
  return usage_error(fmt::format("the domain's number of CPUs is \"{}\"", printable(text)));
}

Result<void> refuse_devices(XmlElement devices) {
  constexpr std::array missed{"disk",  "filesystem", "interface", "hostdev", "vsock",
                              "shmem", "memory",     "tpm",       "crypto",  "smartcard"};
  for (const auto* const name : missed)
    if (const auto device = devices.child(name)) {
      const auto target = device.child("target").attribute("dev");
      return usage_error(fmt::format("the domain has <{}>{}, a device that `vpmu run` does not have", name,
                                     target ? " " + printable(*target) : ""),
                         advice);
    }
  return {};
}

Result<void> refuse_ways_of_booting(XmlElement os) {
  if (os.child("type").text() != "hvm" || os.child("type").attribute("arch").value_or("x86_64") != "x86_64")
    return usage_error("the domain is not of type hvm and architecture x86_64", advice);
  if (os.child("kernel").text().empty())
    return usage_error("the domain boots from a disk or the network: its <os> has no <kernel>", advice);
  for (const auto* const name : {"loader", "dtb", "nvram"})
    if (os.child(name))
      return usage_error(fmt::format("the domain's <os> has <{}>, and `vpmu run` has no firmware", name), advice);
  return {};
}

}  // namespace

Result<ImportedMachine> import_domain(std::string_view xml) {
  VMM_ASSIGN(const auto document, XmlDocument::parse(xml));
  const auto domain = document.root(), os = domain.child("os");
  if (domain.local_name() != "domain")
    return usage_error(fmt::format("the XML is a <{}>, not a <domain>", printable(domain.local_name())));
  VMM_TRY(refuse_ways_of_booting(os));
  if (domain.child("launchSecurity"))
    return usage_error("the domain has launchSecurity, which `vpmu run` does not have", advice);
  VMM_TRY(refuse_devices(domain.child("devices")));
  ImportedMachine machine{.kernel = os.child("kernel").text(),
                          .initrd = os.child("initrd").text(),
                          .command_line = os.child("cmdline").text()};
  VMM_ASSIGN(machine.memory_bytes, memory_of(domain));
  VMM_ASSIGN(machine.cpus, cpus_of(domain));
  const auto threads = domain.child("cpu").child("topology").attribute("threads").value_or("1");
  machine.threads_per_core = threads == "2" ? 2 : 1;
  if (threads != "1" && threads != "2")
    return usage_error(fmt::format("the domain's CPU has {} threads a core, not 1 or 2", printable(threads)), advice);
  return machine;
}

Result<void> take_domain(Domains& domains, const std::string& name, MachineConfig& machine) {
  if (!domains.local())
    return usage_error(fmt::format("the domain {} is another host's, and so are its files", printable(name)),
                       "run vpmu there");
  VMM_ASSIGN(const auto definition, domains.read(name));
  auto imported = import_domain(definition.xml);
  if (!imported) {
    imported.error().what = fmt::format("{}: {}", printable(definition.name), imported.error().what);
    return Failure{std::move(imported).error()};
  }
  machine.kernel = imported->kernel;
  machine.initrd = imported->initrd;
  machine.command_line = imported->command_line + (machine.command_line.empty() ? "" : " ") + machine.command_line;
  machine.memory_bytes = imported->memory_bytes;
  machine.cpus = imported->cpus;
  machine.threads_per_core = imported->threads_per_core;
  return {};
}

}  // namespace vmm::tool
