#include "virt/switch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace vmm::tool {
namespace {

constexpr auto list_columns = "{:<24} {:<9} {:<16} {}\n";

Result<DomainDefinition> read_persistent(Domains& domains, const std::string& name) {
  VMM_ASSIGN(auto definition, domains.read(name));
  if (definition.persistent) return definition;
  return usage_error(
      fmt::format("the domain {} is transient: it has no definition to change", printable(definition.name)),
      "define it by `virsh define`, or change the XML that it is created from by `vpmu virt hook`");
}

std::string when(const DomainDefinition& definition) {
  if (definition.active)
    return fmt::format("; {} runs: this takes effect when it is shut down and started again", definition.name);
  if (definition.saved)
    return fmt::format("; {} has saved state, with which it starts as it was: `virsh managedsave-remove {}` drops that",
                       definition.name, definition.name);
  return "";
}

/// libvirt queries an emulator's capabilities with no environment; qemu-vpmu then starts the QEMU that it finds itself.
Result<std::string> about_emulator(const std::string& enabled_xml) {
  constexpr std::array found_by_itself{"/usr/bin/qemu-system-x86_64", "/usr/libexec/qemu-kvm"};
  VMM_ASSIGN(const auto status, virt_status(enabled_xml));
  if (status.qemu.empty() || std::ranges::find(found_by_itself, status.qemu) != found_by_itself.end())
    return std::string{};
  return fmt::format(
      "its QEMU is {}, and libvirt will ask {} or {} what it can: where that one lacks machine types or devices of "
      "this domain, it will not "
      "start\n",
      printable(status.qemu), found_by_itself[0], found_by_itself[1]);
}

/// Puts the old definition back, and says why.
Failure take_back(Domains& domains, const DomainDefinition& before, Error why) {
  if (const auto restored = domains.define(before.xml); !restored)
    why.what += fmt::format(", and its old definition could not be put back ({})", describe(restored.error()));
  return Failure{std::move(why)};
}

/// Checks that libvirt stored the definition as intended.
Result<void> check_defined(Domains& domains, const DomainDefinition& before) {
  VMM_ASSIGN(const auto now, domains.read(before.name));
  VMM_ASSIGN(const std::string different, difference(before.xml, now.xml, domains.driver()));
  if (different.empty()) return {};
  return host_error(fmt::format("libvirt has stored another definition of {} than it was given: {}",
                                printable(before.name), different),
                    0, "its old definition is back; please report this with `virsh dumpxml --inactive`");
}

}  // namespace

Result<std::string> enable_domain(Domains& domains, const EnableRequest& request) {
  VMM_ASSIGN(const auto before, read_persistent(domains, request.domain));
  VMM_ASSIGN(const std::string changed, enable_virt(before.xml, request.options));
  VMM_ASSIGN(const std::string warning, about_emulator(changed));
  std::optional<AppArmorChange> apparmor;
  if (request.apparmor) {
    VMM_ASSIGN(auto made, AppArmorChange::make(*request.apparmor, request.options.wrapper));
    apparmor.emplace(std::move(made));
  }
  VMM_TRY(domains.define(changed));
  if (auto good = check_defined(domains, before); !good) return take_back(domains, before, std::move(good).error());
  if (apparmor) apparmor->keep();
  return fmt::format("{} has the PMU of {}{}\n{}", before.name, request.options.model, when(before), warning);
}

Result<std::string> disable_domain(Domains& domains, const std::string& name) {
  VMM_ASSIGN(const auto before, read_persistent(domains, name));
  const auto changed = disable_virt(before.xml);
  if (!changed) {
    Error error = changed.error();
    error.what = fmt::format("{}: {}", printable(before.name), error.what);
    return Failure{std::move(error)};
  }
  VMM_TRY(domains.define(*changed));
  return fmt::format("{} is as it was before{}\n", before.name, when(before));
}

Result<std::string> describe_domain(Domains& domains, const std::string& name) {
  VMM_ASSIGN(const auto definition, domains.read(name));
  VMM_ASSIGN(const auto status, virt_status(definition.xml, domains.driver()));
  if (!status.enabled) return fmt::format("{}: not enabled\n", definition.name);
  std::string text = fmt::format("{}: enabled{}\nmodel {}\nsource {}\nemulator {}\nqemu {}\n", definition.name,
                                 status.changed.empty() ? "" : ", but changed since", status.model, status.source,
                                 status.wrapper, status.qemu.empty() ? "the wrapper's own" : status.qemu);
  for (const auto& change : status.changed) text += fmt::format("changed: {}\n", change);
  return text;
}

Result<std::string> list_domains(Domains& domains) {
  VMM_ASSIGN(const auto all, domains.read_all());
  std::string text = fmt::format(list_columns, "DOMAIN", "PMU", "MODEL", "SOURCE");
  for (const auto& definition : all) {
    VMM_ASSIGN(const auto status, virt_status(definition.xml, domains.driver()));
    const auto* const state = !status.enabled ? "-" : status.changed.empty() ? "enabled" : "changed";
    text += fmt::format(list_columns, definition.name, state, status.enabled ? status.model : "-",
                        status.enabled ? status.source : "-");
  }
  return text;
}

}  // namespace vmm::tool
