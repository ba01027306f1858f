#include <algorithm>
#include <bit>
#include <span>

#include "exec/compile/translator.hpp"
#include "exec/state/vector_state.hpp"

/// SSE and AVX instructions. The guest's registers are in VectorState between blocks; within a block they are host
/// registers from their first use on.
namespace vpmu::exec {
namespace {

constexpr unsigned counts_register = 15;  ///< YMM15: what is left of the counts.

}  // namespace

/// The guest's register 15 is in a host register that the block does not use, and the 0 for VZEROUPPER in another.
/// Without such a register, the interpreter runs what needs it. In a block with AVX it also runs SSE instructions,
/// which must leave upper halves as they are.
void Translator::find_places_for_vectors() {
  const auto all = std::span{forms_}.first(count_);
  const auto is_vector = [](const GuestForm& f) { return f.kind == Kind::vector; };
  uppers_too_ = std::ranges::any_of(
      all, [&](const GuestForm& f) { return is_vector(f) && f.vector.is_avx && !f.vector.zeroes_uppers; });
  unsigned used = 0;
  for (GuestForm& f : all) {
    if (!is_vector(f)) continue;
    if (uppers_too_ && !f.vector.is_avx)
      f.kind = Kind::alone;
    else
      used |= f.vector.used;
  }
  std::array<std::uint8_t, 2> spare{none, none};
  std::size_t found = 0;
  for (std::uint8_t n = 0; n < counts_register && found < spare.size(); ++n)
    if ((used >> n & 1) == 0) spare[found++] = n;
  const bool uses_15 = (used >> counts_register & 1) != 0;
  for (std::uint8_t n = 0; n < counts_register; ++n) vector_places_[n] = n;
  vector_places_[counts_register] = spare[0];
  zero_vector_ = spare[uses_15 ? 1 : 0];
  for (GuestForm& f : all) {
    const bool needs_15 = (f.vector.used >> counts_register & 1) != 0;
    const bool lacks_one = (needs_15 && spare[0] == none) || (f.vector.zeroes_uppers && zero_vector_ == none);
    if (is_vector(f) && lacks_one) f.kind = Kind::alone;
  }
}

/// Between host registers and VectorState. Changes RCX.
void Translator::move_vectors(bool store, std::uint16_t which) {
  if (which == 0) return;
  find_vector_state();
  for (unsigned n = 0; n < vector_places_.size(); ++n) {
    if ((which >> n & 1) == 0) continue;
    const HostRegister place = vector_places_[n];
    const HostAssembler::Memory low{scratch_c, static_cast<std::int32_t>(VectorState::xmm_at + 16 * n)};
    const HostAssembler::Memory upper{scratch_c, static_cast<std::int32_t>(offsetof(VectorState, upper) + 16 * n)};
    if (store) {
      a_.vmovdqa_128(low, place);
      if (uppers_too_) a_.vextractf128_upper(upper, place);
    } else {
      a_.vmovdqa_128(place, low);
      if (uppers_too_) a_.vinsertf128_upper(place, upper);
    }
  }
}
void Translator::find_vector_state() { a_.mov(scratch_c, {core_base, in_core(offsetof(Core, vectors))}); }
void Translator::put_vectors_back() {
  move_vectors(true, vectors_changed_);
  vectors_changed_ = 0;
}
/// The interpreter is going to run.
void Translator::forget_vectors() {
  vectors_here_ = 0;
  sse_may_run_ = avx_may_run_ = mxcsr_is_here_ = x87_is_here_ = false;
}

/// Checks whether such code may run: once, and once more at the first instruction that heeds MXCSR. If not, the
/// interpreter runs that one instruction, and finds out whether the next ones may.
HostAssembler::Label Translator::look_whether_it_may_run(std::size_t i) {
  const VectorForm& v = forms_[i].vector;
  const HostAssembler::Label slow = slowly(i);
  const auto look = [&](std::size_t offset) { jump_unless_0({core_base, in_state(offset)}, slow); };
  bool& may_run = v.is_avx ? avx_may_run_ : sse_may_run_;
  if (!may_run) look(v.is_avx ? offsetof(CompiledState, no_avx) : offsetof(CompiledState, no_sse));
  may_run = true;
  if (v.uses_mxcsr && !mxcsr_is_here_) {
    look(offsetof(CompiledState, no_mxcsr));
    mxcsr_is_here_ = true;
  }
  return slow;
}

/// The lowest bits of the address must be 0: they come to be the highest, and then alone.
void Translator::look_at_alignment(HostRegister at, unsigned alignment, HostAssembler::Label slow) {
  const auto bits = static_cast<unsigned>(std::countr_zero(alignment));
  if (bits == 0) return;
  a_.mov_constant(scratch_d, 64 - bits);
  a_.rorx(scratch_c, at, bits);
  a_.shrx(scratch_c, scratch_c, scratch_d);
  jump_unless_rcx_is_0(slow);
}

void Translator::vector(std::size_t i) {
  const VectorForm& v = forms_[i].vector;
  const HostAssembler::Label slow = look_whether_it_may_run(i);
  if (v.zeroes_uppers) return zero_uppers();
  HostRegister at = none;
  if (v.bytes != 0) {
    at = address_of(block_.ops()[i]);
    look_at_alignment(at, v.alignment, slow);
    look_up(at, v.bytes, v.stores, slow);
  }
  const auto missing = static_cast<std::uint16_t>(v.read & ~vectors_here_);
  move_vectors(false, missing);
  vectors_here_ |= v.used;
  vectors_changed_ |= v.written;
  // A general register is one of the two, and then no address is needed beside it, or it is stored to memory.
  const auto place_of = [&](std::uint8_t number, bool is_gpr) -> HostRegister {
    if (!is_gpr) return vector_places_[number % vector_places_.size()];
    return v.writes_gpr ? place(number, scratch_c) : read(number, scratch_c);
  };
  const HostRegister reg = v.reg_is_opcode ? v.reg : place_of(v.reg, v.reg_is_gpr);
  const HostRegister rm = v.bytes != 0 ? HostRegister{} : place_of(v.rm, v.rm_is_gpr);
  encode_vector(v, reg, rm, at);
  if (v.writes_gpr) written(v.reg_is_gpr ? v.reg : v.rm, v.reg_is_gpr ? reg : rm);
}

// All upper halves become those of a register that the block does not use; a move of 128 bits to itself clears the
// upper half of a register.
void Translator::zero_uppers() {
  a_.vpxor_128(zero_vector_, zero_vector_, zero_vector_);
  find_vector_state();
  for (std::size_t at = 0; at < sizeof VectorState::upper; at += 32)
    a_.vmovdqa_256({scratch_c, static_cast<std::int32_t>(offsetof(VectorState, upper) + at)}, zero_vector_);
  for (unsigned n = 0; n < vector_places_.size(); ++n)
    if ((vectors_here_ >> n & 1) != 0) a_.vmovdqa_128(vector_places_[n], vector_places_[n]);
}

// VEX in three bytes. SDM 2A 2.3.5.
void Translator::encode_vector(const VectorForm& v, unsigned reg, unsigned rm, HostRegister at) {
  const bool memory = v.bytes != 0;
  const unsigned base = memory ? at : rm;
  const unsigned vvvv = v.has_vvvv ? vector_places_[v.vvvv % vector_places_.size()] : 0;
  a_.bytes({0xC4, (reg >= 8 ? 0U : 0x80U) | 0x40U | (base >= 8 ? 0U : 0x20U) | v.map,
            (v.w ? 0x80U : 0U) | (~vvvv & 0xFU) << 3U | (v.wide ? 4U : 0U) | v.prefix, v.opcode});
  if (memory)
    found_operand(reg, at);
  else
    a_.bytes({HostAssembler::modrm(reg, rm)});
  if (v.immediate) a_.bytes({*v.immediate});
}

}  // namespace vpmu::exec
