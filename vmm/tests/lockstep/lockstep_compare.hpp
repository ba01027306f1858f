#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "decode/instruction.hpp"
#include "exec/engine.hpp"
#include "exec/state/vector_state.hpp"
#include "lockstep/overlay_ram.hpp"

namespace vmm {

/// The first difference between the engine's result and KVM's.
struct Difference {
  std::string what;
  std::uint64_t ours{};    ///< The engine's.
  std::uint64_t theirs{};  ///< KVM's.
};

/// Compares RIP, the general registers except for `uncompared` bits of each, segment bases, and RFLAGS except for
/// `undefined` bits, TF and RF.
std::optional<Difference> register_difference(const vpmu::exec::CpuState& ours, const vpmu::exec::CpuState& theirs,
                                              std::uint64_t undefined, std::uint64_t uncompared = 0);
std::optional<Difference> vector_difference(const vpmu::exec::VectorState& ours, const vpmu::exec::VectorState& theirs);
std::optional<Difference> memory_difference(OverlayRam& ram);

/// Bits of every register in which the two may differ after the instruction. KVM on AMD lets the guest run with the
/// host's CR4.MCE and hides that by an intercept; an emulated AMD host does not intercept the read.
std::uint64_t uncompared_bits(const Instruction& i);
/// Whether it stores x87's last instruction and operand pointers, which the engine does not keep, or says which state
/// components are in use: a CPU may also report one in its initial configuration (SDM 1 13.6).
bool stores_what_may_differ(const Instruction& i);

}  // namespace vmm
