#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "exec/decode/vector_form.hpp"
#include "exec/state/core.hpp"

namespace vpmu::exec {

/// What an instruction does to the status flags, as far as compiled code needs to know.
enum class FlagUse : std::uint8_t {
  none,
  sets_all,  ///< And reads none.
  reads,     ///< And changes none.
  other,
};

/// An instruction of the guest, as it is to be compiled.
struct GuestForm {
  enum class Kind : std::uint8_t {
    interpreted,  ///< Not compiled: the interpreter goes on here.
    alone,        ///< The interpreter runs it, and compiled code goes on.
    nothing,
    plain,          ///< The same instruction, with host registers and addresses for the guest's.
    shift_count,    ///< SHL, SHR, SAR by a constant.
    shift_cl,       ///< SHL, SHR, SAR by CL.
    rotate,         ///< ROL, ROR by a constant.
    bit,            ///< BT and its like.
    multiply,       ///< IMUL with a destination of its own.
    multiply_wide,  ///< MUL, and IMUL into RDX:RAX.
    lea,
    constant,
    widen,
    sign,
    swap_bytes,
    scan,     ///< BSF, BSR, TZCNT, LZCNT.
    general,  ///< In VEX, of general registers: BMI1, BMI2. See `host`.
    vector,   ///< SSE or AVX: see `vector`.
    x87,      ///< x87 or MMX: see `host`.
    push,
    push_constant,
    pop,
    leave,
    jmp,
    jcc,
    call,
    jmp_indirect,
    call_indirect,
    ret,
  };
  Kind kind{};
  FlagUse flags{FlagUse::other};
  bool memory{};  ///< Has an operand in memory that it loads, stores or both.
  bool stores{};
  std::uint8_t bytes{};  ///< Of the operands. Of those in memory Op::bytes.

  // How it is encoded. SDM 2A 2.1.
  bool prefix_66{};
  std::uint8_t repeat{};  ///< F2 or F3 where it is part of the opcode.
  bool wide{};            ///< REX.W.
  std::uint8_t map{};     ///< 0: one byte; 1: 0F.
  std::uint8_t opcode{};
  bool modrm{};
  bool reg_is_opcode{};  ///< ModRM.reg is part of the opcode.
  std::uint8_t reg{}, rm{};
  bool writes_reg{}, writes_rm{};
  std::uint8_t immediate_bytes{};  ///< At its end.

  VectorForm vector;
  const HostForm* host{};  ///< As the interpreter runs it.

  [[nodiscard]] bool is_flow() const { return kind >= Kind::jmp; }
  /// Whether the interpreter may be needed at this instruction.
  [[nodiscard]] bool may_stop() const { return memory || kind <= Kind::alone || kind >= Kind::vector; }
};

/// How `op`, whose bytes these are, is compiled.
GuestForm guest_form(std::span<const std::byte> code, const Op& op);

/// Whether compiled code can run an x87 or MMX instruction itself.
bool can_run_in_place(const HostForm& host);
/// FLDCW: where the interpreter has run it, exceptions may be unmasked.
bool loads_control_word(const HostForm& host);
/// FNSTSW AX, which names its register without ModRM.
bool is_fnstsw_ax(const HostForm& host);

}  // namespace vpmu::exec
