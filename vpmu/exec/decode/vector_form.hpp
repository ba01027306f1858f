#pragma once
#include <cstdint>
#include <optional>

#include "exec/host/host_form.hpp"

namespace vpmu::exec {

/// An SSE or AVX instruction as compiled code runs it. SSE gets AVX's encoding with 128 bits, because a mix of both is
/// slow on many CPUs. That clears the upper half of the host register, which a block without AVX does not use.
struct VectorForm {
  bool is_avx{};
  bool zeroes_uppers{};  ///< VZEROUPPER; no other field is set then.
  bool wide{};           ///< VEX.L.

  // How it is encoded. SDM 2A 2.3.5.
  std::uint8_t prefix{};  ///< VEX.pp.
  std::uint8_t map{};     ///< VEX.mmmmm.
  bool w{};               ///< VEX.W.
  std::uint8_t opcode{};
  std::optional<std::uint8_t> immediate{};

  std::uint8_t reg{}, rm{};        ///< Of ModRM; rm has no meaning with an operand in memory.
  bool reg_is_gpr{}, rm_is_gpr{};  ///< ModRM.reg or ModRM.rm names a general register, not a vector register.
  bool reg_is_opcode{};            ///< ModRM.reg is part of the opcode.
  bool writes_gpr{};
  /// VEX.vvvv names a register: of SSE instructions the destination, which they read and write.
  bool has_vvvv{};
  std::uint8_t vvvv{};

  std::uint16_t used{}, read{}, written{};  ///< Vector registers by number, a bit each. Reads come first.
  bool uses_mxcsr{};
  bool writes_flags{};  ///< All of the status flags.
  bool stores{};
  std::uint16_t bytes{};  ///< Of the operand in memory; 0: none.
  std::uint16_t alignment{1};
};

/// Empty: it is neither SSE nor AVX, or not one that compiled code runs.
std::optional<VectorForm> vector_form(const HostForm& form);

}  // namespace vpmu::exec
