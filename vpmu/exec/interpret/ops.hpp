#pragma once
#include "exec/host/host_form.hpp"
#include "exec/state/core.hpp"

/// The ops by what they do and to what: decode.cpp looks them up here. A null answer means that there is no such op.
namespace vpmu::exec {

/// Where operands are: d/s registers, the memory operand, imm.
enum class Form : std::uint8_t { reg_reg, reg_imm, reg_mem, mem_reg, mem_imm };

enum class Alu : std::uint8_t { add, bit_or, adc, sbb, bit_and, sub, bit_xor, cmp, test };
enum class Unary : std::uint8_t { inc, dec, bit_not, neg };
enum class Shift : std::uint8_t { rol, ror, rcl, rcr, shl, shr, sar };
enum class BitOp : std::uint8_t { bt, bts, btr, btc };
enum class Scan : std::uint8_t { bsf, bsr, tzcnt, lzcnt, popcnt };
enum class String : std::uint8_t { movs, stos, lods, scas, cmps };
enum class Repeat : std::uint8_t { none, while_equal, while_not_equal };
enum class Loop : std::uint8_t { loop, while_equal, while_not_equal, jcxz };
/// Of 16- and 32-bit code.
enum class Narrow : std::uint8_t {
  push_all,
  pop_all,
  push_flags,
  pop_flags,
  leave,
  enter,  ///< Of level 0; imm is the frame's size.
  call,
  call_register,
  call_memory,
  jmp_register,
  jmp_memory,
  ret,  ///< imm more bytes off the stack.
};
/// Decimal arithmetic, of 16- and 32-bit code.
enum class Decimal : std::uint8_t { aaa, aas, daa, das, aam, aad, salc };
/// How XSAVE's relatives differ: what they leave out, and how they lay it out. SDM 1 13.7 to 13.12.
enum class XsaveForm : std::uint8_t {
  standard,    ///< XSAVE; XRSTOR.
  optimized,   ///< XSAVEOPT: without what is in its initial configuration.
  compacted,   ///< XSAVEC; XRSTOR of a CPU that has it.
  supervisor,  ///< XSAVES, XRSTORS.
};
/// Of an instruction that reaches a part of its memory operand, or gathers elements. Registers by number.
struct MaskedForm {
  std::uint8_t data{}, mask{}, index{};
  std::uint8_t element{};        ///< Bytes: 1, 4 or 8.
  std::uint8_t index_element{};  ///< Bytes: 4 or 8.
  std::uint8_t count{};          ///< Of elements.
  bool store{};
  VectorUnit unit{};  ///< x87: the registers are MMX ones.
};
static_assert(sizeof(MaskedForm) == 8);

// `bytes`: operand size 1, 2, 4 or 8. `address`: of the memory operand, if there is one.
Run op_alu(Alu what, Form form, unsigned bytes, Address address);
/// CMP or TEST with the Jcc in the op after it; null where there is none.
Run op_compare_and_jump(Alu what, Form form, unsigned bytes, unsigned condition);
Run op_mov(Form form, unsigned bytes, Address address);
/// MOV of the accumulator (d) from or to the address seg + imm.
Run op_mov_absolute(bool store, unsigned bytes);
Run op_unary(Unary what, bool memory, unsigned bytes);
Run op_lea(unsigned bytes, Address address);
/// MOVZX, MOVSX and MOVSXD from `from` to `to` bytes.
Run op_extend(bool sign, bool memory, unsigned from, unsigned to);
Run op_cmov(unsigned condition, bool memory, unsigned bytes);
Run op_setcc(unsigned condition, bool memory);
Run op_xchg_registers(unsigned bytes);
Run op_bswap(unsigned bytes);
/// CBW, CWDE, CDQE (`bytes` of the result) and CWD, CDQ, CQO.
Run op_widen_accumulator(unsigned bytes);
Run op_sign_to_d(unsigned bytes);
Run op_nop();

/// By imm, or by CL. `memory`: the destination.
Run op_shift(Shift what, bool by_cl, bool memory, unsigned bytes);
/// SHLD and SHRD of d by s; imm counts, or CL.
Run op_double_shift(bool left, bool by_cl, bool memory, unsigned bytes);
/// Bit number in imm (`by_register` false) or s. `locked` and `memory` as in LOCK BTS m, r.
Run op_bit(BitOp what, bool by_register, bool memory, bool locked, unsigned bytes);
Run op_scan(Scan what, bool memory, unsigned bytes);

/// MUL, IMUL, DIV and IDIV of the accumulator.
Run op_multiply(bool is_signed, bool memory, unsigned bytes);
Run op_divide(bool is_signed, bool memory, unsigned bytes);
/// IMUL r, r/m and IMUL r, r/m, imm.
Run op_multiply_two(bool memory, bool immediate, unsigned bytes);

/// The LOCK forms, and XCHG, CMPXCHG and XADD, with memory. `locked` false: not atomic.
Run op_locked_alu(Alu what, bool immediate, unsigned bytes);
Run op_locked_unary(Unary what, unsigned bytes);
Run op_xchg_memory(unsigned bytes);
Run op_cmpxchg(bool memory, bool locked, unsigned bytes);
Run op_cmpxchg8b();
Run op_cmpxchg16b();
Run op_xadd(bool memory, bool locked, unsigned bytes);

Run op_push(Form form, unsigned bytes);  ///< reg_reg: s; reg_imm: imm; reg_mem: memory.
Run op_pop(bool memory, unsigned bytes);
Run op_leave();
Run op_enter();  ///< Of level 0; imm is the frame's size.
Run op_xlat();
Run op_pushf(unsigned bytes);
Run op_popf(unsigned bytes);

Run op_jmp();                    ///< To target[0].
Run op_jcc(unsigned condition);  ///< To target[0] if the condition holds, else target[1].
Run op_jmp_indirect(bool memory);
Run op_call();
Run op_call_indirect(bool memory);
Run op_ret();      ///< imm more bytes off the stack.
Run op_end();      ///< No instruction: the block goes on at target[0].
Run op_stepped();  ///< No instruction: stops after the one before.
Run op_loop(Loop what);

/// `is_wide`: with pointers and counts of 64 bits; else as long as addresses are.
Run op_string(String what, Repeat repeat, unsigned bytes, bool is_wide);

// Of 16- and 32-bit code. `bytes`: operand size 2 or 4.
Run op_narrow_push(Form form, unsigned bytes);
Run op_narrow_pop(bool memory, unsigned bytes);
Run op_narrow(Narrow what, unsigned bytes);
Run op_decimal(Decimal what);  ///< imm is the base of AAM and AAD. SALC: AL from CF.

/// CLC, STC, CMC, CLD, STD, CLI: RFLAGS = (RFLAGS & ~imm) ^ disp.
Run op_change_flags();
Run op_lahf();
Run op_sahf();
Run op_rdmsr();
Run op_wrmsr();
Run op_rdpmc();
Run op_rdtsc();
Run op_rdtscp();
Run op_cpuid();
Run op_read_control();  ///< MOV from CR: imm says which.
Run op_switch_stack();
Run op_client_request();
Run op_write_cr8();
Run op_sti();
Run op_swapgs();
Run op_fence();
Run op_flush_line();  ///< CLFLUSH, CLFLUSHOPT.
Run op_prefetch(Prefetch to);
/// Whether the op is a software prefetch: without an observer it does nothing.
bool is_prefetch(const Op& op);
Run op_set_ac(bool on);  ///< STAC, CLAC.
struct HostRoutine;
/// Runs `routine`, which imm must point to.
Run op_host(const HostRoutine& routine);
/// The routine of an op from op_host(); null: it is another op.
const HostRoutine* routine_of(const Op& op);
Run op_ldmxcsr(bool vex);
Run op_stmxcsr(bool vex);
Run op_vzero(bool all);      ///< VZEROALL, VZEROUPPER.
Run op_xgetbv(bool in_use);  ///< `in_use`: ECX may be 1.
Run op_xsave();              ///< XSAVE, XSAVEOPT, XSAVEC, XSAVES: imm is an XsaveForm.
Run op_xrstor();             ///< XRSTOR, XRSTORS: the same; of `standard` where XRSTOR knows no other format.
Run op_masked_move();        ///< VMASKMOV, VPMASKMOV, MASKMOVDQU: imm is a MaskedForm.
Run op_gather();             ///< The same.
/// Stops before itself: the engine does not know this instruction.
Run op_unsupported();

}  // namespace vpmu::exec
