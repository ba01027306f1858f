#pragma once

#include <libvirt/libvirt.h>
#include <libvirt/virterror.h>

#include "support/result.hpp"

namespace vmm::tool {

/// libvirt's functions that `vpmu virt` calls. libvirt is loaded by the first command that needs it, not when the
/// program starts: `vpmu` runs on machines without it.
struct LibvirtCalls {
#define VMM_LIBVIRT_CALLS(call)                                                                         \
  call(virConnectClose) call(virConnectGetType) call(virConnectGetURI) call(virConnectListAllDomains)   \
      call(virConnectOpenAuth) call(virDomainDefineXML) call(virDomainFree) call(virDomainGetName)      \
          call(virDomainGetXMLDesc) call(virDomainHasManagedSaveImage) call(virDomainIsActive)          \
              call(virDomainIsPersistent) call(virDomainLookupByName) call(virDomainLookupByUUIDString) \
                  call(virGetLastError) call(virSetErrorFunc)
#define VMM_LIBVIRT_MEMBER(name) decltype(&::name) name = nullptr;
  VMM_LIBVIRT_CALLS(VMM_LIBVIRT_MEMBER)
#undef VMM_LIBVIRT_MEMBER
  /// How libvirt asks for a password on the terminal: its virConnectAuthPtrDefault.
  virConnectAuthPtr auth_default = nullptr;
};

/// Loads the library FILE; it stays until the process ends. Error: what the dynamic linker says, or which function is
/// missing.
Result<LibvirtCalls> load_libvirt(const char* file = "libvirt.so.0");

}  // namespace vmm::tool
