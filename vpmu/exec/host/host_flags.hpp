#pragma once

namespace vpmu::exec {

/// For which instructions this CPU leaves what the manual does not define, flags above all, in the same state as the
/// interpreter does.
struct HostFlags {
  bool logic{};     ///< AND, OR, XOR, TEST: AF is 0.
  bool shift{};     ///< SHL, SHR, SAR, AF apart: OF as for a last shift by 1.
  bool shift_af{};  ///< SHL, SHR, SAR: AF is 0.
  bool rotate{};    ///< ROL, ROR: OF as for a last rotation by 1.
  bool bit{};       ///< BT and its like change CF alone.
  bool multiply{};  ///< MUL, and IMUL into RDX:RAX, change CF and OF alone.
  bool scan{};      ///< Not flags: BSF and BSR of 0 leave all of their destination.
};
const HostFlags& host_flags();

}  // namespace vpmu::exec
