#pragma once
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "exec/tests/fixtures/assembled.hpp"
#include "vpmu/address.hpp"

/// Programs of 32-bit code that store the result of each of their instructions in memory.
namespace vpmu::exec::test {

inline constexpr std::size_t code_bytes = 1U << 20, data_bytes = 4 * page_size, slot_bytes = 64;
inline constexpr std::size_t cases = 4000;
inline constexpr std::size_t total = code_bytes + data_bytes + cases * slot_bytes;

/// The words of a result, from the lowest address, in the order of PUSHA: EDI, ESI, EBP, ESP, EBX, EDX, ECX, EAX, the
/// flags; then ESP as the instruction left it.
inline constexpr std::size_t slot_words = 10, flags_word = 8;

/// Each case is one instruction, or a branch and its target, between code that loads all registers and code that stores
/// them.
class NarrowCases {
 public:
  NarrowCases(std::uint64_t seed, std::uint64_t address)
      : random_{seed}, base_{static_cast<std::uint32_t>(address)}, image_(total) {
    for (std::size_t i = 0; i < data_bytes; ++i) image_[code_bytes + i] = static_cast<std::uint8_t>(random_());
  }

  void write() {
    for (std::size_t n = 0; n < cases; ++n) one(n);
    // write(1, base, total); exit(0)
    put(X86_32("mov $4, %eax; mov $1, %ebx"));
    put({0xB9});  // mov to %ecx
    put32(base_);
    put({0xBA});  // mov to %edx
    put32(total);
    system_call_ = here();
    // Until all is written.
    put(X86_32("1: int $0x80; add %eax, %ecx; sub %eax, %edx; mov $4, %eax; test %edx, %edx; jnz 1b"));
    put(X86_32("mov $1, %eax; xor %ebx, %ebx; int $0x80"));
  }
  [[nodiscard]] const std::vector<std::uint8_t>& image() const { return image_; }
  [[nodiscard]] std::uint32_t system_call() const { return system_call_; }
  [[nodiscard]] bool fits() const { return at_ < code_bytes; }
  /// Flags that the manual defines after case `n`.
  [[nodiscard]] std::uint32_t defined_flags(std::size_t n) const { return defined_[n]; }
  [[nodiscard]] std::string describe(std::size_t n) const {
    std::string text = "case " + std::to_string(n) + ":";
    for (std::size_t i = instructions_[n].first; i < instructions_[n].second; ++i) {
      std::array<char, 4> byte{};
      std::snprintf(byte.data(), byte.size(), " %02x", image_[i]);
      text += byte.data();
    }
    return text;
  }

 private:
  static constexpr std::uint32_t af = 0x10, all_flags = 0x8D5 | 0x400;
  unsigned below(unsigned n) { return static_cast<unsigned>(random_() % n); }
  bool one_in(unsigned n) { return below(n) == 0; }
  void put(const std::vector<unsigned>& bytes) {
    for (const unsigned b : bytes) image_[at_++] = static_cast<std::uint8_t>(b);
  }
  void put16(std::uint32_t v) { put({v & 0xFF, v >> 8 & 0xFF}); }
  void put32(std::uint32_t v) {
    put16(v);
    put16(v >> 16);
  }
  [[nodiscard]] std::uint32_t here() const { return base_ + static_cast<std::uint32_t>(at_); }
  [[nodiscard]] std::uint32_t data() const { return base_ + static_cast<std::uint32_t>(code_bytes); }
  /// An address in the data with room on both sides.
  std::uint32_t somewhere() { return data() + 0x1000 + below(0x2000); }

  void one(std::size_t n) {
    for (std::uint32_t& r : r_) r = one_in(2) ? static_cast<std::uint32_t>(random_()) : below(64);
    r_[rsp] = (somewhere() & ~3U) + below(2) * 2;
    r_[rbp] = one_in(2) ? r_[rbp] : somewhere();
    defined_.push_back(all_flags);
    const std::size_t loads = at_;
    at_ += 5 * r_.size() + 6;  // filled in when the case has chosen its registers
    const std::size_t from = at_;
    instruction();
    instructions_.emplace_back(from, at_);
    const std::size_t behind = std::exchange(at_, loads);
    put({0x68});
    const std::uint32_t flags = (static_cast<std::uint32_t>(random_()) & all_flags) | 0x202;
    // Loads the flags by a PUSH and POPF on the stack of the previous case. ESP is loaded afterwards.
    put32(flags);
    put({0x9D});
    for (unsigned r = 0; r < r_.size(); ++r) {
      put({0xB8 + r});
      put32(r_[r]);
    }
    at_ = behind;
    const std::uint32_t slot = data() + static_cast<std::uint32_t>(data_bytes + n * slot_bytes);
    put({0x89, 0x25});
    put32(slot + 4 * (slot_words - 1));
    put({0xBC});
    put32(slot + 4 * (flags_word + 1));
    put(X86_32("pushf; pusha; cld"));
    put({0xBC});
    put32(data() + 0x2000);
  }

