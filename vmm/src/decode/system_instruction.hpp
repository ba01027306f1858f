#pragma once
#include <cstdint>

namespace vmm {

/// What a processor without KVM does itself, besides what the engine does.
enum class SystemOp : std::uint8_t {
  cpuid,
  rdmsr,
  wrmsr,
  rdtsc,
  rdpmc,
  lgdt,
  lidt,
  sgdt,
  sidt,
  ltr,
  lldt,
  str,
  sldt,
  lar,
  lsl,
  verr,
  verw,
  read_segment,
  write_segment,
  read_control,
  write_control,
  read_debug,
  write_debug,
  clts,
  lmsw,
  smsw,
  invlpg,
  invpcid,
  wbinvd,
  in,
  out,
  ins,
  outs,
  hlt,
  cli,
  sti,
  popf,
  far_jump,
  far_call,
  far_return,
  iret,
  push_segment,
  pop_segment,
  int3,
  int1,
  int_n,
  ud,
  into,
  bound,
  arpl,
  enter,
  load_far_pointer,
  syscall,
  sysret,
  sysenter,
  sysexit,
  swapgs,
  xsetbv,
  xgetbv,
  read_base,
  write_base,
  rdrand,
  rdseed,
};

/// What a system instruction does; its memory operand, if it has one, is that of its Instruction.
struct SystemInstruction {
  SystemOp op{};
  std::uint8_t length{};
  std::uint8_t gpr{};      ///< The general register of a move, as encoded.
  std::uint8_t special{};  ///< The segment, control or debug register, as encoded; FS or GS, of what reads or writes
                           ///< their bases.
  std::uint8_t bytes{};    ///< Width of a port access, of a register read's target, or of each word on the stack
                           ///< and in a far pointer; of the base of a descriptor table, of which 2 means 3.
  bool by_dx{};            ///< The port is in DX, not in `immediate`.
  bool has_pointer{};      ///< A far branch by `selector` and `offset`; else they are in memory.
  bool rep{};              ///< INS and OUTS repeat.
  std::uint8_t address_bytes{};  ///< Of INS and OUTS: the width of their registers.
  std::uint16_t immediate{};  ///< Also the number of bytes that RETF takes off the stack, or that ENTER reserves there.
  std::uint16_t selector{};   ///< ENTER: its level.
  std::uint32_t offset{};
};

/// Whether the instruction makes translations stale that those who compare control registers do not notice: a second
/// MOV to CR4 may undo what the first one has changed. MOV to CR0 in 64-bit code makes none stale. SDM 3A 4.10.4.1.
inline bool changes_translations(const SystemInstruction& i) {
  return i.op == SystemOp::invlpg || i.op == SystemOp::invpcid ||
         (i.op == SystemOp::write_control && (i.special == 3 || i.special == 4));
}

}  // namespace vmm
