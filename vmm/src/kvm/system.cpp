#include "kvm/system.hpp"

#include <fcntl.h>
#include <linux/kvm.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include <fmt/format.h>

#include "kvm/ioctl.hpp"
#include "kvm/vm.hpp"

namespace vmm {
namespace {

Failure open_failure(const std::string& path, int error) {
  const auto what = "cannot open " + path;
  switch (error) {
    case ENOENT:
    case ENXIO:
    case ENODEV:
      return host_error(what, error,
                        "load KVM with `modprobe kvm_intel` or `modprobe kvm_amd`, or run in the bed: "
                        "`tools/dev/bed/run -- COMMAND`");
    case EACCES:
    case EPERM: return host_error(what, error, "run as root, or `adduser $USER kvm` and log in again");
    default: return host_error(what, error, "see `vpmu doctor`");
  }
}

}  // namespace

Result<System> System::open(const std::string& path) {
  Fd fd{::open(path.c_str(), O_RDWR | O_CLOEXEC)};
  if (!fd.valid()) {
    return open_failure(path, errno);
  }
  const auto version = VMM_IOCTL_VALUE(fd, KVM_GET_API_VERSION, 0);
  if (!version) {
    return host_error(path + " is not the KVM device (KVM_GET_API_VERSION)", version.error().system_errno,
                      "give the path of the real one with --kvm, normally /dev/kvm");
  }
  if (*version != KVM_API_VERSION) {
    return host_error(fmt::format("{} speaks KVM API version {}, not {}", path, *version, KVM_API_VERSION), 0,
                      "use a host kernel of 2.6.22 or later");
  }
  return System{std::move(fd)};
}

int System::check(std::uint32_t capability) const {
  return VMM_IOCTL_VALUE(fd_, KVM_CHECK_EXTENSION, capability).value_or(0);
}

Result<CpuidTable> System::supported_cpuid() const {
  constexpr std::uint32_t max_leaves = 256;
  // kvm_cpuid2 ends in a flexible array; whole entries give enough storage with the right alignment.
  std::vector<kvm_cpuid_entry2> storage(max_leaves + 1);
  auto* const list = reinterpret_cast<kvm_cpuid2*>(storage.data());
  list->nent = max_leaves;
  VMM_TRY(VMM_IOCTL(fd_, KVM_GET_SUPPORTED_CPUID, list));
  return CpuidTable{std::vector<kvm_cpuid_entry2>(list->entries, list->entries + list->nent)};
}

Result<std::uint64_t> System::feature_msr(std::uint32_t index) const {
  // kvm_msrs ends in a flexible array.
  std::array<kvm_msr_entry, 2> storage{};
  auto* const list = reinterpret_cast<kvm_msrs*>(storage.data());
  list->nmsrs = 1;
  list->entries[0].index = index;
  VMM_ASSIGN(const int read, VMM_IOCTL(fd_, KVM_GET_MSRS, list));
  if (read != 1) return host_error(fmt::format("KVM_GET_MSRS: {:#x} is no feature MSR", index));
  return list->entries[0].data;
}

Result<std::vector<std::uint32_t>> System::saved_msrs() const {
  constexpr std::uint32_t max_msrs = 2048;
  std::vector<std::uint32_t> list(1 + max_msrs);
  list[0] = max_msrs;
  VMM_TRY(VMM_IOCTL(fd_, KVM_GET_MSR_INDEX_LIST, list.data()));
  const auto first = list.begin() + 1;
  return std::vector(first, first + std::min(list[0], max_msrs));
}

Result<std::size_t> System::run_mapping_size() const {
  VMM_ASSIGN(const int size, VMM_IOCTL_VALUE(fd_, KVM_GET_VCPU_MMAP_SIZE, 0));
  return static_cast<std::size_t>(size);
}

Result<Vm> System::create_vm() const {
  VMM_ASSIGN(const std::size_t run_size, run_mapping_size());
  const auto fd = VMM_IOCTL_VALUE(fd_, KVM_CREATE_VM, 0);
  if (!fd) {
    return host_error("KVM_CREATE_VM", fd.error().system_errno, "see `vpmu doctor`");
  }
  return Vm{Fd{*fd}, run_size};
}

}  // namespace vmm
