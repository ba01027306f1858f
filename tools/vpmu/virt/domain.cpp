#include "virt/domain.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "virt/refusals.hpp"
#include "virt/xml.hpp"

namespace vmm::tool {
namespace {

/// The namespace of our metadata in a domain: <vpmu:attached model source emulator> with <vpmu:before made>, which has
/// copies of what was replaced.
constexpr auto our_namespace = "urn:vpmu:domain:1";

XmlElement state_of(XmlElement domain) { return domain.child("metadata").child("attached", our_namespace); }

Result<XmlDocument> parse_domain(std::string_view xml) {
  VMM_ASSIGN(auto document, XmlDocument::parse(xml));
  const auto root = document.root();
  if (root.local_name() != "domain" || !root.namespace_uri().empty())
    return usage_error(fmt::format("the XML is a <{}>, not a <domain>", printable(root.local_name())),
                       "give the text of `virsh dumpxml --inactive`");
  return document;
}

/// The variables that the wrapper and the library read; VPMU_QEMU only if the definition names a QEMU.
std::vector<std::pair<std::string, std::string>> variables_of(std::string_view model, std::string_view source,
                                                              std::string_view qemu) {
  std::vector<std::pair<std::string, std::string>> all{{"VPMU_MODEL", std::string{model}},
                                                       {"VPMU_SOURCE", std::string{source}}};
  if (!qemu.empty()) all.emplace_back("VPMU_QEMU", qemu);
  return all;
}

XmlElement variable_in(XmlElement command_line, std::string_view name) {
  for (const auto variable : command_line.children("env", qemu_namespace))
    if (value_of(variable, "name") == name) return variable;
  return {};
}

/// Whether this part of a <cpu> is decided by the model.
bool is_models(XmlElement part) {
  const auto name = part.local_name();
  return name == "model" || name == "vendor" || name == "feature";
}

/// Puts our PMU into one domain and saves what it replaces.
class Change {
 public:
  Change(XmlElement domain, const VirtOptions& options) : domain_{domain}, options_{options} {
    const auto state = ensure(domain, "metadata").append("vpmu:attached");
    state.set_attribute("xmlns:vpmu", our_namespace);
    state.set_attribute("model", options.model);
    state.set_attribute("source", options.source);
    state.set_attribute("emulator", options.wrapper);
    before_ = state.append("vpmu:before");
  }

  void make() {
    const auto qemu = domain_.child("devices").child("emulator").text();
    change_emulator();
    change_cpu();
    change_pmu();
    change_environment(qemu);
    if (!made_.empty()) before_.set_attribute("made", fmt::format("{}", fmt::join(made_, " ")));
  }

 private:
  /// A child of the domain, created if missing.
  XmlElement ensure(XmlElement domain, const std::string& name) {
    if (const auto found = domain.child(name)) return found;
    made_.push_back(name);
    return domain.append(name);
  }

  void change_emulator() const {
    const auto devices = domain_.child("devices");
    auto emulator = devices.child("emulator");
    if (emulator) before_.append_copy(emulator);
    if (!emulator) emulator = devices.prepend("emulator");
    emulator.set_text(options_.wrapper);
  }

  /// The CPU is the model's, whatever the definition says; only its topology stays. QEMU saves the PMU's state within
  /// the state of nested virtualization, which it does with -cpu host. For migration, QEMU must be told to leave out
  /// features that cannot be migrated.
  void change_cpu() const {
    auto cpu = domain_.child("cpu");
    if (cpu) before_.append_copy(cpu);
    if (!cpu) cpu = domain_.append("cpu");
    for (const auto& [name, value] : cpu.attributes()) cpu.remove_attribute(name);
    cpu.set_attribute("mode", "host-passthrough");
    cpu.set_attribute("check", "none");
    cpu.set_attribute("migratable", "on");
    for (const auto part : cpu.children())
      if (is_models(part)) part.remove();
  }

