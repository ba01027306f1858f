#pragma once
#include <optional>

#include "exec/decode/instruction.hpp"
#include "exec/host/host_routine.hpp"
#include "exec/interpret/ops.hpp"

/// One instruction on its way from Zydis to an op, for decode.cpp and decode_vector.cpp.
namespace vpmu::exec {

/// A CMP or TEST, which can become one op with the branch after it.
struct Comparison {
  Alu what;
  Form form;
  unsigned bytes;
};

/// An instruction and the op that it becomes. Large: used again for each instruction.
struct Decoding : DecodedInstruction {
  Decoding(HostRoutines* at, CodeMode is) : routines{at}, mode{is} {}

  Op op;
  struct Found {
    bool ends_block{};
    bool alone{};                    ///< It asks the platform, which may want to know what has been counted.
    std::optional<std::int64_t> to;  ///< Branch target, relative to the block.
    std::optional<Comparison> comparison;
    std::optional<unsigned> jump_if;  ///< A Jcc's condition.
  } found;
  HostRoutines* routines;
  CodeMode mode;

  [[nodiscard]] bool guest_has(CpuFeature feature) const { return routines->guest_has(feature); }
};

/// The byte offset of a general register in Core::r; empty for others.
std::optional<std::uint8_t> offset_of(ZydisRegister reg);
/// Sets `to` to the offset of the register operand `operand`. False: it is no general register.
bool set_register(const Decoding& d, unsigned operand, std::uint8_t& to);
/// Fills in the op's memory operand. False for what address() cannot compute.
bool set_memory(Decoding& d, unsigned operand);
/// Sets the address size in Op::scale.
void note_address_size(Decoding& d);
/// Operand 0 as the destination of an instruction that has only that: a register in d, or memory.
bool set_destination(Decoding& d);
/// Operand `i` as a source: a register in s, or memory.
bool set_source(Decoding& d, unsigned i);

// Of 16- and 32-bit code. Null: it is none of these.
Run narrow_stack_op(Decoding& d);
Run decimal_op(Decoding& d);
/// Whether ENTER has level 0; takes the size of its frame.
bool set_frame(Decoding& d);
/// Near branches without a condition.
Run narrow_branch_op(Decoding& d);
/// LOOP, JCXZ and their like, of any code.
Run loop_op(Decoding& d);

/// x87 and vector instructions, XSAVE and its relatives, and others that are run as the host's own.
Run vector_op(Decoding& d);

}  // namespace vpmu::exec
