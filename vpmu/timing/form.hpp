#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace vpmu::exec {
struct DecodedInstruction;
}

namespace vpmu::timing {

/// What the rows of instruction_rows.hpp are found by: the mnemonic and the kinds of the operands that assembly shows,
/// in Intel's order and small letters, as "add r64,m64" or "vfmadd231ps y,y,m256". Registers: r8 to r64, x, y, mm, st,
/// `sys` (segment, control and debug registers); memory: m and its bits, or `agen` for LEA's; immediates: `i`, or `1`
/// and `cl` where the opcode says them; `rel` for a branch's distance, `ptr` for a far pointer.
std::string form_of(const exec::DecodedInstruction& i);

struct Form {
  std::string name;
  unsigned length{};  ///< Of the instruction, in bytes.
};
/// The form of the 64-bit instruction that `code` begins with; empty: it is none.
std::optional<Form> read_form(std::span<const std::byte> code);

}  // namespace vpmu::timing
