#include "attach/carried_state.hpp"

#include <cstring>
#include <type_traits>

namespace vmm {
namespace {

struct Carried {
  static constexpr std::uint64_t magic_value = 0x4445'4952'5241'4356;  // "VCARRIED"
  std::uint64_t magic{magic_value};
  std::uint64_t bytes{sizeof(PmuVcpuState)};
  PmuVcpuState state{};
};
static_assert(std::is_trivially_copyable_v<Carried> && sizeof(Carried) <= KVM_STATE_NESTED_SVM_VMCB_SIZE);

}  // namespace

bool carry(const PmuVcpuState& state, kvm_nested_state& to) {
  if (to.size < carried_size || (to.flags & KVM_STATE_NESTED_GUEST_MODE) != 0) return false;
  const Carried bytes{.state = state};
  to.format = KVM_STATE_NESTED_FORMAT_SVM;
  to.size = carried_size;
  std::memset(&to.data, 0, KVM_STATE_NESTED_SVM_VMCB_SIZE);
  std::memcpy(&to.data, &bytes, sizeof bytes);
  return true;
}

std::optional<PmuVcpuState> carried(const kvm_nested_state& from) {
  if (from.format != KVM_STATE_NESTED_FORMAT_SVM || from.size < carried_size) return std::nullopt;
  Carried bytes;
  std::memcpy(static_cast<void*>(&bytes), &from.data, sizeof bytes);
  if (bytes.magic != Carried::magic_value || bytes.bytes != sizeof(PmuVcpuState)) return std::nullopt;
  return bytes.state;
}

}  // namespace vmm
