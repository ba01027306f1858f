#include "vcpu/vector_registers.hpp"
#include "support/x86.hpp"

#include <algorithm>
#include <cstring>

namespace vmm {
namespace {

using vpmu::exec::VectorState;

// SDM 1 13.4.1 to 13.4.3, and CPUID.0DH.2:EBX, which is the same on every CPU.
constexpr std::size_t st_at = 32, unused_at = 416, xstate_bv_at = 512, upper_at = 576;

std::span<const std::byte> bytes_of(const XsaveArea& area) { return std::as_bytes(std::span{area}); }

std::uint64_t components(const XsaveArea& area) {
  std::uint64_t bv{};
  std::memcpy(&bv, bytes_of(area).data() + xstate_bv_at, sizeof bv);
  return bv;
}

}  // namespace

VectorState vector_state(const XsaveArea& area, std::uint64_t xcr0) {
  const auto from = bytes_of(area);
  const std::uint64_t bv = components(area);
  VectorState s;
  const auto copy = [&](std::size_t first, std::size_t last) {
    std::memcpy(s.legacy.data() + first, from.data() + first, last - first);
  };
  if ((bv & x86::xcr0::x87::mask) != 0) {
    copy(0, VectorState::mxcsr_at);
    copy(st_at, VectorState::xmm_at);
  }
  if ((bv & (x86::xcr0::SSE::mask | x86::xcr0::AVX::mask)) != 0) copy(VectorState::mxcsr_at, st_at);
  if ((bv & x86::xcr0::SSE::mask) != 0) copy(VectorState::xmm_at, unused_at);
  if ((bv & x86::xcr0::AVX::mask) != 0) std::memcpy(s.upper.data(), from.data() + upper_at, sizeof s.upper);
  s.xcr0 = xcr0;
  s.forget_pointers();
  return s;
}

void set_vector_state(XsaveArea& area, const VectorState& state) {
  const auto to = std::as_writable_bytes(std::span{area});
  std::uint64_t bv = components(area) | x86::xcr0::x87::mask | x86::xcr0::SSE::mask;
  std::copy_n(state.legacy.begin(), unused_at, to.begin());
  if ((state.xcr0 & x86::xcr0::AVX::mask) != 0) {
    std::memcpy(to.data() + upper_at, state.upper.data(), sizeof state.upper);
    bv |= x86::xcr0::AVX::mask;
  }
  std::memcpy(to.data() + xstate_bv_at, &bv, sizeof bv);
}

}  // namespace vmm
