#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "decode/system_instruction.hpp"
#include "exec/decode/macro_fusion.hpp"
#include "exec/state/code_mode.hpp"
#include "vpmu/address.hpp"
#include "vpmu/retirement.hpp"

struct kvm_regs;
struct kvm_sregs;

namespace vmm {

/// Bytes. SDM 2A 2.3.11.
constexpr std::size_t max_instruction_bytes = 15;

using vpmu::exec::CodeMode;

/// One memory operand: what its address is made of.
struct MemoryOperand {
  std::int8_t base{-1};  ///< Register number 0..15 as encoded (RAX, RCX, RDX, RBX, RSP ...), -1 none, 16 RIP.
  std::int8_t index{-1};
  std::uint8_t scale{1};
  std::int8_t segment{-1};  ///< As encoded (ES, CS, SS, DS, FS, GS); -1 flat, as all but FS and GS are in 64-bit code.
  std::int64_t displacement{};
  std::uint16_t bytes{};
  std::uint8_t address_bytes{8};  ///< The offset's width.
  std::uint8_t linear_bytes{8};   ///< 4 outside 64-bit code, where linear addresses wrap at 4 GiB.
  bool scattered{};               ///< Of a gather: its elements may be anywhere, and this is their common base.
};

/// A gather loads the elements whose counterpart in the mask register has its highest bit set.
struct Gather {
  std::uint8_t index{}, mask{};             ///< Vector registers, by number.
  std::uint8_t index_element{}, element{};  ///< Bytes: 4 or 8.
  std::uint8_t count{};                     ///< Of elements.
};

/// How many loads and stores it makes if it makes any: of a string instruction, for each element.
struct AccessCounts {
  std::uint8_t loads{1}, stores{1};
};

/// What an instruction does with the status flags, for all of its operands' values.
struct FlagUse {
  std::uint64_t asked{};      ///< Flags that it depends on or stores.
  std::uint64_t given{};      ///< Flags to which it always gives a value of its own.
  std::uint64_t undefined{};  ///< Flags that the manual leaves undefined for some values of its operands. SDM
                              ///< volume 2, "Flags Affected" of each.
};

/// What ends a repeated string instruction before its count does. SDM 2B REP.
enum class EarlyEnd : std::uint8_t { nothing, difference, equality };

/// What an instruction may raise besides the faults of its memory operands and what a step or a breakpoint raises.
/// SDM 3A table 6-1.
enum class Raises : std::uint8_t {
  nothing,   ///< It only computes, moves or branches in ways that every processor has.
  division,  ///< #DE.
  x87,       ///< #MF and those of `others`.
  others,    ///< #UD, #NM, #XM or #GP.
};

/// What an instruction does, without its semantics: enough to choose it for a sample, to say what it touched, and to
/// run what the processor itself does.
struct Instruction {
  std::uint8_t length{};
  std::string_view mnemonic;  ///< In lower case; lives for ever.
  bool partial{};             ///< Vector registers or EDX:EAX select the part of its operand or the addresses.
  bool ends_block{};          ///< Control may go elsewhere than to the next instruction.
  bool steppable{};      ///< KVM can single-step it without the guest seeing (no PUSHF, MOV SS, IRET, system calls, I/O
                         ///< ...), and all that it touches is in `load` and `store`.
  bool quiet{};          ///< It does not read the time, wait, access ports or MSRs, or write control or debug
                         ///< registers.
  bool rep{};            ///< A repeated string instruction: a step would stop inside it.
  EarlyEnd early_end{};  ///< Of CMPS and SCAS with REPE or REPNE.
  bool stores_flags{};   ///< PUSHF: it would store a TF that a step has set.
  bool privileged{};     ///< Only ring 0 may run it.
  bool never_there{};    ///< Of an extension that no guest without KVM has: #UD.
  bool locked{};
  Raises raises{};
  vpmu::BranchKind branch{vpmu::BranchKind::none};
  vpmu::InstructionClass kind{};
  vpmu::exec::FusionPart fusion{};
  FlagUse flags;
  AccessCounts accesses;  ///< Of a gather: of all its elements.
  std::optional<MemoryOperand> load;
  std::optional<MemoryOperand> store;
  std::optional<MemoryOperand> invalidated;  ///< INVLPG: not accessed.
  std::optional<MemoryOperand> flushed;     ///< CLFLUSH, CLFLUSHOPT: checked like a load of a byte, not counted as one.
  std::optional<MemoryOperand> prefetched;  ///< Of a software prefetch: counted as a load, and never faults.
  std::optional<Gather> gather;
  std::optional<SystemInstruction> system;  ///< What it does beyond registers and memory.

  /// What must be readable for it not to fault.
  [[nodiscard]] const std::optional<MemoryOperand>& read() const { return load ? load : flushed; }
  [[nodiscard]] bool is(SystemOp op) const { return system && system->op == op; }
};

/// Decodes one instruction; empty when the bytes do not hold a valid one.
std::optional<Instruction> decode_instruction(std::span<const std::byte> bytes, CodeMode mode);

/// The instruction's name, as Instruction::mnemonic has it; "invalid" when the bytes do not hold one.
std::string_view mnemonic_of(std::span<const std::byte> bytes, CodeMode mode);

/// The instruction in Intel's notation, with its bytes; for messages.
std::string disassemble(std::span<const std::byte> bytes, CodeMode mode);

/// How the code that the vCPU runs now is decoded. SDM 3A 5.2.1.
CodeMode code_mode(const kvm_sregs& sregs);
/// The linear address of the next instruction: CS has a base outside 64-bit code.
vpmu::GuestLinear instruction_pointer(const kvm_regs& regs, const kvm_sregs& sregs);

/// The linear address of an operand of the instruction at `ip`, with the registers before it runs.
vpmu::GuestLinear operand_address(const MemoryOperand& m, const Instruction& instruction, vpmu::GuestLinear ip,
                                  const kvm_regs& regs, const kvm_sregs& sregs);

}  // namespace vmm
