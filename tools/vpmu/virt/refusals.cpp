#include "virt/refusals.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "machine/config.hpp"

namespace vmm::tool {
namespace {

constexpr auto library_name = "libvpmu-kvm.so";

std::string base_name(std::string_view path) { return std::string{path.substr(path.find_last_of('/') + 1)}; }

Result<void> check_type(XmlElement domain) {
  const auto type = value_of(domain, "type");
  if (type == "kvm") return {};
  constexpr auto advice = "the PMU needs KVM: give a domain of type kvm, or boot the guest by `vpmu run`";
  return usage_error(fmt::format("the domain is of type \"{}\", not kvm", printable(type)), advice);
}

Result<void> check_machine(XmlElement domain) {
  const auto type = domain.child("os").child("type");
  if (type.text() != "hvm") return usage_error(fmt::format("the domain boots \"{}\", not hvm", printable(type.text())));
  const auto arch = value_of(type, "arch");
  if (arch.empty() || arch == "x86_64") return {};
  return usage_error(fmt::format("the domain's processors are \"{}\", not x86_64", printable(arch)),
                     "the models of `vpmu models` are 64-bit Intel CPUs");
}

/// Refuses duplicate elements: it would not be clear which one to change.
Result<void> check_unique(XmlElement domain) {
  constexpr std::array once{"devices", "os", "cpu", "features", "metadata"};
  const auto several = [](XmlElement parent, std::string_view name, std::string_view space = {}) {
    return parent.children(name, space).size() > 1;
  };
  for (const auto* const name : once)
    if (several(domain, name))
      return usage_error(fmt::format("the domain has several <{}>", name),
                         "libvirt writes one: give the text of `virsh dumpxml --inactive`");
  if (several(domain.child("devices"), "emulator")) return usage_error("the domain has several <emulator>");
  if (several(domain.child("features"), "pmu")) return usage_error("the domain has several <pmu>");
  if (several(domain, "commandline", qemu_namespace)) return usage_error("the domain has several <qemu:commandline>");
  return {};
}

bool is_qemu(std::string_view name) {
  constexpr std::array known{"qemu-system-x86_64", "qemu-kvm", "kvm", "qemu-system-x86_64-spice", "kvm-spice"};
  return std::ranges::find(known, name) != known.end();
}

Result<void> check_emulator(XmlElement domain) {
  const auto devices = domain.child("devices");
  if (!devices) return usage_error("the domain has no <devices>", "give the text of `virsh dumpxml --inactive`");
  const auto emulator = devices.child("emulator");
  if (!emulator || is_qemu(base_name(emulator.text()))) return {};
  if (base_name(emulator.text()) == "qemu-vpmu")
    return usage_error(fmt::format("the domain's emulator is {} already, and nothing tells what it was before",
                                   printable(emulator.text())),
                       "set <emulator> to QEMU by `virsh edit` and try again");
  return usage_error(
      fmt::format("the domain's emulator {} is not QEMU but somebody's wrapper of it", printable(emulator.text())),
      "set <emulator> to QEMU by `virsh edit`, or let that wrapper start qemu-vpmu, with VPMU_MODEL set");
}

/// Refuses guests whose memory or registers the host cannot read.
Result<void> check_protection(XmlElement domain) {
  const auto security = domain.child("launchSecurity");
  if (!security) return {};
  return usage_error(
      fmt::format("the domain has launchSecurity of type \"{}\": the host cannot read its guest's registers and memory",
                  printable(value_of(security, "type"))),
      "PEBS records are written to the guest's memory; remove <launchSecurity>");
}

Result<void> check_features(XmlElement domain) {
  const auto ring = domain.child("features").child("kvm").child("dirty-ring");
  if (value_of(ring, "state") == "on")
    return usage_error(
        "the domain has KVM's dirty ring, and what the PMU writes to the guest's memory would be missing in it",
        "remove <dirty-ring> from <features><kvm>");
  for (const auto feature : domain.child("cpu").children("feature")) {
    const auto name = value_of(feature, "name"), policy = value_of(feature, "policy");
    if ((name == "vmx" || name == "svm") && (policy == "require" || policy == "force"))
      return usage_error(fmt::format("the domain's guest is to run guests of its own: its CPU must have {}", name),
                         "the models have no virtualization; remove that <feature>");
  }
  return {};
}

Result<void> check_environment(XmlElement command_line) {
  std::set<std::string> names;
  for (const auto variable : command_line.children("env", qemu_namespace)) {
    const auto name = value_of(variable, "name"), value = value_of(variable, "value");
    if (!names.insert(name).second)
      return usage_error(fmt::format("<qemu:commandline> has the variable {} twice", printable(name)),
                         "leave one of them");
    if (name == "LD_PRELOAD" && base_name(value) != library_name)
      return usage_error(
          fmt::format("the domain preloads {} into QEMU, and qemu-vpmu preloads a library, too", printable(value)),
          "remove LD_PRELOAD from <qemu:commandline>");
  }
  return {};
}

/// Refuses arguments that override the definition's: of several, QEMU takes the last.
Result<void> check_arguments(XmlElement command_line) {
  constexpr std::array decided{"-cpu", "-accel", "-machine", "-M", "-no-kvm"};
  for (const auto argument : command_line.children("arg", qemu_namespace)) {
    auto value = value_of(argument, "value");
    if (value.starts_with("--")) value.erase(0, 1);
    if (std::ranges::find(decided, value) != decided.end())
      return usage_error(fmt::format("<qemu:commandline> has {}, which overrides what the definition says", value),
                         "remove it and what follows it");
  }
  return {};
}

}  // namespace

Result<void> refuse_what_cannot_work(XmlElement domain) {
  VMM_TRY(check_unique(domain));
  VMM_TRY(check_type(domain));
  VMM_TRY(check_machine(domain));
  VMM_TRY(check_protection(domain));
  VMM_TRY(check_emulator(domain));
  VMM_TRY(check_features(domain));
  const auto command_line = domain.child("commandline", qemu_namespace);
  VMM_TRY(check_environment(command_line));
  return check_arguments(command_line);
}

Result<void> refuse_wrong_options(const VirtOptions& options) {
  MachineConfig config{.kernel = "", .accel = Accel::kvm};
  config.model = options.model;
  // The domain's host resolves "auto"; any source that exists stands for it in this check.
  config.source = options.source == "auto" ? "exact" : options.source;
  VMM_ASSIGN(const auto resolved, resolve(config));
  if (resolved.passes_through())
    return usage_error("the source kvm means the PMU of the host's KVM, which a domain can have without vpmu",
                       "set <pmu state='on'/> by `virsh edit`, or give another --source");
  if (options.wrapper.starts_with('/')) return {};
  return usage_error(fmt::format("the emulator \"{}\" is not an absolute path", printable(options.wrapper)),
                     "give --emulator /PATH/OF/qemu-vpmu");
}

}  // namespace vmm::tool
