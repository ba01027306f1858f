#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "exec/host/code_writer.hpp"

namespace vpmu::exec {

/// Registers of the host by number. SDM 2A table 2-2.
using HostRegister = std::uint8_t;

/// Writes machine code for 64-bit mode: the instructions that the engine's own code is made of, by their mnemonics, and
/// what those of the guest need. SDM 2A 2.1 to 2.3, and volume 2 under each mnemonic.
class HostAssembler {
 public:
  /// A place in the code that jumps may go to before it is known.
  using Label = std::size_t;
  static constexpr HostRegister none = 16, ah = 4;  // AH where there is no REX

  /// Memory at base + index + disp.
  struct Memory {
    HostRegister base{};
    std::int32_t disp{};
    HostRegister index{none};
  };

  HostAssembler() = default;
  HostAssembler(const HostAssembler&) = delete;
  HostAssembler& operator=(const HostAssembler&) = delete;
  HostAssembler(HostAssembler&&) = delete;
  HostAssembler& operator=(HostAssembler&&) = delete;
  ~HostAssembler() = default;

  /// More than the longest block needs, by far.
  static constexpr std::size_t max_bytes = 1U << 16;

  void bytes(std::initializer_list<unsigned> list) { code_.bytes(list); }
  void copy(std::span<const std::byte> code) { code_.copy(code); }
  void word32(std::uint64_t value) { code_.append(value, 4); }
  void word64(std::uint64_t value) { code_.append(value, 8); }

  // Of 64-bit operands, where the name says no other size. These change no flag.
  void mov(HostRegister to, HostRegister from) { registers(true, 0x89, from, to); }
  void mov(HostRegister to, Memory from) { with(true, 0x8B, to, from); }
  void mov(Memory to, HostRegister from) { with(true, 0x89, from, to); }
  void mov_constant(HostRegister to, std::uint64_t value);
  void mov_constant(Memory to, std::int32_t value) {
    with(true, 0xC7, 0, to);
    word32(static_cast<std::uint32_t>(value));
  }
  void mov_32(Memory to, HostRegister from) { with(false, 0x89, from, to); }
  void mov_32(HostRegister to, Memory from) { with(false, 0x8B, to, from); }
  /// A register of 16 bits; the upper ones of `to` stay.
  void mov_16(HostRegister to, HostRegister from) {
    bytes({0x66});
    registers(false, 0x89, from, to);
  }
  void movzx_8(HostRegister to, Memory from) { with_0f(false, 0xB6, to, from); }
  /// `from` is one of RAX to RBX.
  void movzx_8(HostRegister to, HostRegister from) { registers_0f(false, 0xB6, to, from); }
  void movzx_16(HostRegister to, Memory from) { with_0f(false, 0xB7, to, from); }
  /// `base`, `index` or both may be none.
  void lea(HostRegister to, HostRegister base, HostRegister index, unsigned scale, std::int32_t disp,
           unsigned operand_bytes = 8);
  /// MOV of the 64 bits at base + 8 * index + disp.
  void mov_indexed(HostRegister to, HostRegister base, HostRegister index, std::int32_t disp) {
    bytes({rex(to, index, base), 0x8B});
    operand_indexed(to, base, index, disp);
  }
  /// The reverse.
  void store_indexed(HostRegister base, HostRegister index, std::int32_t disp, HostRegister from) {
    bytes({rex(from, index, base), 0x89});
    operand_indexed(from, base, index, disp);
  }
  void push(HostRegister reg) { in_opcode(0x50, reg); }
  void pop(HostRegister reg) { in_opcode(0x58, reg); }
  void pushfq() { bytes({0x9C}); }
  void lahf() { bytes({0x9F}); }
  void seto_al() { bytes({0x0F, 0x90, 0xC0}); }
  /// The status flags, as CompiledState::flags has them. By bytes: to put them together in RAX takes longer. Changes
  /// RAX.
  void save_flags(Memory to) {
    with_0f(false, 0x90, 0, to);  // SETO
    lahf();
    with(false, 0x88, ah, {to.base, to.disp + 1});
  }
  void ldmxcsr(Memory from) { with_0f(false, 0xAE, 2, from); }
  void stmxcsr(Memory to) { with_0f(false, 0xAE, 3, to); }
  void fxsave64(Memory to) { with_0f(true, 0xAE, 0, to); }
  void fxrstor64(Memory from) { with_0f(true, 0xAE, 1, from); }
  void fldcw(Memory from) { with(false, 0xD9, 5, from); }
  void fnstcw(Memory to) { with(false, 0xD9, 7, to); }
  void fninit() { bytes({0xDB, 0xE3}); }
  /// to = from >> (count % 64).
  void shrx(HostRegister to, HostRegister from, HostRegister count) { vex_0f38(0xF7, 3, to, count, from); }
  /// to = from shifted by `count` as the shift does whose ModRM.reg is that: 4 SHL, 5 SHR, 7 SAR. By SHLX, SHRX, SARX.
  void shift_by(HostRegister to, HostRegister from, HostRegister count, unsigned shift, bool wide) {
    vex_0f38(0xF7, shift == 4 ? 1 : shift == 5 ? 3 : 2, to, count, from, wide);
  }
  /// to = from rotated right by `bits`.
  void rorx(HostRegister to, HostRegister from, unsigned bits_to_turn) {
    bytes({0xC4, (from >= 8 ? 0xC3U : 0xE3U) ^ (to >= 8 ? 0x80U : 0U), 0xFB, 0xF0, modrm(to, from), bits_to_turn});
  }
  /// The bits of `from` that `mask` selects, side by side.
  void pext(HostRegister to, HostRegister from, HostRegister mask) { vex_0f38(0xF5, 2, to, from, mask); }

