#pragma once
#include <Zydis/Zydis.h>

#include <array>
#include <cstddef>
#include <optional>
#include <span>

#include "exec/host/host_form.hpp"
#include "exec/state/code_mode.hpp"
#include "exec/state/cpu_feature.hpp"
#include "vpmu/retirement.hpp"

/// What is known of an instruction. All that the project knows of x86 code begins here: bytes become a
/// DecodedInstruction, once, and everything else is a function of that.
namespace vpmu::exec {

/// One instruction as Zydis reads it: raw encoding, operands with their access, and the flags that it reads, writes and
/// leaves undefined. Large: use one again.
struct DecodedInstruction {
  ZydisDecodedInstruction in;
  std::array<ZydisDecodedOperand, ZYDIS_MAX_OPERAND_COUNT> all_operands;
  std::span<const std::byte> code;  ///< Its bytes, which belong to whoever had it read.

  [[nodiscard]] std::span<const ZydisDecodedOperand> operands() const {
    return std::span{all_operands}.first(in.operand_count);
  }
  [[nodiscard]] const ZydisDecodedOperand& at(unsigned i) const { return all_operands[i]; }
  [[nodiscard]] bool is(unsigned i, ZydisOperandType type) const { return i < in.operand_count && at(i).type == type; }
  [[nodiscard]] bool is_register(unsigned i) const { return is(i, ZYDIS_OPERAND_TYPE_REGISTER); }
  [[nodiscard]] bool is_memory(unsigned i) const { return is(i, ZYDIS_OPERAND_TYPE_MEMORY); }
  [[nodiscard]] bool is_immediate(unsigned i) const { return is(i, ZYDIS_OPERAND_TYPE_IMMEDIATE); }
  [[nodiscard]] unsigned bytes(unsigned i) const { return at(i).size / 8U; }
  [[nodiscard]] unsigned visible() const { return in.operand_count_visible; }
  [[nodiscard]] bool has(ZydisInstructionAttributes attributes) const { return (in.attributes & attributes) != 0; }
  [[nodiscard]] bool locked() const { return has(ZYDIS_ATTRIB_HAS_LOCK); }
  [[nodiscard]] bool repeats() const {
    return has(ZYDIS_ATTRIB_HAS_REP | ZYDIS_ATTRIB_HAS_REPE | ZYDIS_ATTRIB_HAS_REPNE);
  }
};

/// Reads the instruction that `code` begins with. False: it is no valid one, or not all there.
bool read_instruction(std::span<const std::byte> code, CodeMode mode, DecodedInstruction& to);

BranchKind branch_kind(const DecodedInstruction& i);

/// What it is for the events that count instructions of a class: instruction_class.hpp.
InstructionClass instruction_class(const DecodedInstruction& i);

/// The sizes of what a gather of AVX2 works on, in bytes: 4 or 8.
struct GatherElements {
  std::uint8_t index, data;
};
/// Empty: it is no such gather.
std::optional<GatherElements> gather_elements(ZydisMnemonic mnemonic);

/// The feature that a CPU must have; empty: it depends on none of CpuFeature.
std::optional<CpuFeature> feature_needed(const DecodedInstruction& i);
/// A hint that does nothing on the CPUs that there are models of, whatever its operands.
bool is_reserved_nop(const DecodedInstruction& i);
/// The feature that the host must have to run the instruction itself; empty: it is of no set that may run so.
std::optional<CpuFeature> host_feature(const DecodedInstruction& i);
/// Whether it works on more of the machine than registers and memory, by its category.
bool is_of_the_system(const DecodedInstruction& i);
/// As host_form() of its bytes.
std::optional<HostForm> host_form(const DecodedInstruction& i);

}  // namespace vpmu::exec
