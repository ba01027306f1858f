#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace vpmu::exec {

/// x87, MMX, SSE and AVX state of a vCPU, each component where XSAVE's standard format has it. SDM 1 13.4.
struct alignas(64) VectorState {
  /// As FXSAVE64 stores it, with 16 registers of 16 bytes behind 160 bytes. SDM 1 10.5.1. FOP, FIP and FDP are not
  /// kept: they read 0.
  std::array<std::byte, 512> legacy{};
  std::array<std::array<std::byte, 16>, 16> upper{};  ///< Bits 255 to 128 of YMM0 to YMM15.
  std::uint64_t xcr0{1};

  /// As KVM has it in a new vCPU: FNINIT's x87 state and SSE's exceptions masked.
  VectorState() {
    set_fcw(0x37F);
    set_mxcsr(0x1F80);
    put(mxcsr_mask_at, 0xFFFFU);
  }

  static constexpr std::size_t fsw_at = 2, fop_at = 6, fip_at = 8, fdp_at = 16, mxcsr_at = 24, mxcsr_mask_at = 28,
                               xmm_at = 160;

  [[nodiscard]] std::uint16_t fcw() const { return get<std::uint16_t>(0); }
  void set_fcw(std::uint16_t value) { put(0, value); }
  [[nodiscard]] std::uint16_t fsw() const { return get<std::uint16_t>(fsw_at); }
  [[nodiscard]] std::uint32_t mxcsr() const { return get<std::uint32_t>(mxcsr_at); }
  void set_mxcsr(std::uint32_t value) { put(mxcsr_at, value); }
  void forget_pointers() {
    put(fop_at, std::uint16_t{});
    put(fip_at, std::uint64_t{});
    put(fdp_at, std::uint64_t{});
  }

 private:
  template <class T>
  [[nodiscard]] T get(std::size_t at) const {
    T value;
    std::memcpy(&value, legacy.data() + at, sizeof value);
    return value;
  }
  template <class T>
  void put(std::size_t at, T value) {
    std::memcpy(legacy.data() + at, &value, sizeof value);
  }
};

}  // namespace vpmu::exec