  // AVX, of a register's 128 or 256 bits.
  void vmovdqu_256(HostRegister to, Memory from) { vex(2, true, 0x6F, to, from); }
  void vmovdqu_256(Memory to, HostRegister from) { vex(2, true, 0x7F, from, to); }
  void vmovdqa_256(Memory to, HostRegister from) { vex(1, true, 0x7F, from, to); }
  void vmovdqa_128(HostRegister to, Memory from) { vex(1, false, 0x6F, to, from); }
  void vmovdqa_128(Memory to, HostRegister from) { vex(1, false, 0x7F, from, to); }
  /// Clears the upper half of `to`.
  void vmovdqa_128(HostRegister to, HostRegister from) {
    bytes({0xC4, 0xE1U ^ extended(to, from), 0x79, 0x6F, modrm(to, from)});
  }
  void vmovaps_128(HostRegister to, Memory from) { vex(0, false, 0x28, to, from); }
  void vmovaps_128(Memory to, HostRegister from) { vex(0, false, 0x29, from, to); }
  /// The upper half of `to`; its lower half stays.
  void vinsertf128_upper(HostRegister to, Memory from) { vex_0f3a(0x18, to, to, from, 1); }
  void vextractf128_upper(Memory to, HostRegister from) { vex_0f3a(0x19, from, 0, to, 1); }
  void vpxor_128(HostRegister to, HostRegister a, HostRegister b) {
    bytes({0xC4, 0xE1U ^ extended(to, b), (~unsigned{a} & 0xFU) << 3U | 0x01U, 0xEF, modrm(to, b)});
  }
  /// YMM15 minus and plus four words at the label; the sign bits of its four words.
  void vpsubq_ymm15(Label words) { ymm15_and_label(0xFB, words); }
  void vpaddq_ymm15(Label words) { ymm15_and_label(0xD4, words); }
  void vmovmskpd_ymm15(HostRegister to) { bytes({0xC4, 0xC1U ^ extended(to, 0), 0x7D, 0x50, modrm(to, 15)}); }
  void vzeroupper() { bytes({0xC5, 0xF8, 0x77}); }
  // SSE, of 128 bits.
  void movaps(HostRegister to, Memory from) { with_0f(false, 0x28, to, from); }
  void movaps(Memory to, HostRegister from) { with_0f(false, 0x29, from, to); }

