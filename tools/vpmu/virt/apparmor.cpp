#include "virt/apparmor.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <sstream>

#include "files/output_file.hpp"

namespace vmm::tool {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view begin_line = "# begin vpmu: written by `vpmu virt enable --apparmor`\n";
constexpr std::string_view end_line = "# end vpmu\n";
// The profile of the guests, and those of libvirt's daemons, which start an emulator to query its capabilities: one
// process for all hypervisors, or one for each.
constexpr auto guests_file = "local/abstractions/libvirt-qemu";
constexpr std::array daemon_profiles{"usr.sbin.libvirtd", "usr.sbin.virtqemud"};

Result<std::string> read_text(const fs::path& path) {
  const std::ifstream file{path, std::ios::binary};
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return host_error(fmt::format("cannot read {}", path.string()), errno);
  return text.str();
}

/// Writes the file as a whole or not at all.
Result<void> write_text(const fs::path& path, const std::string& text) {
  VMM_ASSIGN(auto file,
             OutputFile::open(path, {.what = "the AppArmor file", .advice = "run as root, or leave out --apparmor"}));
  return file.replace(text);
}

std::string without_snippet(std::string text) {
  const auto begin = text.find(begin_line);
  const auto end = begin == std::string::npos ? begin : text.find(end_line, begin);
  return end == std::string::npos ? text : text.erase(begin, end + end_line.size() - begin);
}

Result<void> run_parser(const fs::path& profile) {
  std::string program = "apparmor_parser", replace = "--replace", file = profile.string();
  const std::array<char*, 4> arguments{program.data(), replace.data(), file.data(), nullptr};
  pid_t child{};
  int status = 0;
  const int error = posix_spawnp(&child, program.c_str(), nullptr, nullptr, arguments.data(), environ);
  if (error != 0)
    return host_error("cannot run apparmor_parser", error, "install the package apparmor, or leave out --apparmor");
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return host_error(fmt::format("apparmor_parser does not take {}", file), 0, "see what it says above; run as root");
}

}  // namespace

AppArmorHost this_hosts_apparmor() { return {.reload = run_parser}; }

std::vector<AppArmorSnippet> apparmor_snippets(const std::string& wrapper) {
  const auto library = fs::path{wrapper}.parent_path() / "libvpmu-kvm.so";
  const auto lines = [](const std::string& rules) { return fmt::format("{}{}{}", begin_line, rules, end_line); };
  std::vector<AppArmorSnippet> all{{.file = guests_file,
                                    .text = lines(fmt::format("\"{}\" rmix,\n\"{}\" mr,\n", wrapper, library.string())),
                                    .profile = {}}};
  for (const auto* const profile : daemon_profiles)
    all.push_back({.file = fmt::format("local/{}", profile),
                   .text = lines(fmt::format("\"{}\" PUx,\n", wrapper)),
                   .profile = profile});
  return all;
}

std::string describe_apparmor(const std::string& wrapper) {
  std::string text;
  for (const auto& snippet : apparmor_snippets(wrapper)) {
    text += fmt::format("add to /etc/apparmor.d/{}:\n{}", snippet.file, snippet.text);
    if (!snippet.profile.empty())
      text += fmt::format("and, where there is that profile, run: apparmor_parser --replace /etc/apparmor.d/{}\n",
                          snippet.profile);
  }
  return text;
}

Result<void> AppArmorChange::apply(const AppArmorSnippet& snippet) {
  const auto file = host_.directory / snippet.file;
  std::error_code error;
  if (!fs::is_directory(file.parent_path(), error))
    return host_error(fmt::format("no directory {}", file.parent_path().string()), 0,
                      "is AppArmor in use here? leave out --apparmor");
  Before before{.file = file, .existed = fs::exists(file, error), .text = {}, .profile = snippet.profile};
  if (before.existed) {
    VMM_ASSIGN(before.text, read_text(file));
  }
  auto text = without_snippet(before.text);
  if (!text.empty() && !text.ends_with('\n')) text += '\n';
  VMM_TRY(write_text(file, text + snippet.text));
  undo_.push_back(std::move(before));
  return snippet.profile.empty() ? Result<void>{} : host_.reload(host_.directory / snippet.profile);
}

Result<AppArmorChange> AppArmorChange::make(const AppArmorHost& host, const std::string& wrapper) {
  if (wrapper.find_first_of("\"\n*?[]{}@,") != std::string::npos)
    return usage_error(
        fmt::format("the emulator's path {} has characters with a meaning in AppArmor's files", printable(wrapper)),
        "install qemu-vpmu at a path without them");
  AppArmorChange change{host};
  for (const auto& snippet : apparmor_snippets(wrapper)) {
    std::error_code error;
    if (snippet.profile.empty() || fs::exists(host.directory / snippet.profile, error)) VMM_TRY(change.apply(snippet));
  }
  return change;
}

Result<void> AppArmorChange::remove(const AppArmorHost& host) {
  for (const auto& snippet : apparmor_snippets("")) {
    const auto file = host.directory / snippet.file;
    std::error_code error;
    if (!fs::exists(file, error)) continue;
    VMM_ASSIGN(const std::string text, read_text(file));
    if (const auto rest = without_snippet(text); rest != text) VMM_TRY(write_text(file, rest));
  }
  return {};
}

AppArmorChange::~AppArmorChange() {
  for (const auto& [file, existed, text, profile] : undo_) {
    std::error_code error;
    if (existed) {
      (void)write_text(file, text);
    } else {
      fs::remove(file, error);
    }
    if (!profile.empty()) (void)host_.reload(host_.directory / profile);
  }
}

}  // namespace vmm::tool
