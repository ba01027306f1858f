#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/result.hpp"

namespace vmm::tool {

/// Lines for one of AppArmor's site-local files.
struct AppArmorSnippet {
  std::string file;  ///< Below AppArmor's directory.
  std::string text;
  std::string profile;  ///< The profile that includes them; empty for the guests' own, made by libvirt at each start.
};

/// AppArmor of one host.
struct AppArmorHost {
  std::filesystem::path directory{"/etc/apparmor.d"};
  std::function<Result<void>(const std::filesystem::path& profile)>
      reload;  ///< Makes the kernel take the profile's new text.
};

/// This machine's AppArmor; profiles are reloaded by apparmor_parser.
AppArmorHost this_hosts_apparmor();

/// What AppArmor has to allow so that libvirt can query `wrapper`'s capabilities, and start domains with it and the
/// library beside it.
std::vector<AppArmorSnippet> apparmor_snippets(const std::string& wrapper);

/// The snippets with the files that they belong to, for users.
std::string describe_apparmor(const std::string& wrapper);

/// The snippets, written to AppArmor's files. The destructor removes them, unless they are kept.
class AppArmorChange {
 public:
  /// Replaces earlier snippets, and has the profiles reloaded. Fails with kind host if the files
  /// cannot be written or a profile is refused; then everything is as before.
  static Result<AppArmorChange> make(const AppArmorHost& host, const std::string& wrapper);
  /// Takes the snippets out. Their files stay, because profiles include them by name.
  static Result<void> remove(const AppArmorHost& host);

  AppArmorChange(AppArmorChange&& other) noexcept
      : host_{std::move(other.host_)}, undo_{std::exchange(other.undo_, {})} {}
  ~AppArmorChange();
  void keep() { undo_.clear(); }

 private:
  struct Before {
    std::filesystem::path file;
    bool existed{};
    std::string text;
    std::string profile;
  };
  explicit AppArmorChange(AppArmorHost host) : host_{std::move(host)} {}
  Result<void> apply(const AppArmorSnippet& snippet);
  AppArmorHost host_;
  std::vector<Before> undo_;
};

}  // namespace vmm::tool