  // These change flags.
  void add(HostRegister to, HostRegister from) { registers(true, 0x01, from, to); }
  void add(HostRegister to, std::int8_t value) { group_1(0, to, value); }
  void sub(HostRegister to, std::int8_t value) { group_1(5, to, value); }
  void cmp(Memory with_value, std::int8_t value) {
    with(true, 0x83, 7, with_value);
    bytes({static_cast<std::uint8_t>(value)});
  }
  void cmp(HostRegister a, std::uint32_t value) {
    registers(true, 0x81, 7, a);
    word32(value);
  }
  void test(HostRegister a, HostRegister b) { registers(true, 0x85, b, a); }
  void cmp_with(HostRegister a, HostRegister b) { registers(true, 0x39, b, a); }
  void cmp_with(Memory a, HostRegister b) { with(true, 0x39, b, a); }
  void cmp_8(Memory with_value, std::uint8_t value) {
    with(false, 0x80, 7, with_value);
    bytes({value});
  }
  void neg(HostRegister to) { registers(true, 0xF7, 3, to); }
  void add_32(HostRegister to, HostRegister from) { registers(false, 0x01, from, to); }
  void and_constant(HostRegister to, std::int32_t value) {
    registers(true, 0x81, 4, to);
    word32(static_cast<std::uint32_t>(value));
  }
  void add_32(HostRegister to, std::uint32_t value) { group_1_32(0, to, value); }
  void and_32(HostRegister to, std::uint32_t value) { group_1_32(4, to, value); }
  void xor_32(HostRegister to, std::uint32_t value) { group_1_32(6, to, value); }
  void xor_32(HostRegister to, HostRegister from) { registers(false, 0x31, from, to); }
  /// By 1, as in shift_by().
  void shift_by_1(HostRegister to, unsigned shift, bool wide) { registers(wide, 0xD1, shift, to); }
  void shl(HostRegister to, unsigned count) { group_2(4, to, count); }
  void shr(HostRegister to, unsigned count) { group_2(5, to, count); }
  void test_al() { bytes({0x84, 0xC0}); }
  void add_al(unsigned value) { bytes({0x04, value}); }
  void and_ah(unsigned value) { bytes({0x80, 0xE4, value}); }
  void or_ah_al() { bytes({0x08, 0xC4}); }
  void sahf() { bytes({0x9E}); }
  void popfq() { bytes({0x9D}); }
  /// What save_flags() has saved: OF, which SAHF leaves, by an overflow of AL. Changes RAX.
  void load_flags(Memory from) {
    movzx_8(0, from);
    with(false, 0x8A, ah, {from.base, from.disp + 1});
    add_al(0x7F);
    sahf();
  }

  // Flow.
  void call(Memory to) { with(false, 0xFF, 2, to); }
  void jmp(Memory to) { with(false, 0xFF, 4, to); }
  void jmp(HostRegister to) { registers(false, 0xFF, 4, to); }
  /// To where the 64 bits at base + 8 * index + disp say.
  void jmp_indexed(HostRegister base, HostRegister index, std::int32_t disp) {
    bytes({0xFF});
    operand_indexed(4, base, index, disp);
  }
  void ret() { bytes({0xC3}); }

  // What the encodings of others are made of.
  /// ModRM of two registers.
  static constexpr unsigned modrm(unsigned reg, unsigned rm) { return 0xC0U | (reg & 7U) << 3U | (rm & 7U); }
  /// The ModRM byte and what belongs to it.
  void operand(unsigned reg, Memory memory);
  static constexpr unsigned rex(unsigned reg, unsigned index, unsigned base, bool wide = true) {
    return 0x40U | (wide ? 8U : 0U) | (reg >= 8 ? 4U : 0U) | (index >= 8 && index != none ? 2U : 0U) |
           (base >= 8 ? 1U : 0U);
  }

  Label label() {
    places_.push_back(nowhere);
    return places_.size() - 1;
  }
  void here(Label label) {
    if (label >= places_.size() || places_[label] != nowhere) return code_.spoil();
    places_[label] = code_.size();
  }
  void jump(Label to) {
    bytes({0xE9});
    relative(to);
  }
  void jump_if(unsigned condition, Label to) {
    bytes({0x0F, 0x80U | condition});
    relative(to);
  }
  /// Goes past the jump to `to` if RCX is 0.
  void jump_unless_rcx_is_0(Label to) {
    constexpr unsigned size_of_jump = 5;
    bytes({0xE3, size_of_jump});
    jump(to);
  }
  /// The last four bytes of an instruction: the distance to the label.
  void relative(Label to) {
    uses_.push_back({code_.size(), to});
    word32(0);
  }
  void align(std::size_t to) {
    while (code_.is_whole() && code_.size() % to != 0) bytes({0x90});
  }
  [[nodiscard]] std::size_t size() const { return code_.size(); }
  /// Of a label that finish() has found a place for.
  [[nodiscard]] std::size_t place(Label label) const { return places_[label]; }
  /// For a caller that finds something that it cannot encode.
  void spoil() { code_.spoil(); }
  /// The code, with the distances to all labels. Empty when it found no room, or a label has no place: then it must not
  /// be run.
  std::span<const std::byte> finish();
  void clear() {
    code_.clear();
    places_.clear();
    uses_.clear();
  }