  /// ModRM with SIB and displacement: a register, or an address that is in the data, even if the sum wraps.
  void operand(unsigned reg, bool memory, std::uint32_t to) {
    if (!memory) return put({0xC0 | reg << 3 | below(8)});
    const unsigned kind = below(4);
    if (kind == 0) {  // disp32
      put({reg << 3 | 5});
      return put32(to);
    }
    const unsigned base = below(8);
    if (kind == 1 && base != rsp) {
      put({0x80 | reg << 3 | base});
      return put32(to - r_[base]);
    }
    const unsigned index = below(8);
    const unsigned scale = below(4);
    const std::uint32_t scaled = index == rsp ? 0 : r_[index] << scale;
    if (kind == 2) {  // no base
      put({reg << 3 | 4, scale << 6 | index << 3 | 5});
      return put32(to - scaled);
    }
    put({0x80 | reg << 3 | 4, scale << 6 | index << 3 | base});
    put32(to - scaled - r_[base]);
  }
  void segment_prefix() {
    constexpr std::array<unsigned, 4> flat{0x26, 0x2E, 0x36, 0x3E};
    if (one_in(8)) put({flat[below(4)]});
  }
  void immediate(unsigned bytes) {
    for (unsigned i = 0; i < bytes; ++i) put({below(256)});
  }

