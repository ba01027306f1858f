#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "decode/instruction_class.hpp"
#include "vpmu/address.hpp"
#include "vpmu/retirement.hpp"

struct kvm_regs;
struct kvm_sregs;

namespace vmm {

/// Bytes. SDM 2A 2.3.11.
constexpr std::size_t longest_instruction = 15;

enum class CodeSize : std::uint8_t { bits16, bits32, bits64 };

/// One memory operand, as far as its address needs it.
struct MemoryOperand {
  std::int8_t base{-1};  ///< Register number 0..15 as encoded (RAX, RCX, RDX, RBX, RSP ...), -1 none, 16 RIP.
  std::int8_t index{-1};
  std::uint8_t scale{1};
  std::int8_t segment{-1};  ///< As encoded (ES, CS, SS, DS, FS, GS); -1 flat, as all but FS and GS are in 64-bit code.
  std::int64_t displacement{};
  std::uint16_t bytes{};
  std::uint8_t address_bytes{8};  ///< The offset's width.
  std::uint8_t linear_bytes{8};   ///< 4 outside 64-bit code, where linear addresses wrap at 4 GiB.
  bool scattered{};               ///< A gather's: elements anywhere, and this is their common base.
};

/// What an instruction does, without its semantics: enough to choose it for a sample and to say what it touched.
struct Instruction {
  std::uint8_t length{};
  bool partial{};     ///< Vector registers or EDX:EAX tell which part of its operand it touches, or where else.
  bool ends_block{};  ///< Control may go elsewhere than to the next instruction.
  bool steppable{};   ///< KVM can single-step it without the guest seeing (no PUSHF, MOV SS, IRET, system calls, I/O
                      ///< ...), and all that it touches is in `load` and `store`.
  bool quiet{};       ///< It neither tells the time nor waits, reaches no port or MSR, and leaves control and debug
                      ///< registers alone.
  bool rep{};         ///< A repeated string instruction: a step would stop inside it.
  vpmu::BranchKind branch{vpmu::BranchKind::none};
  std::optional<MemoryOperand> load;
  std::optional<MemoryOperand> store;
  std::optional<MemoryOperand> flushed;  ///< CLFLUSH, CLFLUSHOPT: checked as a load of a byte, and counted as none.
  bool locked{};
  vpmu::InstructionClass kind{};
  FusionPart fusion{};

  /// What must be readable for it not to fault.
  [[nodiscard]] const std::optional<MemoryOperand>& read() const { return load ? load : flushed; }
};

/// Decodes one instruction; empty when the bytes do not hold a valid one.
std::optional<Instruction> decode_instruction(std::span<const std::byte> bytes, CodeSize size);

/// The instruction's name in lower case, "invalid" when the bytes do not hold one. Lives for ever.
std::string_view mnemonic_of(std::span<const std::byte> bytes, CodeSize size);

/// The instruction in Intel's notation, with its bytes; for messages.
std::string disassemble(std::span<const std::byte> bytes, CodeSize size);

/// Status flags that the manual leaves undefined after the instruction, for one or another of its operands' values. SDM
/// volume 2, "Flags Affected" of each.
std::uint64_t undefined_flags(std::span<const std::byte> bytes, CodeSize size);

/// What an instruction does with the status flags, for all of its operands' values.
struct FlagUse {
  std::uint64_t asked{};      ///< It depends on them, or stores them.
  std::uint64_t given{};      ///< They have a value of its own behind it, always.
  std::uint64_t undefined{};  ///< undefined_flags().
};
FlagUse flag_use(std::span<const std::byte> bytes, CodeSize size);

/// The linear address of an operand of the instruction at `ip`, with the registers before it runs.
vpmu::GuestLinear operand_address(const MemoryOperand& m, const Instruction& instruction, vpmu::GuestLinear ip,
                                  const kvm_regs& regs, const kvm_sregs& sregs);

/// Whether the instruction is one after which a CPU has fewer translations: MOV to a control register, INVLPG. 64-bit
/// code.
bool drops_translations(std::span<const std::byte> instruction);
/// Whether it is WBINVD or INVD, behind which nothing is in a cache. 64-bit code.
bool empties_caches(std::span<const std::byte> instruction);

}  // namespace vmm
