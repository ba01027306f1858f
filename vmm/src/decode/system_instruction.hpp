#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "decode/instruction.hpp"

namespace vmm {

/// What a processor without KVM does itself, beside what the engine knows.
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
  wbinvd,
  in,
  out,
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
  ud2,
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

/// One system instruction; its memory operand, if any, is that of decode_instruction().
struct SystemInstruction {
  SystemOp op{};
  std::uint8_t length{};
  std::uint8_t gpr{};         ///< The general register of a move, as encoded.
  std::uint8_t special{};     ///< The segment, control or debug register, as encoded; FS or GS, of what reads or writes
                              ///< their bases.
  std::uint8_t bytes{};       ///< Width of a port access, of what a register is read into, or of each word on the stack
                              ///< and in a far pointer; of the base of a descriptor table, of which 2 means 3.
  bool by_dx{};               ///< The port is in DX, not in `immediate`.
  bool has_pointer{};         ///< A far branch by `selector` and `offset`; else they are in memory.
  std::uint16_t immediate{};  ///< Also what RETF takes off the stack.
  std::uint16_t selector{};
  std::uint32_t offset{};
};

/// Whether what it does may make translations stale, even where it leaves control registers as they are. SDM
/// 3A 4.10.4.1.
inline bool changes_translations(const SystemInstruction& i) {
  return i.op == SystemOp::invlpg ||
         (i.op == SystemOp::write_control && (i.special == 0 || i.special == 3 || i.special == 4));
}

/// Empty for everything else.
std::optional<SystemInstruction> decode_system(std::span<const std::byte> bytes, CodeSize size = CodeSize::bits64);
/// Whether only ring 0 may run it. INS and OUTS are taken for such: programs have an I/O privilege level of 0.
bool is_privileged(std::span<const std::byte> bytes, CodeSize size = CodeSize::bits64);
/// Whether the instruction divides: what raises #DE.
bool is_division(std::span<const std::byte> bytes, CodeSize size = CodeSize::bits64);

/// Whether it is a string instruction that REPE and REPNE end early: CMPS, SCAS.
bool is_comparing_string(std::span<const std::byte> bytes, CodeSize size = CodeSize::bits64);

/// What a gather loads from: elements of one vector register, where those of another have their highest bit set.
struct Gather {
  std::uint8_t index{}, mask{};             ///< By number.
  std::uint8_t index_element{}, element{};  ///< Bytes: 4 or 8.
  std::uint8_t count{};                     ///< Of elements.
};
std::optional<Gather> decode_gather(std::span<const std::byte> bytes, CodeSize size);

/// Whether the instruction is of an extension that no guest without KVM has: #UD.
bool is_never_there(std::span<const std::byte> bytes, CodeSize size = CodeSize::bits64);

}  // namespace vmm
