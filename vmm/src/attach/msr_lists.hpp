#pragma once
#include <linux/kvm.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace vmm {

/// Who serves the MSRs of a list.
struct MsrOwners {
  std::function<bool(std::uint32_t index)> is_ours;
  std::function<bool(kvm_msr_entry& entry)> serve;  ///< Serves one of ours; false if it cannot.
  std::function<int(kvm_msrs& list)> ask_kvm;       ///< Makes the same call to KVM for `list`.
};

/// A copy of a VMM's list, which may be changed: KVM_SET_MSRS only reads the original.
class MsrListCopy {
 public:
  /// Of a list that is_served().
  explicit MsrListCopy(const kvm_msrs& list);
  [[nodiscard]] kvm_msrs& list() { return *reinterpret_cast<kvm_msrs*>(room_.data()); }
  [[nodiscard]] std::span<kvm_msr_entry> entries() { return {list().entries, list().nmsrs}; }

 private:
  std::vector<std::uint64_t> room_;
};

/// KVM refuses lists of 256 or more entries (E2BIG) before it looks at them.
inline bool is_served(const kvm_msrs& list) { return list.nmsrs < 256; }

/// KVM_GET_MSRS or KVM_SET_MSRS: in order, up to the first entry that cannot be served.
/// @return how many were served, or -1 with errno as KVM set it.
int serve_msrs(kvm_msrs& list, const MsrOwners& owners);

/// KVM_GET_MSR_INDEX_LIST with `ours` added. Returns 0, or -1 with errno: E2BIG if there is no room for all; nmsrs is
/// then their number.
int list_msrs(kvm_msr_list& list, std::span<const std::uint32_t> ours,
              const std::function<int(kvm_msr_list& list)>& ask_kvm);

}  // namespace vmm