  void instruction() {
    switch (below(13)) {
      case 0:
      case 1: return arithmetic();
      case 2:
      case 3: return move();
      case 4: return lea();
      case 5:
      case 6: return stack();
      case 7: return stack_of_memory();
      case 8: return string();
      case 9: return loop();
      case 10: return branch();
      case 11: return one_in(2) ? decimal() : others();
      default: return vector();
    }
  }
  void decimal() {
    constexpr std::uint32_t of = 0x800, cf = 1, sf_zf_pf = 0xC4;
    switch (below(6)) {
      case 0: defined_.back() &= ~(of | sf_zf_pf); return put({0x37});
      case 1: defined_.back() &= ~(of | sf_zf_pf); return put({0x3F});
      case 2: defined_.back() &= ~of; return put({0x27});
      case 3: defined_.back() &= ~of; return put({0x2F});
      case 4: defined_.back() &= ~(of | af | cf); return put({0xD4, 1 + below(255)});
      default: defined_.back() &= ~(of | af | cf); return put({0xD5, below(256)});
    }
  }
  void others() {
    switch (below(3)) {
      case 0: {
        const std::uint32_t to = somewhere() & ~7U;
        if (one_in(2)) {  // the comparison succeeds
          std::memcpy(&r_[rax], image_.data() + (to - base_), 4);
          std::memcpy(&r_[rdx], image_.data() + (to + 4 - base_), 4);
        }
        put({0x0F, 0xC7});
        return operand(1, true, to);
      }
      case 1: r_[rbx] = somewhere(); return put({0xD7});
      default:
        if (one_in(3)) put({0x66});
        return put({0xC8, below(256), below(2), 0});
    }
  }
  void arithmetic() {
    const unsigned what = below(8);
    const unsigned size = below(3);  // 8, 16, 32 bits
    const bool logic = what == 1 || what == 4 || what == 6;
    if (logic) defined_.back() &= ~af;
    segment_prefix();
    switch (below(5)) {
      case 0:  // INC and DEC in one byte
        defined_.back() = all_flags;
        if (one_in(2)) put({0x66});
        return put({0x40 + below(16)});
      case 1:
        if (size == 1) put({0x66});
        put({0x80U | (size != 0 ? 1U : 0U)});
        operand(what, one_in(2), somewhere());
        return immediate(1U << size);
      default:
        if (size == 1) put({0x66});
        put({what << 3 | below(2) << 1 | (size != 0 ? 1U : 0U)});
        return operand(below(8), one_in(2), somewhere());
    }
  }
  // What changes memory in one access is not in two pages.
  void move() {
    segment_prefix();
    switch (below(6)) {
      case 0:  // with an address and no ModRM
        if (one_in(3)) put({0x66});
        put({0xA0 + below(4)});
        return put32(somewhere());
      case 1: put({0x0F, 0xB6U | below(2) | below(2) << 3}); return operand(below(8), one_in(2), somewhere());
      case 2: put({0x87}); return operand(below(8), true, somewhere() & ~3U);
      case 3: put({0x0F, 0x40 + below(16)}); return operand(below(8), one_in(2), somewhere());
      case 4: put({0x0F, 0xB1}); return operand(below(8), true, somewhere() & ~3U);
      default:
        if (one_in(3)) put({0x66});
        put({0x88 + below(4)});
        return operand(below(8), true, somewhere());
    }
  }
  void lea() {
    if (one_in(3)) put({0x66});
    if (one_in(2)) {
      put({0x8D});
      return operand(below(8), true, static_cast<std::uint32_t>(random_()));
    }
    const unsigned mode = 1 + below(2);
    put({0x67, 0x8D, mode << 6 | below(8) << 3 | below(8)});
    return immediate(mode);
  }
  void stack() {
    if (one_in(3)) put({0x66});
    switch (below(8)) {
      case 0: return put({0x50 + below(8)});
      case 1: return put({0x58 + below(8)});
      case 2: return put({0x6A, below(256)});
      case 3: return put({0x60});
      case 4: return put({0x61});
      case 5: return put({0x9C});
      case 6:
        if (image_[at_ - 1] == 0x66) --at_;
        r_[rbp] = somewhere();
        return put({0xC9});
      default:
        if (image_[at_ - 1] == 0x66) --at_;
        put({0x68});
        return immediate(4);
    }
  }
  void stack_of_memory() {
    if (one_in(3)) put({0x66});
    if (one_in(2)) {
      put({0xFF});
      return operand(6, true, somewhere());
    }
    // POP with an address by ESP: the sum is 4 or 2 more than it would be before.
    put({0x8F});
    return operand(0, true, somewhere());
  }
  void string() {
    constexpr std::array<unsigned, 5> opcodes{0xA4, 0xA6, 0xAA, 0xAC, 0xAE};
    r_[rcx] = below(40);
    r_[rsi] = somewhere();
    r_[rdi] = one_in(3) ? r_[rsi] + below(8) : somewhere();
    if (one_in(3)) put({0x66});
    if (one_in(6)) put({0x2E});
    if (!one_in(4)) put({0xF2 + below(2)});
    put({opcodes[below(5)] + below(2)});
  }
  void loop() {
    r_[rcx] = one_in(3) ? below(3) : static_cast<std::uint32_t>(random_()) & (one_in(2) ? 0xFFFF'0001U : ~0U);
    if (one_in(3)) put({0x67});
    put({0xE0 + below(4), 1, 0x40});  // over an INC EAX
  }
  void branch() {
    switch (below(7)) {
      case 0: put({0xE8}); return put32(0);
      case 1: put({0x70 + below(16), 1}); return put({0x40});
      case 2: {  // push $behind; ret $8
        put({0x68});
        put32(here() + 4 + 3 + 1);
        return put({0xC2, 8, 0, 0x40});
      }
      case 3: {
        const unsigned reg = below(8);
        if (reg == rsp) return put({0xEB, 0});
        r_[reg] = here() + 2 + 1;
        return put({0xFF, (one_in(2) ? 0xE0U : 0xD0U) | reg, 0x40});
      }
      case 4: {  // movl $behind, there; call or jmp *there
        const std::uint32_t to = somewhere();
        put({0xC7, 0x05});
        put32(to);
        put32(here() + 4 + 6 + 1);
        put({0xFF, one_in(2) ? 0x25U : 0x15U});
        put32(to);
        return put({0x40});
      }
      case 5:
        put({0x0F, 0x80 + below(16)});
        put32(1);
        return put({0x40});
      default:
        put({0xE9});
        put32(1);
        return put({0x40});
    }
  }
  void vector() {
    segment_prefix();
    switch (below(4)) {
      case 0: put({0x66, 0x0F, 0xFE}); return operand(below(8), one_in(2), somewhere() & ~15U);
      case 1: put({0xF3, 0x0F, 0x6F}); return operand(below(8), one_in(2), somewhere());
      case 2: put({0xF3, 0x0F, 0x7F}); return operand(below(8), one_in(2), somewhere());
      default: put({0x66, 0x0F, 0x7E}); return operand(below(8), one_in(2), somewhere());
    }
  }

  std::mt19937_64 random_;
  std::uint32_t base_;
  std::vector<std::uint8_t> image_;
  std::size_t at_{};
  std::uint32_t system_call_{};
  std::array<std::uint32_t, 8> r_{};
  std::vector<std::uint32_t> defined_;
  std::vector<std::pair<std::size_t, std::size_t>> instructions_;
};

}  // namespace vpmu::exec::test