 private:
  static constexpr std::size_t nowhere = ~std::size_t{};
  struct Use {
    std::size_t at;
    Label label;
  };
  /// Inverts R and B of VEX's first byte, and X of an index.
  static constexpr unsigned extended(unsigned reg, unsigned rm, unsigned index = 0) {
    return (reg >= 8 ? 0x80U : 0U) | (index >= 8 && index != none ? 0x40U : 0U) | (rm >= 8 ? 0x20U : 0U);
  }
  /// REX only where it says something.
  void rex_if_needed(bool wide, unsigned reg, unsigned index, unsigned base) {
    if (const unsigned prefix = rex(reg, index, base, wide); prefix != 0x40U) bytes({prefix});
  }
  void with(bool wide, unsigned opcode, unsigned reg, Memory memory) {
    rex_if_needed(wide, reg, memory.index, memory.base);
    bytes({opcode});
    operand(reg, memory);
  }
  void with_0f(bool wide, unsigned opcode, unsigned reg, Memory memory) {
    rex_if_needed(wide, reg, memory.index, memory.base);
    bytes({0x0F, opcode});
    operand(reg, memory);
  }
  void registers(bool wide, unsigned opcode, unsigned reg, unsigned rm) {
    rex_if_needed(wide, reg, none, rm);
    bytes({opcode, modrm(reg, rm)});
  }
  void registers_0f(bool wide, unsigned opcode, unsigned reg, unsigned rm) {
    rex_if_needed(wide, reg, none, rm);
    bytes({0x0F, opcode, modrm(reg, rm)});
  }
  void in_opcode(unsigned opcode, HostRegister reg) {
    rex_if_needed(false, 0, none, reg);
    bytes({opcode | (reg & 7U)});
  }
  void group_1(unsigned operation, HostRegister to, std::int8_t value) {
    registers(true, 0x83, operation, to);
    bytes({static_cast<std::uint8_t>(value)});
  }
  void group_1_32(unsigned operation, HostRegister to, std::uint32_t value) {
    registers(false, 0x81, operation, to);
    word32(value);
  }
  void group_2(unsigned operation, HostRegister to, unsigned count) {
    registers(true, 0xC1, operation, to);
    bytes({count});
  }
  /// VEX of map 0F in two bytes, or in three where the operand needs them; `pp` as SDM 2A table 2-9.
  void vex(unsigned pp, bool wide, unsigned opcode, unsigned reg, Memory memory) {
    const unsigned low = 0x78U | (wide ? 4U : 0U) | pp;
    if (memory.base >= 8 || (memory.index >= 8 && memory.index != none))
      bytes({0xC4, 0xE1U ^ extended(reg, memory.base, memory.index), low, opcode});
    else
      bytes({0xC5, (reg >= 8 ? 0U : 0x80U) | low, opcode});
    operand(reg, memory);
  }
  void vex_0f38(unsigned opcode, unsigned pp, unsigned reg, unsigned vvvv, unsigned rm, bool wide = true) {
    bytes({0xC4, 0xE2U ^ extended(reg, rm), (wide ? 0x80U : 0U) | (~vvvv & 0xFU) << 3U | pp, opcode, modrm(reg, rm)});
  }
  /// Of 256 bits, with an immediate.
  void vex_0f3a(unsigned opcode, unsigned reg, unsigned vvvv, Memory memory, unsigned immediate) {
    bytes({0xC4, 0xE3U ^ extended(reg, memory.base, memory.index), (~vvvv & 0xFU) << 3U | 0x05U, opcode});
    operand(reg, memory);
    bytes({immediate});
  }
  void ymm15_and_label(unsigned opcode, Label words) {
    bytes({0xC5, 0x05, opcode, 0x3D});
    relative(words);
  }
  void operand_indexed(unsigned reg, HostRegister base, HostRegister index, std::int32_t disp) {
    bytes({0x84U | (reg & 7U) << 3U, 0xC0U | (index & 7U) << 3U | (base & 7U)});
    word32(static_cast<std::uint32_t>(disp));
  }

  std::unique_ptr<std::byte[]> room_{std::make_unique_for_overwrite<std::byte[]>(max_bytes)};
  CodeWriter code_{std::span{room_.get(), max_bytes}};
  std::vector<std::size_t> places_;
  std::vector<Use> uses_;
};

}  // namespace vpmu::exec