  void change_pmu() {
    const auto features = ensure(domain_, "features");
    auto pmu = features.child("pmu");
    if (pmu) before_.append_copy(pmu);
    if (!pmu) pmu = features.append("pmu");
    pmu.set_attribute("state", "off");
  }

  void change_environment(std::string_view qemu) {
    auto command_line = domain_.child("commandline", qemu_namespace);
    if (!command_line) {
      made_.emplace_back("commandline");
      command_line = domain_.append("qemu:commandline");
      if (value_of(domain_, "xmlns:qemu") != qemu_namespace) command_line.set_attribute("xmlns:qemu", qemu_namespace);
    }
    for (const auto& [name, value] : variables_of(options_.model, options_.source, qemu)) {
      auto variable = variable_in(command_line, name);
      if (variable) {
        const auto old = before_.append("vpmu:env");
        old.set_attribute("name", name);
        if (const auto before = variable.attribute("value")) old.set_attribute("value", *before);
      } else {
        variable = command_line.append(command_line.prefixed("env"));
        variable.set_attribute("name", name);
      }
      variable.set_attribute("value", value);
    }
  }

  XmlElement domain_;
  const VirtOptions& options_;
  XmlElement before_;
  std::vector<std::string> made_;  ///< Elements that we created.
};

/// The inverse of Change. What is not as we left it has been edited since, and stays.
class Return {
 public:
  explicit Return(XmlElement domain)
      : domain_{domain}, state_{state_of(domain)}, before_{state_.child("before", our_namespace)} {}

  Result<void> make() {
    if (!before_)
      return usage_error("the domain's metadata of vpmu has no <vpmu:before>",
                         "set <emulator> and <cpu> by `virsh edit` and remove <vpmu:attached>");
    return_emulator();
    return_cpu();
    return_pmu();
    return_environment();
    const auto made = value_of(before_, "made");
    state_.remove();
    remove_if_made(made, "metadata", domain_.child("metadata"));
    remove_if_made(made, "features", domain_.child("features"));
    remove_if_made(made, "commandline", domain_.child("commandline", qemu_namespace));
    return {};
  }

 private:
  static void put_back(XmlElement ours, XmlElement old) {
    if (old) {
      (void)ours.replace_by_copy(old);
    } else {
      ours.remove();
    }
  }

  static void remove_if_made(std::string_view made, std::string_view name, XmlElement element) {
    if (element && made.find(name) != std::string_view::npos && element.children().empty()) element.remove();
  }

  void return_emulator() const {
    const auto emulator = domain_.child("devices").child("emulator");
    if (emulator && emulator.text() == value_of(state_, "emulator")) put_back(emulator, before_.child("emulator"));
  }

  void return_cpu() const {
    const auto cpu = domain_.child("cpu"), old = before_.child("cpu");
    if (value_of(cpu, "mode") != "host-passthrough") return;
    const auto now = cpu.children();
    if (!old) {
      for (const auto& [name, value] : cpu.attributes()) cpu.remove_attribute(name);
      if (now.empty()) cpu.remove();
      return;
    }
    auto kept = old.children();
    std::erase_if(kept, is_models);
    if (!std::ranges::equal(kept, now, equivalent)) {
      for (std::size_t i = 0; i < std::max(kept.size(), now.size()); ++i) {
        if (i >= now.size()) {
          kept[i].remove();
        } else if (i < kept.size()) {
          (void)kept[i].replace_by_copy(now[i]);
        } else {
          old.append_copy(now[i]);
        }
      }
    }
    put_back(cpu, old);
  }

  void return_pmu() const {
    const auto pmu = domain_.child("features").child("pmu");
    if (value_of(pmu, "state") == "off") put_back(pmu, before_.child("pmu"));
  }

