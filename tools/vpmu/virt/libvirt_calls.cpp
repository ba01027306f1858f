#include "virt/libvirt_calls.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace vmm::tool {
namespace {

Failure not_loaded(const char* file) {
  const char* const why = ::dlerror();
  return host_error(fmt::format("cannot load libvirt ({}): {}", file, why == nullptr ? "it has a null symbol" : why), 0,
                    "install libvirt's client library, Debian's package libvirt0");
}

}  // namespace

Result<LibvirtCalls> load_libvirt(const char* file) {
  void* const library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return not_loaded(file);
  LibvirtCalls calls;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    return function != nullptr;
  };
#define VMM_LIBVIRT_FIND(name) \
  if (!find(calls.name, #name)) return not_loaded(file);
  VMM_LIBVIRT_CALLS(VMM_LIBVIRT_FIND)
#undef VMM_LIBVIRT_FIND
  virConnectAuthPtr* auth_default = nullptr;
  if (!find(auth_default, "virConnectAuthPtrDefault")) return not_loaded(file);
  calls.auth_default = *auth_default;
  return calls;
}

}  // namespace vmm::tool
