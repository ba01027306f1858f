#include "exec/tests/random_program.hpp"

#include <algorithm>
#include <cstring>

namespace vpmu::exec::test {

void RandomProgram::write() {
  code_.clear();
  blocks_.clear();
  distances_.clear();
  constexpr unsigned count = 24;
  for (unsigned n = 0; n < count; ++n) block();
  put({0x0F, 0x0B});
  for (const std::size_t at : distances_) {
    const auto to = static_cast<std::uint32_t>(blocks_[below(count)] - (at + 4));
    std::memcpy(code_.data() + at, &to, sizeof to);
  }
}

unsigned RandomProgram::any_register() {
  if (one_in(40)) return below(16);
  constexpr std::array<unsigned, 10> others{0, 1, 2, 3, 8, 9, 11, 12, 14, 15};
  return others[below(others.size())];
}

void RandomProgram::put_random(unsigned bytes) {
  for (; bytes > 0; --bytes) put({one_in(2) ? below(256) : below(8)});
}

void RandomProgram::distance_to_a_block() {
  distances_.push_back(code_.size());
  put({0, 0, 0, 0});
}

/// Prefixes, opcode and ModRM, with SIB, displacement and immediate. SDM 2A 2.1.
void RandomProgram::put_operand(const Operand& o) {
  const unsigned rm = o.memory ? pointers[below(pointers.size())] : any_register();
  const bool has_index = o.memory && (rm % 8 == 4 || one_in(6));
  const unsigned index = has_index && one_in(4) ? any_register() : 4;
  if (o.memory && one_in(12)) put({one_in(2) ? 0x64U : 0x65U});
  if (o.prefix != 0) put({o.prefix});
  if (o.bytes == 2) put({0x66});
  const unsigned rex =
      (o.bytes == 8 ? 8U : 0U) | (o.reg >= 8 ? 4U : 0U) | (has_index && index >= 8 ? 2U : 0U) | (rm >= 8 ? 1U : 0U);
  const bool rip_relative = o.memory && !has_index && one_in(12);
  if (rex != 0 || (o.bytes == 1 && !one_in(10)) || one_in(8)) put({0x40U | (rip_relative ? rex & ~1U : rex)});
  code_.insert(code_.end(), o.opcode.begin(), o.opcode.end());
  const unsigned reg = (o.reg & 7U) << 3U;
  if (!o.memory) {
    put({0xC0U | reg | (rm & 7U)});
  } else if (rip_relative) {
    put({reg | 5U});
    put({below(256), 0x10U + below(0x70), 0, 0});
  } else {
    const unsigned mode = rm % 8 == 5 ? 1 + below(2) : below(3);
    put({mode << 6U | reg | (has_index ? 4U : rm & 7U)});
    if (has_index) put({below(4) << 6U | (index & 7U) << 3U | (rm & 7U)});
    if (mode == 1) put({below(256)});
    if (mode == 2) put({below(256), one_in(2) ? 0U : 0xFFU, one_in(20) ? 0x80U : 0U, 0});
    if (mode == 2 && code_[code_.size() - 3] == 0xFF) code_[code_.size() - 2] = code_.back() = 0xFF;
  }
  put_random(o.immediate);
}

void RandomProgram::arithmetic() {
  const unsigned what = below(8);
  const unsigned bytes = any_size();
  const unsigned word = bytes == 1 ? 0 : 1;
  const bool memory = one_in(3);
  switch (below(4)) {
    case 0: return put_operand({bytes, {static_cast<std::uint8_t>(what << 3U | word)}, any_register(), memory});
    case 1: return put_operand({bytes, {static_cast<std::uint8_t>(what << 3U | 2U | word)}, any_register(), memory});
    case 2:
      return put_operand(
          {bytes, {static_cast<std::uint8_t>(0x80U | word)}, what, memory, bytes == 1 ? 1 : std::min(bytes, 4U)});
    default: return put_operand({bytes, {static_cast<std::uint8_t>(bytes == 1 ? 0x80 : 0x83)}, what, memory, 1});
  }
}

void RandomProgram::move() {
  const unsigned bytes = any_size();
  const auto word = static_cast<std::uint8_t>(bytes == 1 ? 0 : 1);
  const bool memory = !one_in(4);
  switch (below(6)) {
    case 0: return put_operand({bytes, {static_cast<std::uint8_t>(0x88 | word)}, any_register(), memory});
    case 1: return put_operand({bytes, {static_cast<std::uint8_t>(0x8A | word)}, any_register(), memory});
    case 2: return put_operand({bytes, {static_cast<std::uint8_t>(0xC6 | word)}, 0, memory, std::min(bytes, 4U)});
    case 3:
      return put_operand({2U << below(3),
                          {0x0F, static_cast<std::uint8_t>(0xB6 | below(2) | below(2) << 3U)},
                          any_register(),
                          memory});
    case 4: return put_operand({4U << below(2), {0x63}, any_register(), memory});
    default: return put_operand({bytes, {static_cast<std::uint8_t>(0x84 | word)}, any_register(), memory});
  }
}

void RandomProgram::shift() {
  const unsigned bytes = any_size();
  const auto word = static_cast<std::uint8_t>(bytes == 1 ? 0 : 1);
  const unsigned what = below(8);
  const bool memory = one_in(4);
  switch (below(3)) {
    case 0: return put_operand({bytes, {static_cast<std::uint8_t>(0xC0 | word)}, what, memory, 1});
    case 1: return put_operand({bytes, {static_cast<std::uint8_t>(0xD0 | word)}, what, memory});
    default: return put_operand({bytes, {static_cast<std::uint8_t>(0xD2 | word)}, what, memory});
  }
}

void RandomProgram::with_one_operand() {
  const unsigned bytes = any_size();
  const auto word = static_cast<std::uint8_t>(bytes == 1 ? 0 : 1);
  const bool memory = one_in(3);
  switch (below(5)) {
    case 0: return put_operand({bytes, {static_cast<std::uint8_t>(0xFE | word)}, below(2), memory});
    case 1: return put_operand({bytes, {static_cast<std::uint8_t>(0xF6 | word)}, 2 + below(4), memory});
    case 2: return put_operand({bytes, {static_cast<std::uint8_t>(0xF6 | word)}, 0, memory, std::min(bytes, 4U)});
    case 3: return put_operand({1, {0x0F, static_cast<std::uint8_t>(0x90 + below(16))}, 0, memory});
    default: return put_operand({2U << below(3), {0x0F, 0xBA}, 4 + below(4), memory, 1});
  }
}

void RandomProgram::with_two_operands() {
  const unsigned bytes = 2U << below(3);
  const bool memory = one_in(3);
  switch (below(7)) {
    case 0: return put_operand({bytes, {0x0F, static_cast<std::uint8_t>(0x40 + below(16))}, any_register(), memory});
    case 1: return put_operand({bytes, {0x0F, 0xAF}, any_register(), memory});
    case 2: return put_operand({bytes, {0x6B}, any_register(), memory, 1});
    case 3: return put_operand({bytes, {0x69}, any_register(), memory, std::min(bytes, 4U)});
    case 4: return put_operand({bytes, {0x0F, static_cast<std::uint8_t>(0xA3 + 8 * below(4))}, any_register(), false});
    case 5:  // BSF, BSR, TZCNT, LZCNT
      return put_operand({bytes,
                          {0x0F, static_cast<std::uint8_t>(0xBC + below(2))},
                          any_register(),
                          memory,
                          0,
                          static_cast<std::uint8_t>(one_in(2) ? 0xF3 : 0)});
    default: return put_operand({bytes, {0x87}, any_register(), false});
  }
}

void RandomProgram::stack() {
  const unsigned reg = any_register();
  switch (below(5)) {
    case 0:
    case 1: return put({0x40U | (reg >= 8 ? 1U : 0U), 0x50U | (reg & 7U)});
    case 2: return put({0x40U | (reg >= 8 ? 1U : 0U), 0x58U | (reg & 7U)});
    case 3: return put({0x6A, below(256)});
    default: return one_in(20) ? put({0xC9}) : put({0x68, below(256), below(256), below(256), below(256)});
  }
}

void RandomProgram::without_memory() {
  const unsigned reg = any_register();
  switch (below(9)) {
    case 0: return put_operand({2U << below(3), {0x8D}, reg, true});
    case 1: return put({0x48U | (reg >= 8 ? 1U : 0U), 0xC8U | (reg & 7U)}), void();
    case 2: put({0x48U | (reg >= 8 ? 1U : 0U), 0xB8U | (reg & 7U)}); return put_random(8);
    case 3: put({0x40U | (reg >= 8 ? 1U : 0U), 0xB8U | (reg & 7U)}); return put_random(4);
    case 4: return put({one_in(3) ? 0x66U : one_in(2) ? 0x48U : 0x40U, 0x98U | below(2)});
    case 5: return put({0x48U | (reg >= 8 ? 1U : 0U), 0x0F, 0xC8U | (reg & 7U)});
    case 6: return put({one_in(3) ? 0xF5U : 0xF8U | below(2)});
    case 7: return put({0x48U | below(2), 0x90U | below(8)});
    default: return put({0x0F, 0x1F, 0x00});
  }
}

/// Among the others, so that compiled code comes and goes.
void RandomProgram::for_the_interpreter() {
  switch (below(6)) {
    case 0: return put({0x0F, 0xB6, 0xC0U | below(8) << 3U | 4U});  // movzx %ah
    case 1: return put_operand({4, {0x01}, any_register(), true, 0, 0xF0});
    case 2: return put_operand({8, {0x0F, 0xC1}, any_register(), true});
    case 3: return put_operand({8, {0x0F, 0xA3}, any_register(), true});
    case 4: return put({0x9C, 0x58});
    default: return put_operand({4U << below(2), {0x0F, 0xB8}, any_register(), one_in(2), 0, 0xF3});
  }
}

void RandomProgram::sse_move(bool memory) {
  const unsigned reg = below(16);
  const auto store = static_cast<std::uint8_t>(below(2));
  const auto prefix = static_cast<std::uint8_t>(one_in(2) ? 0xF2 : 0xF3);
  switch (below(6)) {
    case 0: return put_operand({4, {0x0F, static_cast<std::uint8_t>(0x6F | store << 4U)}, reg, memory, 0, 0xF3});
    case 1: return put_operand({2, {0x0F, static_cast<std::uint8_t>(0x6F | store << 4U)}, reg, memory});
    case 2: return put_operand({4, {0x0F, static_cast<std::uint8_t>(0x10 | store)}, reg, memory, 0, prefix});
    case 3: return put_operand({2U << below(2), {0x0F, static_cast<std::uint8_t>(0x10 | store)}, reg, memory});
    case 4: return put_operand({4, {0x0F, static_cast<std::uint8_t>(0x28 | store)}, reg, memory});
    default:
      return put_operand({2U << below(2), {0x0F, static_cast<std::uint8_t>(0x12 | store | below(2) << 2U)}, reg, true});
  }
}

void RandomProgram::sse_arithmetic(bool memory) {
  const unsigned reg = below(16);
  const auto prefix = static_cast<std::uint8_t>(one_in(2) ? 0xF2 : 0xF3);
  constexpr std::array<std::uint8_t, 12> integer{0x60, 0x62, 0x6C, 0x74, 0x76, 0xD4,
                                                 0xDA, 0xDB, 0xEB, 0xEF, 0xFA, 0xFE};
  switch (below(7)) {
    case 0:
    case 1: return put_operand({2, {0x0F, integer[below(integer.size())]}, reg, memory});
    case 2: return put_operand({2, {0x0F, 0x73}, 2 + 4 * below(2), false, 1});
    case 3: return put_operand({2, {0x0F, 0x70}, reg, memory, 1});
    case 4: return put_operand({2U << below(2), {0x0F, static_cast<std::uint8_t>(0x58 + below(8))}, reg, memory});
    case 5: return put_operand({4, {0x0F, static_cast<std::uint8_t>(0x58 + below(8))}, reg, memory, 0, prefix});
    default: return put_operand({2, {0x0F, 0x38, 0x17}, reg, memory});
  }
}

void RandomProgram::sse_with_general_register(bool memory) {
  const unsigned bytes = 4U << below(2);
  const auto prefix = static_cast<std::uint8_t>(one_in(2) ? 0xF2 : 0xF3);
  switch (below(6)) {
    case 0: return put_operand({2, {0x0F, 0xD7}, any_register(), false});
    case 1: return put_operand({2, {0x0F, static_cast<std::uint8_t>(0x6E | below(2) << 4U)}, below(16), memory});
    case 2: return put_operand({bytes, {0x0F, 0x2A}, below(16), memory, 0, prefix});
    case 3:
      return put_operand(
          {bytes, {0x0F, static_cast<std::uint8_t>(0x2C + below(2))}, any_register(), memory, 0, prefix});
    case 4: return put_operand({2, {0x0F, 0xC4}, below(16), memory, 1});
    default:
      if (!one_in(8)) return put_operand({2U << below(2), {0x0F, 0x2E}, below(16), memory});
      return put_operand({4, {0x0F, 0xAE}, 2 + below(2), true});  // LDMXCSR, STMXCSR
  }
}

void RandomProgram::sse() {
  const bool memory = one_in(2);
  switch (below(3)) {
    case 0: return sse_move(memory);
    case 1: return sse_arithmetic(memory);
    default: return sse_with_general_register(memory);
  }
}

// VEX in three bytes, ModRM and a displacement. SDM 2A 2.3.5.
void RandomProgram::avx() {
  struct Form {
    std::uint8_t map, prefix, opcode;
    bool has_vvvv;
  };
  constexpr std::array<Form, 14> forms{{{1, 0, 0x10, false},
                                        {1, 0, 0x11, false},
                                        {1, 1, 0x6F, false},
                                        {1, 1, 0x7F, false},
                                        {1, 2, 0x6F, false},
                                        {1, 2, 0x7F, false},
                                        {1, 0, 0x58, true},
                                        {1, 1, 0x59, true},
                                        {1, 3, 0x58, true},
                                        {1, 1, 0xEF, true},
                                        {1, 1, 0xFE, true},
                                        {1, 1, 0xDB, true},
                                        {2, 1, 0xB8, true},     // VFMADD231PS
                                        {1, 1, 0xD7, false}}};  // VPMOVMSKB
  if (one_in(16)) return put({0xC5, 0xF8, 0x77});               // VZEROUPPER
  const Form f = forms[below(forms.size())];
  const bool moves_mask = f.opcode == 0xD7;
  const bool memory = !moves_mask && one_in(2);
  const unsigned reg = moves_mask ? any_register() : below(16);
  const unsigned rm = memory ? pointers[below(pointers.size())] : below(16);
  const unsigned vvvv = f.has_vvvv ? below(16) : 0;
  const bool wide = f.prefix != 3 && one_in(2);
  put({0xC4, (reg >= 8 ? 0U : 0x80U) | 0x40U | (rm >= 8 ? 0U : 0x20U) | f.map,
       (~vvvv & 0xFU) << 3U | (wide ? 4U : 0U) | f.prefix, f.opcode,
       (memory ? 0x40U : 0xC0U) | (reg & 7U) << 3U | (rm & 7U)});
  if (memory && rm % 8 == 4) put({0x24});
  if (memory) put({below(256)});
}

/// VEX instructions of general registers. SDM 2A ANDN, BEXTR, BLSI; 2B MULX, PDEP, PEXT, RORX, SARX.
void RandomProgram::bmi() {
  struct Form {
    std::uint8_t map, prefix, opcode;
    unsigned group;  ///< 0: none.
  };
  constexpr std::array<Form, 13> forms{{{2, 0, 0xF2, 0},
                                        {2, 0, 0xF3, 1},
                                        {2, 0, 0xF3, 2},
                                        {2, 0, 0xF3, 3},
                                        {2, 0, 0xF5, 0},
                                        {2, 2, 0xF5, 0},
                                        {2, 3, 0xF5, 0},
                                        {2, 3, 0xF6, 0},
                                        {2, 0, 0xF7, 0},
                                        {2, 1, 0xF7, 0},
                                        {2, 2, 0xF7, 0},
                                        {2, 3, 0xF7, 0},
                                        {3, 3, 0xF0, 0}}};
  const Form f = forms[below(forms.size())];
  const bool memory = one_in(2);
  const bool rotates = f.map == 3;
  const unsigned reg = f.group != 0 ? f.group : any_register();
  const unsigned rm = memory ? pointers[below(pointers.size())] : below(16);
  const unsigned vvvv = rotates ? 0 : any_register();
  put({0xC4, (reg >= 8 ? 0U : 0x80U) | 0x40U | (rm >= 8 ? 0U : 0x20U) | f.map,
       (one_in(2) ? 0x80U : 0U) | (~vvvv & 0xFU) << 3U | f.prefix, f.opcode,
       (memory ? 0x40U : 0xC0U) | (reg & 7U) << 3U | (rm & 7U)});
  if (memory && rm % 8 == 4) put({0x24});
  if (memory) put({below(256)});
  if (rotates) put({below(256)});
}

void RandomProgram::instruction() {
  if (has_vectors_ && one_in(10)) return bmi();
  if (has_vectors_ && one_in(3)) return is_avx_ != one_in(20) ? avx() : sse();
  switch (below(20)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4: return arithmetic();
    case 5:
    case 6:
    case 7:
    case 8:
    case 9: return move();
    case 10:
    case 11: return shift();
    case 12:
    case 13: return with_one_operand();
    case 14:
    case 15: return with_two_operands();
    case 16: return stack();
    case 17:
    case 18: return without_memory();
    default: return one_in(3) ? for_the_interpreter() : arithmetic();
  }
}

/// What linkers put before calls to make them longer.
void RandomProgram::padding() {
  if (one_in(4))
    put({0x66, 0x66, 0x48});
  else if (one_in(4))
    put({0x67});
}

void RandomProgram::flow() {
  switch (below(10)) {
    case 0:
      padding();
      put({0xE9});
      return distance_to_a_block();
    case 1:
      padding();
      put({0xE8});
      return distance_to_a_block();
    case 2: return put({0xC3});
    case 3:
      put({0x48, 0x8D, 0x05});  // lea of a block to RAX
      distance_to_a_block();
      return put({0xFF, one_in(2) ? 0xE0U : 0xD0U});
    case 4:
      put({0x4C, 0x8D, 0x0D});  // lea of a block to R9; push %r9; ret
      distance_to_a_block();
      return put({0x41, 0x51, 0xC3});
    case 5:
      put({0x4C, 0x8D, 0x05});  // lea of a block to R8; mov %r8, 16(%rsi); jmp or call to it
      distance_to_a_block();
      return put({0x4C, 0x89, 0x46, 0x10, 0xFF, one_in(2) ? 0x66U : 0x56U, 0x10});
    case 6: return put({one_in(2) ? 0xE3U : 0xE2U, 0});  // to the next block either way
    default: put({0x0F, 0x80U | below(16)}); return distance_to_a_block();
  }
}

void RandomProgram::block() {
  blocks_.push_back(code_.size());
  is_avx_ = one_in(2);
  for (unsigned n = below(12); n > 0; --n) instruction();
  flow();
}

}  // namespace vpmu::exec::test
