#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "vpmu/x86.hpp"

namespace vpmu::exec {

/// x87, MMX, SSE and AVX state of a vCPU, each component where XSAVE's standard format has it. SDM 1 13.4.
struct alignas(64) VectorState {
  /// As FXSAVE64 stores it, with 16 registers of 16 bytes behind 160 bytes. SDM 1 10.5.1. FOP, FIP and FDP are not
  /// kept: they read 0.
  std::array<std::byte, 512> legacy{};
  std::array<std::array<std::byte, 16>, 16> upper{};  ///< Bits 255 to 128 of YMM0 to YMM15.
  std::uint64_t xcr0{1};

  /// State components, as XCR0 has them; all that is kept here.
  static constexpr std::uint64_t components = x86::xcr0::x87::mask | x86::xcr0::SSE::mask | x86::xcr0::AVX::mask;
  /// Those that are not in their initial configuration. SDM 1 13.6.
  [[nodiscard]] std::uint64_t in_use() const;
  /// Gives a component its initial configuration, MXCSR apart.
  void initialize(std::uint64_t component);

  static constexpr std::uint16_t initial_fcw = 0x37F;
  static constexpr std::uint32_t initial_mxcsr = 0x1F80;
  /// As KVM has it in a new vCPU: FNINIT's x87 state and SSE's exceptions masked.
  VectorState() {
    set_fcw(initial_fcw);
    set_mxcsr(initial_mxcsr);
    put(mxcsr_mask_at, 0xFFFFU);
  }

  /// IE to PE: flags in FSW and MXCSR, masks in FCW and, further up, in MXCSR. SDM 1 8.1.5, 10.2.3.
  static constexpr std::uint16_t exceptions = 0x3F;

  static constexpr std::size_t fsw_at = 2, ftw_at = 4, fop_at = 6, fip_at = 8, fdp_at = 16, mxcsr_at = 24,
                               mxcsr_mask_at = 28, st_at = 32, st_bytes = 128, xmm_at = 160, xmm_bytes = 256;

  [[nodiscard]] std::uint16_t fcw() const { return get<std::uint16_t>(0); }
  void set_fcw(std::uint16_t value) { put(0, value); }
  void set_fsw(std::uint16_t value) { put(fsw_at, value); }
  [[nodiscard]] std::uint16_t fsw() const { return get<std::uint16_t>(fsw_at); }
  [[nodiscard]] std::uint32_t mxcsr() const { return get<std::uint32_t>(mxcsr_at); }
  void set_mxcsr(std::uint32_t value) { put(mxcsr_at, value); }
  /// An MMX register, each the low 64 bits of an x87 register. SDM 1 9.2.2.
  [[nodiscard]] std::span<const std::byte, 8> mmx(unsigned number) const {
    return std::span{legacy}.subspan(st_at + 16 * ((number - top()) % 8)).first<8>();
  }
  /// What an MMX instruction does to the x87 state, even if it writes no register: the top of the stack becomes
  /// register 0, and none is empty. SDM 1 9.5.1.
  void enter_mmx() {
    const auto before = legacy;
    for (std::size_t number = 0; number < 8; ++number) {
      std::memcpy(legacy.data() + st_at + 16 * number, before.data() + st_at + 16 * ((number + 8 - top()) % 8), 16);
    }
    put(fsw_at, static_cast<std::uint16_t>(fsw() & ~0x3800U));
    put(ftw_at, std::uint8_t{0xFF});
  }
  /// Whether an x87 exception that is not masked was found, so that the next instruction that waits gets #MF. The CPU
  /// keeps it in FSW.ES, and finds it anew when FSW or FCW is loaded. SDM 1 8.1.3.3, 8.7.
  [[nodiscard]] bool has_pending_x87() const { return (fsw() & ~fcw() & exceptions) != 0; }
  [[nodiscard]] bool masks_all_x87() const { return (fcw() & exceptions) == exceptions; }
  /// Gives FSW.ES and FSW.B the values that FSW and FCW, just loaded, imply.
  void find_pending_x87() {
    constexpr unsigned summary_and_busy = 0x8080;
    set_fsw(static_cast<std::uint16_t>((fsw() & ~summary_and_busy) | (has_pending_x87() ? summary_and_busy : 0)));
  }
  void forget_pointers() {
    put(fop_at, std::uint16_t{});
    put(fip_at, std::uint64_t{});
    put(fdp_at, std::uint64_t{});
  }

 private:
  [[nodiscard]] unsigned top() const { return fsw() >> 11 & 7U; }
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

inline std::uint64_t VectorState::in_use() const {
  const auto is_zero = [](std::span<const std::byte> bytes) {
    return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{}; });
  };
  const std::span<const std::byte> image{legacy};
  const bool no_x87 = fcw() == initial_fcw && is_zero(image.subspan(fsw_at, mxcsr_at - fsw_at)) &&
                      is_zero(image.subspan(st_at, st_bytes));
  return (no_x87 ? 0 : x86::xcr0::x87::mask) | (is_zero(image.subspan(xmm_at, xmm_bytes)) ? 0 : x86::xcr0::SSE::mask) |
         (is_zero(std::as_bytes(std::span{upper})) ? 0 : x86::xcr0::AVX::mask);
}

inline void VectorState::initialize(std::uint64_t component) {
  switch (component) {
    case x86::xcr0::x87::mask:
      std::memset(legacy.data(), 0, mxcsr_at);
      std::memset(legacy.data() + st_at, 0, st_bytes);
      set_fcw(initial_fcw);
      break;
    case x86::xcr0::SSE::mask: std::memset(legacy.data() + xmm_at, 0, xmm_bytes); break;
    case x86::xcr0::AVX::mask: upper = {}; break;
    default: break;
  }
}

}  // namespace vpmu::exec
