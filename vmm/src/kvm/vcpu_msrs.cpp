// A vCPU's MSRs.
#include <fmt/format.h>

#include <array>

#include "kvm/ioctl.hpp"
#include "kvm/vcpu.hpp"
#include "support/assert.hpp"

namespace vmm {
namespace {

/// A kvm_msrs with some entries. The kernel's structure ends in a flexible array, so it lives in words of our own:
/// the count, then index and value of each.
class Msrs {
 public:
  static constexpr std::size_t max = 8;
  explicit Msrs(std::span<const std::uint32_t> indices) {
    VMM_ASSERT(indices.size() <= max);
    list()->nmsrs = static_cast<std::uint32_t>(indices.size());
    for (std::size_t i = 0; i < indices.size(); ++i) list()->entries[i].index = indices[i];
  }
  Msrs(std::uint32_t index, std::uint64_t value) : Msrs{std::span{&index, 1}} { list()->entries[0].data = value; }
  kvm_msrs* list() { return reinterpret_cast<kvm_msrs*>(words_.data()); }
  std::uint64_t value(std::size_t i = 0) { return list()->entries[i].data; }

 private:
  std::array<std::uint64_t, (sizeof(kvm_msrs) + max * sizeof(kvm_msr_entry)) / sizeof(std::uint64_t)> words_{};
};

}  // namespace

Result<std::uint64_t> Vcpu::msr(std::uint32_t index) const {
  Msrs request{index, 0};
  VMM_ASSIGN(const int done, VMM_IOCTL(fd_, KVM_GET_MSRS, request.list()));
  if (done != 1) {
    return host_error(fmt::format("KVM_GET_MSRS of {:#x}: KVM does not know this MSR", index));
  }
  return request.value();
}

Result<void> Vcpu::set_msr(std::uint32_t index, std::uint64_t value) {
  Msrs request{index, value};
  VMM_ASSIGN(const int done, VMM_IOCTL(fd_, KVM_SET_MSRS, request.list()));
  if (done != 1) {
    return host_error(fmt::format("KVM_SET_MSRS of {:#x} to {:#x}: KVM refuses", index, value));
  }
  return {};
}

Result<void> Vcpu::msrs(std::span<const std::uint32_t> indices, std::span<std::uint64_t> values) const {
  Msrs request{indices};
  VMM_ASSIGN(const int done, VMM_IOCTL(fd_, KVM_GET_MSRS, request.list()));
  if (static_cast<std::size_t>(done) != indices.size())
    return host_error(
        fmt::format("KVM_GET_MSRS of {:#x}: KVM does not know this MSR", indices[static_cast<std::size_t>(done)]));
  for (std::size_t i = 0; i < indices.size(); ++i) values[i] = request.value(i);
  return {};
}

}  // namespace vmm
