#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "exec/state/code_mode.hpp"
#include "exec/state/cpu_feature.hpp"

namespace vpmu::exec {

/// What must be enabled in the guest for an instruction. SDM 3A 2.5, 13.1.
enum class VectorUnit : std::uint8_t { none, x87, sse, avx, xsave };

/// A general register of an instruction: the guest's number of it, and the scratch register that stands in for it.
struct HostGpr {
  std::uint8_t guest{}, scratch{};
  bool written{};
};

/// The fields of an instruction's encoding. SDM 2A 2.1 to 2.3.
struct Encoding {
  bool prefix_66{};
  std::uint8_t repeat{};  ///< F2 or F3; 0: neither.
  bool vex{};
  bool w{}, l{};       ///< REX.W or VEX.W; VEX.L.
  std::uint8_t map{};  ///< VEX.mmmmm: 1 0F, 2 0F 38, 3 0F 3A; 0: one byte.
  std::uint8_t opcode{};
  std::uint8_t reg{}, rm{}, vvvv{};  ///< Of ModRM with its bits of REX or VEX, and of VEX: 0 to 15.
  bool has_modrm{};
  bool memory{};  ///< The operand that ModRM.rm names. `rm` has no meaning then.
  std::optional<std::uint8_t> immediate{};

  /// As VEX.pp. SDM 2A table 2-9.
  [[nodiscard]] std::uint8_t pp() const {
    if (repeat != 0) return repeat == 0xF3 ? 2 : 3;
    return prefix_66 ? 1 : 0;
  }
  /// What a register operand has in its ModRM byte.
  [[nodiscard]] std::uint8_t modrm() const {
    return static_cast<std::uint8_t>((memory ? 0U : 0xC0U) | (reg & 7U) << 3U | (rm & 7U));
  }
};

/// One instruction, as it can run on this CPU for the guest: its memory operand is at (%rsi), general registers that it
/// names are scratch registers, vector registers are the same as the guest's.
struct HostForm {
  /// 66, one of F2 and F3, REX, 0F and another byte of the map, the opcode, ModRM and an immediate byte.
  static constexpr std::size_t max_length = 8;
  /// Scratch registers for those that ModRM.reg, ModRM.rm and VEX.vvvv name.
  static constexpr std::uint8_t for_reg = 8, for_rm = 9, for_vvvv = 10;
  std::array<std::byte, max_length> code{};
  Encoding encoding;      ///< What `code` is made of.
  std::uint8_t length{};  ///< 1 to `max_length`.
  CpuFeature feature{};
  VectorUnit unit{};
  bool mmx_and_sse{};  ///< Of unit x87, and uses XMM registers too.
  bool waits{};        ///< Raises pending x87 exceptions: all of x87 but the FN forms. SDM 1 8.3.11.
  bool uses_mxcsr{};
  bool makes_halves{};        ///< VCVTPS2PH, which does not heed MXCSR.FZ.
  bool stores_environment{};  ///< FNSTENV, FNSAVE: what they store tells where x87 code ran last.
  bool reads_flags{}, writes_flags{};
  std::uint16_t vectors{}, vectors_written{};  ///< By number, a bit each.
  std::uint16_t vectors_read{};                ///< For SSE also registers that it changes in part.
  std::array<HostGpr, 4> gprs{};
  std::uint8_t gpr_count{};
  std::uint16_t bytes{};  ///< Of the memory operand; 0: none.
  std::uint16_t alignment{1};
  bool stores{};
  bool vex{};
  bool control_in_memory{};  ///< FXRSTOR: its operand holds an MXCSR.

  [[nodiscard]] std::span<const std::byte> instruction() const { return std::span{code}.first(length); }
};

/// `mode` is that of the code; the form itself is always 64-bit code. Empty: the instruction cannot run like this. It
/// is unknown, a system instruction or a branch, or has masked or gathered memory operands.
std::optional<HostForm> host_form(std::span<const std::byte> code, CodeMode mode = CodeMode::bits64);

/// The feature that a CPU needs to know the instruction; empty: every 64-bit CPU knows it, or CpuFeature does not have
/// the feature.
std::optional<CpuFeature> feature_needed(std::span<const std::byte> code, CodeMode mode);

/// What must be enabled for the instruction, whether the host can run it or not. MMX counts as x87, and so do FXSAVE
/// and FXRSTOR.
VectorUnit unit_needed(std::span<const std::byte> code, CodeMode mode);

}  // namespace vpmu::exec
