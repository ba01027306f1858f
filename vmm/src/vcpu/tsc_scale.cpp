#include "vcpu/tsc_scale.hpp"

#include <algorithm>
#include <array>

namespace vmm {
namespace {

constexpr unsigned vmx_fraction_bits = 48, svm_fraction_bits = 32;

TscScale scale_by_rates(std::uint32_t host_khz, std::uint32_t guest_khz, unsigned bits) {
  __extension__ using wide = unsigned __int128;
  return {static_cast<std::uint64_t>((wide{guest_khz} << bits) / host_khz), bits};
}

}  // namespace

TscScale TscScale::by_rates(std::uint32_t host_khz, std::uint32_t guest_khz) {
  return host_khz == 0 || host_khz == guest_khz ? TscScale{} : scale_by_rates(host_khz, guest_khz, vmx_fraction_bits);
}

// KVM does not scale if the rates are nearly the same (within its tolerance), so the rates alone do not show the scale.
std::optional<TscScale> TscScale::find(std::uint32_t host_khz, std::uint32_t guest_khz,
                                       std::span<const TscLook> looks) {
  if (host_khz == 0) return std::nullopt;
  const std::array known{TscScale{}, scale_by_rates(host_khz, guest_khz, vmx_fraction_bits),
                         scale_by_rates(host_khz, guest_khz, svm_fraction_bits)};
  for (const TscScale& scale : known)
    if (std::ranges::all_of(looks, [&](const TscLook& look) {
          return scale.of(look.before) <= look.guest && look.guest <= scale.of(look.after);
        }))
      return scale;
  return std::nullopt;
}

}  // namespace vmm
