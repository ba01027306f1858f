#include "virt/virt.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "command_line.hpp"
#include "shared/machine_options.hpp"
#include "shared/output.hpp"
#include "tables/models.hpp"
#include "virt/hook.hpp"
#include "virt/switch.hpp"

namespace vmm::tool {
namespace {

namespace fs = std::filesystem;

constexpr auto installed_wrapper = "/usr/libexec/vpmu/qemu-vpmu";  // by the package, on another host

struct VirtArguments {
  std::string domain;
  std::string connect;
  VirtOptions options;
  bool apparmor{};
  std::string vmi;
  std::string xml;
};

/// The path of qemu-vpmu with the library beside it: installed with this program, or in the same build directory.
Result<std::string> wrapper_here(const std::string& given) {
  std::error_code error;
  const auto here = fs::read_symlink("/proc/self/exe", error).parent_path();
  std::string looked;
  for (const fs::path& path : {fs::path{given}, here / "../libexec/vpmu/qemu-vpmu", here / "../../vmm/qemu-vpmu"}) {
    if (given.empty() ? path.empty() : path != fs::path{given}) continue;
    const auto wrapper = fs::absolute(path, error).lexically_normal();
    if (access(wrapper.c_str(), X_OK) == 0 && access((wrapper.parent_path() / "libvpmu-kvm.so").c_str(), R_OK) == 0)
      return wrapper.string();
    looked += (looked.empty() ? "" : " and ") + wrapper.string();
  }
  return usage_error("no qemu-vpmu with libvpmu-kvm.so beside it at " + looked, "give --emulator /PATH/OF/qemu-vpmu");
}

Result<std::string> enable(const VirtArguments& arguments) {
  VMM_ASSIGN(const auto domains, connect_to_libvirt(arguments.connect));
  EnableRequest request{.domain = arguments.domain, .options = arguments.options, .apparmor = {}};
  if (domains->local()) {
    VMM_ASSIGN(request.options.wrapper, wrapper_here(arguments.options.wrapper));
  } else if (request.options.wrapper.empty()) {
    request.options.wrapper = installed_wrapper;
  }
  const bool writable = domains->local() && geteuid() == 0;
  if (arguments.apparmor && writable) request.apparmor = this_hosts_apparmor();
  const std::string printed = arguments.apparmor && !writable ? describe_apparmor(request.options.wrapper) : "";
  VMM_ASSIGN(const std::string done, enable_domain(*domains, request));
  return done + printed;
}

Result<std::string> disable(const VirtArguments& arguments) {
  VMM_ASSIGN(const auto domains, connect_to_libvirt(arguments.connect));
  VMM_ASSIGN(std::string done, disable_domain(*domains, arguments.domain));
  if (!arguments.apparmor) return done;
  if (!domains->local())
    return done + "AppArmor's files are that host's: remove what stands between the lines of vpmu there\n";
  VMM_TRY(AppArmorChange::remove(this_hosts_apparmor()));
  return done;
}

Result<std::string> status(const VirtArguments& arguments) {
  VMM_ASSIGN(const auto domains, connect_to_libvirt(arguments.connect));
  return describe_domain(*domains, arguments.domain);
}

Result<std::string> list(const VirtArguments& arguments) {
  VMM_ASSIGN(const auto domains, connect_to_libvirt(arguments.connect));
  return list_domains(*domains);
}

/// A domain's XML has some kilobytes.
Result<std::string> read_standard_input() {
  constexpr std::size_t max = 16U << 20U;
  std::string text(max + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), stdin));
  if (text.size() > max)
    return usage_error(fmt::format("standard input has more than {} bytes", max), "give the XML of one domain");
  return text;
}

Result<std::string> hook(const VirtArguments& arguments) {
  VirtOptions options = arguments.options;
  if (options.wrapper.empty()) options.wrapper = installed_wrapper;
  std::string xml = arguments.xml;
  if (xml.empty()) {
    VMM_ASSIGN(xml, read_standard_input());
  }
  return define_domain_hook(arguments.vmi, xml, options);
}

using Action = Result<std::string> (*)(const VirtArguments&);

/// One of the commands below `vpmu virt`.
Command add_command(Command& virt, const char* name, const char* help, Action action,
                    const std::shared_ptr<VirtArguments>& arguments, int& exit_code) {
  Command command = virt.add_command(name, help);
  command.when_given([arguments, action, name, &exit_code] {
    exit_code = print_or_explain(fmt::format("vpmu virt {}", name).c_str(), action(*arguments));
  });
  return command;
}

void add_connect(Command command, VirtArguments& arguments) {
  command.add_option("--connect", arguments.connect,
                     "libvirt's URI, also of another host; default: the one that virsh takes");
}

void add_domain(Command command, VirtArguments& arguments) {
  command.add_option("domain", arguments.domain, "name or UUID").required();
  add_connect(command, arguments);
}

Argument add_choice(Command command, VirtArguments& arguments) {
  command
      .add_option("--source", arguments.options.source,
                  "what counts for the guest: a source that `vpmu doctor` lists (default auto)")
      .suggests(source_choices());
  command
      .add_option("--emulator", arguments.options.wrapper,
                  "path of qemu-vpmu on the domain's host; default: where it is installed")
      .takes_file();
  return command.add_option("--model", arguments.options.model, "CPU model that `vpmu models` lists")
      .suggests(model_names());
}

}  // namespace

void add_virt(Command& app, int& exit_code) {
  const auto arguments = std::make_shared<VirtArguments>();
  Command virt = app.add_command("virt", "give the PMU to libvirt domains");
  virt.require_commands(1, 1);
  virt.set_exit_codes(exit_codes_of_printing());
  virt.add_example("vpmu virt enable DOMAIN --model haswell", "gives a domain the PMU, here or on another host");
  virt.add_example("vpmu virt disable DOMAIN", "takes the PMU away again");
  Command on =
      add_command(virt, "enable", "give a domain the PMU, from its next start on", enable, arguments, exit_code);
  add_domain(on, *arguments);
  add_choice(on, *arguments).required();
  on.add_flag("--apparmor", arguments->apparmor,
              "also let AppArmor permit the library; without the rights for that, print the lines to add");
  Command off = add_command(virt, "disable", "take the PMU away: the domain's definition is as before", disable,
                            arguments, exit_code);
  add_domain(off, *arguments);
  off.add_flag("--apparmor", arguments->apparmor, "also remove the lines that enable --apparmor has added");
  add_domain(add_command(virt, "status", "show whether a domain has the PMU", status, arguments, exit_code),
             *arguments);
  add_connect(add_command(virt, "list", "show which domains have the PMU", list, arguments, exit_code), *arguments);
  Command define =
      add_command(virt, "hook", "KubeVirt's onDefineDomain hook: read a domain's XML, and print it with the PMU", hook,
                  arguments, exit_code);
  add_choice(define, *arguments);
  define.add_option("--vmi", arguments->vmi,
                    "the VMI as JSON; its annotations vpmu/model and vpmu/source override the options");
  define.add_option("--domain", arguments->xml, "the domain's XML; default: standard input");
}

}  // namespace vmm::tool