  void return_environment() const {
    const auto command_line = domain_.child("commandline", qemu_namespace);
    const auto ours =
        variables_of(value_of(state_, "model"), value_of(state_, "source"), before_.child("emulator").text());
    for (const auto& [name, value] : ours) {
      const auto variable = variable_in(command_line, name);
      if (!variable || value_of(variable, "value") != value) continue;
      const auto all = before_.children("env", our_namespace);
      const auto old =
          std::ranges::find_if(all, [&wanted = name](XmlElement e) { return value_of(e, "name") == wanted; });
      if (old == all.end()) {
        variable.remove();
      } else if (const auto before = old->attribute("value")) {
        variable.set_attribute("value", *before);
      } else {
        variable.remove_attribute("value");
      }
    }
  }

  XmlElement domain_, state_, before_;
};

VirtStatus status_of(XmlElement domain, const VirtDriver& driver) {
  const auto state = state_of(domain);
  if (!state) return {};
  VirtStatus status{.enabled = true,
                    .model = value_of(state, "model"),
                    .source = value_of(state, "source"),
                    .wrapper = value_of(state, "emulator"),
                    .qemu = state.child("before", our_namespace).child("emulator").text(),
                    .changed = {}};
  const auto expect = [&status](std::string_view what, const std::string& wanted, const std::string& seen) {
    if (seen != wanted)
      status.changed.push_back(fmt::format(R"({} is "{}", not "{}")", what, printable(seen), printable(wanted)));
  };
  expect("the emulator", status.wrapper, domain.child("devices").child("emulator").text());
  expect("the mode of <cpu>", "host-passthrough", value_of(domain.child("cpu"), "mode"));
  expect("the state of <pmu>", "off", value_of(domain.child("features").child("pmu"), "state"));
  if (!driver.keeps_environment) return status;
  const auto command_line = domain.child("commandline", qemu_namespace);
  for (const auto& [name, value] : variables_of(status.model, status.source, status.qemu))
    expect(name + " in <qemu:commandline>", value, value_of(variable_in(command_line, name), "value"));
  return status;
}

}  // namespace

Result<std::string> enable_virt(std::string_view xml, const VirtOptions& options) {
  VMM_TRY(refuse_wrong_options(options));
  VMM_ASSIGN(const auto document, parse_domain(xml));
  const auto domain = document.root();
  if (state_of(domain)) VMM_TRY(Return{domain}.make());
  VMM_TRY(refuse_what_cannot_work(domain));
  Change{domain, options}.make();
  return document.text();
}

Result<std::string> disable_virt(std::string_view xml) {
  VMM_ASSIGN(const auto document, parse_domain(xml));
  if (!state_of(document.root()))
    return usage_error("the domain is not enabled", "`vpmu virt list` shows those that are");
  VMM_TRY(Return{document.root()}.make());
  return document.text();
}

Result<VirtStatus> virt_status(std::string_view xml, const VirtDriver& driver) {
  VMM_ASSIGN(const auto document, parse_domain(xml));
  return status_of(document.root(), driver);
}

Result<std::string> difference(std::string_view original, std::string_view read_back, const VirtDriver& driver) {
  VMM_ASSIGN(const auto wanted, parse_domain(original));
  VMM_ASSIGN(const auto seen, parse_domain(read_back));
  const auto status = status_of(seen.root(), driver);
  if (!status.enabled) return "the domain's metadata of vpmu is missing";
  if (!status.changed.empty()) return status.changed.front();
  VMM_TRY(Return{seen.root()}.make());
  if (state_of(wanted.root())) VMM_TRY(Return{wanted.root()}.make());
  if (equivalent(wanted.root(), seen.root())) return "";
  for (const auto part : wanted.root().children()) {
    const auto same = seen.root().children(part.local_name(), part.namespace_uri());
    if (std::ranges::none_of(same, [part](XmlElement other) { return equivalent(part, other); }))
      return fmt::format("`vpmu virt disable` would not restore <{}>", part.local_name());
  }
  return "`vpmu virt disable` would leave what was added";
}

}  // namespace vmm::tool
