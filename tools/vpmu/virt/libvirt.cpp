#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdlib>

#include "kvm/fd.hpp"
#include "virt/domains.hpp"
#include "virt/libvirt_calls.hpp"

namespace vmm::tool {
namespace {

/// The loaded library. connect_to_libvirt() fails if this is an error; all other code here runs after it.
const Result<LibvirtCalls>& loaded() {
  static const Result<LibvirtCalls> calls = load_libvirt();
  return calls;
}

const LibvirtCalls& libvirt() { return *loaded(); }

struct Free {
  void operator()(virConnectPtr connection) const { libvirt().virConnectClose(connection); }
  void operator()(virDomainPtr domain) const { libvirt().virDomainFree(domain); }
  void operator()(char* text) const { std::free(text); }
};
using ConnectionPointer = std::unique_ptr<virConnect, Free>;
using DomainPointer = std::unique_ptr<virDomain, Free>;
using Text = std::unique_ptr<char, Free>;

/// Without it libvirt would print each error itself.
void say_nothing(void*, virErrorPtr) {}

/// Discards what libraries below libvirt print on standard error besides the error that we get from libvirt (libxml2
/// about a missing file, libvirt's own log). Passwords are still asked for on the terminal.
class QuietStandardError {
 public:
  QuietStandardError() {
    const Fd null{::open("/dev/null", O_WRONLY | O_CLOEXEC)};
    if (before_.valid() && null.valid()) ::dup2(null.get(), STDERR_FILENO);
  }
  ~QuietStandardError() {
    if (before_.valid()) ::dup2(before_.get(), STDERR_FILENO);
  }
  QuietStandardError(const QuietStandardError&) = delete;
  QuietStandardError& operator=(const QuietStandardError&) = delete;
  QuietStandardError(QuietStandardError&&) = delete;
  QuietStandardError& operator=(QuietStandardError&&) = delete;

 private:
  Fd before_{::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0)};
};

ConnectionPointer open_connection(const std::string& uri) {
  // If a helper program of libvirt's ends at once, libvirt reports an error; SIGPIPE must not end us.
  std::signal(SIGPIPE, SIG_IGN);
  const QuietStandardError quiet;
  return ConnectionPointer{
      libvirt().virConnectOpenAuth(uri.empty() ? nullptr : uri.c_str(), libvirt().auth_default, 0)};
}

/// Why the last call failed, as one line.
std::string reason() {
  const auto* const error = libvirt().virGetLastError();
  std::string text = error == nullptr || error->message == nullptr ? "unknown error" : error->message;
  std::ranges::replace_if(text, [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
  return text;
}

int reason_code() {
  const auto* const error = libvirt().virGetLastError();
  return error == nullptr ? 0 : error->code;
}

Failure failure(std::string_view what) {
  switch (reason_code()) {
    case VIR_ERR_OPERATION_DENIED:
    case VIR_ERR_ACCESS_DENIED:
    case VIR_ERR_AUTH_FAILED:
    case VIR_ERR_AUTH_CANCELLED:
      return host_error(fmt::format("{}: {}", what, reason()), 0,
                        "run as a user that may change domains, or give another --connect URI");
    default: return host_error(fmt::format("{}: {}", what, reason()));
  }
}

/// "qemu+ssh://host/system" has a host, "qemu:///system" has none.
bool has_host(std::string_view uri) {
  const auto slashes = uri.find("://");
  return slashes != std::string_view::npos && slashes + 3 < uri.size() && uri[slashes + 3] != '/';
}

class LibvirtDomains final : public Domains {
 public:
  explicit LibvirtDomains(ConnectionPointer connection) : connection_{std::move(connection)} {
    if (const Text uri{libvirt().virConnectGetURI(connection_.get())}) uri_ = uri.get();
  }

  Result<DomainDefinition> read(const std::string& name) override {
    DomainPointer domain{libvirt().virDomainLookupByName(connection_.get(), name.c_str())};
    if (!domain && reason_code() == VIR_ERR_NO_DOMAIN)
      domain.reset(libvirt().virDomainLookupByUUIDString(connection_.get(), name.c_str()));
    if (domain) return definition_of(domain.get());
    const auto code = reason_code();
    if (code == VIR_ERR_NO_DOMAIN || code == VIR_ERR_INVALID_ARG)
      return usage_error(fmt::format("no domain \"{}\" at {}", printable(name), uri_),
                         "`vpmu virt list` shows them; another libvirt: --connect URI");
    return failure(fmt::format("cannot look up the domain \"{}\"", printable(name)));
  }

  Result<std::vector<DomainDefinition>> read_all() override {
    virDomainPtr* listed = nullptr;
    const auto count =
        libvirt().virConnectListAllDomains(connection_.get(), &listed, VIR_CONNECT_LIST_DOMAINS_PERSISTENT);
    if (count < 0) return failure("cannot list the domains");
    const std::vector<DomainPointer> domains(listed, listed + count);
    std::free(static_cast<void*>(listed));
    std::vector<DomainDefinition> all;
    for (const auto& domain : domains) {
      VMM_ASSIGN(auto definition, definition_of(domain.get()));
      all.push_back(std::move(definition));
    }
    std::ranges::sort(all, {}, &DomainDefinition::name);
    return all;
  }

  Result<void> define(const std::string& xml) override {
    if (const DomainPointer defined{libvirt().virDomainDefineXML(connection_.get(), xml.c_str())}) return {};
    return failure("libvirt does not take the definition");
  }

  [[nodiscard]] bool local() const override { return !has_host(uri_); }

  [[nodiscard]] VirtDriver driver() const override {
    const char* const type = libvirt().virConnectGetType(connection_.get());
    return {.keeps_environment = type == nullptr || std::string_view{type} != "TEST"};
  }

 private:
  static Result<DomainDefinition> definition_of(virDomainPtr domain) {
    const std::string name = libvirt().virDomainGetName(domain);
    const Text xml{libvirt().virDomainGetXMLDesc(domain, VIR_DOMAIN_XML_INACTIVE | VIR_DOMAIN_XML_SECURE)};
    if (!xml) return failure(fmt::format("cannot read the definition of {}", printable(name)));
    return DomainDefinition{.name = name,
                            .xml = xml.get(),
                            .persistent = libvirt().virDomainIsPersistent(domain) == 1,
                            .active = libvirt().virDomainIsActive(domain) == 1,
                            .saved = libvirt().virDomainHasManagedSaveImage(domain, 0) == 1};
  }

  ConnectionPointer connection_;
  std::string uri_;
};

}  // namespace

Result<std::unique_ptr<Domains>> connect_to_libvirt(const std::string& uri) {
  if (!loaded()) return tl::unexpected{loaded().error()};
  libvirt().virSetErrorFunc(nullptr, say_nothing);
  ConnectionPointer connection = open_connection(uri);
  if (connection) return std::make_unique<LibvirtDomains>(std::move(connection));
  const std::string where = uri.empty() ? "" : fmt::format(" at {}", printable(uri));
  return host_error(fmt::format("cannot connect to libvirt{}: {}", where, reason()), 0,
                    "is libvirtd running there, and may this user use it? give --connect URI");
}

}  // namespace vmm::tool
