#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "exec/code_writer.hpp"

namespace vpmu::exec {

/// Registers of the host by number. SDM 2A table 2-2.
using HostRegister = std::uint8_t;

/// Writes machine code for 64-bit mode. SDM 2A 2.1, 2.2. None of the instructions that it has names for changes a
/// status flag.
class HostAssembler {
 public:
  /// A place in the code that jumps may go to before it is known.
  using Label = std::size_t;
  static constexpr HostRegister none = 16;

  HostAssembler() = default;
  HostAssembler(const HostAssembler&) = delete;
  HostAssembler& operator=(const HostAssembler&) = delete;
  HostAssembler(HostAssembler&&) = delete;
  HostAssembler& operator=(HostAssembler&&) = delete;
  ~HostAssembler() = default;

  /// More than the longest block needs, by far.
  static constexpr std::size_t most_bytes = 1U << 16;

  void bytes(std::initializer_list<unsigned> list) { code_.bytes(list); }
  void copy(std::span<const std::byte> code) { code_.copy(code); }
  void word32(std::uint64_t value) { code_.append(value, 4); }
  void word64(std::uint64_t value) { code_.append(value, 8); }

  /// MOV between 64-bit registers.
  void move(HostRegister to, HostRegister from) {
    bytes({rex(from, 0, to), 0x89, 0xC0U | (from & 7U) << 3U | (to & 7U)});
  }
  void move_constant(HostRegister to, std::uint64_t value);
  /// `opcode` with a 64-bit register and the memory at base + disp: 8B loads, 89 stores.
  void with_memory(unsigned opcode, HostRegister reg, HostRegister base, std::int32_t disp) {
    bytes({rex(reg, 0, base), opcode});
    operand(reg, base, disp);
  }
  /// LEA; `base`, `index` or both may be none.
  void address(HostRegister to, HostRegister base, HostRegister index, unsigned scale, std::int32_t disp,
               unsigned operand_bytes = 8);
  /// 64 bits at base + 8 * index + disp.
  void load_word(HostRegister to, HostRegister base, HostRegister index, std::int32_t disp) {
    bytes({rex(to, index, base), 0x8B, 0x84U | (to & 7U) << 3U, 0xC0U | (index & 7U) << 3U | (base & 7U)});
    word32(static_cast<std::uint32_t>(disp));
  }
  /// SHRX: to = from >> (count % 64).
  void shift_right(HostRegister to, HostRegister from, HostRegister count) {
    const unsigned extended = (to >= 8 ? 0x80U : 0U) | (from >= 8 ? 0x20U : 0U);
    bytes(
        {0xC4, 0xE2U ^ extended, 0x83U | (~unsigned{count} & 0xFU) << 3U, 0xF7, 0xC0U | (to & 7U) << 3U | (from & 7U)});
  }
  /// The ModRM byte and what belongs to it for memory at base + disp.
  void operand(unsigned reg, HostRegister base, std::int32_t disp);
  static unsigned rex(unsigned reg, unsigned index, unsigned base, bool wide = true) {
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
  std::unique_ptr<std::byte[]> room_{std::make_unique_for_overwrite<std::byte[]>(most_bytes)};
  CodeWriter code_{std::span{room_.get(), most_bytes}};
  std::vector<std::size_t> places_;
  std::vector<Use> uses_;
};

}  // namespace vpmu::exec
