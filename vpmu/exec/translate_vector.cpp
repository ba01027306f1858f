#include <bit>

#include "exec/translator.hpp"
#include "exec/vector_state.hpp"

/// SSE instructions. The guest's registers are in VectorState between blocks; within a block they are host registers
/// from their first use on.
namespace vpmu::exec {
namespace {

constexpr unsigned counts_register = 15;  ///< YMM15: what is left of the counts.

}  // namespace

/// The guest's XMM15 stands in a host register that the block does not use. If there is none, the interpreter runs
/// those instructions.
void Translator::find_places_for_vectors() {
  unsigned used = 0;
  for (std::size_t i = 0; i < count_; ++i)
    if (forms_[i].kind == Kind::vector) used |= forms_[i].vector.used;
  for (unsigned n = 0; n < vector_places_.size(); ++n) vector_places_[n] = static_cast<std::uint8_t>(n);
  unsigned spare = 0;
  while (spare < counts_register && (used >> spare & 1) != 0) ++spare;
  vector_places_[counts_register] = static_cast<std::uint8_t>(spare);
  if (spare < counts_register) return;
  for (std::size_t i = 0; i < count_; ++i)
    if (forms_[i].kind == Kind::vector && (forms_[i].vector.used >> counts_register & 1) != 0)
      forms_[i].kind = Kind::alone;
}

/// VMOVDQA between host registers and VectorState: 6F loads, 7F stores. Changes RCX.
void Translator::move_vectors(unsigned opcode, std::uint16_t which) {
  if (which == 0) return;
  a_.with_memory(0x8B, scratch_c, core_base, in_core(offsetof(Core, vectors)));
  for (unsigned n = 0; n < vector_places_.size(); ++n) {
    if ((which >> n & 1) == 0) continue;
    const unsigned place = vector_places_[n];
    a_.bytes({0xC5, place >= 8 ? 0x79U : 0xF9U, opcode});
    a_.operand(place, scratch_c, static_cast<std::int32_t>(VectorState::xmm_at + 16 * n));
  }
}
void Translator::put_vectors_back() {
  move_vectors(0x7F, vectors_changed_);
  vectors_changed_ = 0;
}
/// The interpreter runs.
void Translator::forget_vectors() {
  vectors_here_ = 0;
  sse_may_run_ = mxcsr_is_here_ = false;
}

/// Once, and once more for the first that heeds MXCSR: the interpreter runs that one instruction otherwise, and finds
/// out whether the next ones may.
HostAssembler::Label Translator::look_whether_it_may_run(std::size_t i) {
  const VectorForm& v = forms_[i].vector;
  const HostAssembler::Label slow = slowly(i);
  const auto look = [&](std::size_t offset) {
    a_.with_memory(0x8B, scratch_c, core_base, in_state(offset));
    a_.jump_unless_rcx_is_0(slow);
  };
  if (v.uses_mxcsr && !mxcsr_is_here_) {
    look(offsetof(CompiledState, no_mxcsr));
    mxcsr_is_here_ = sse_may_run_ = true;
  }
  if (!sse_may_run_) look(offsetof(CompiledState, no_sse));
  sse_may_run_ = true;
  return slow;
}

/// MOV EDX, 64 - bits; RORX RCX, at, bits; SHRX RCX, RCX, RDX: the lowest bits of the address, which must be 0.
void Translator::look_at_alignment(HostRegister at, unsigned alignment, HostAssembler::Label slow) {
  const auto bits = static_cast<unsigned>(std::countr_zero(alignment));
  if (bits == 0) return;
  a_.move_constant(scratch_d, 64 - bits);
  a_.bytes({0xC4, at >= 8 ? 0xC3U : 0xE3U, 0xFB, 0xF0, 0xC0U | unsigned{scratch_c} << 3U | (at & 7U), bits});
  a_.shift_right(scratch_c, scratch_c, scratch_d);
  a_.jump_unless_rcx_is_0(slow);
}

void Translator::vector(std::size_t i) {
  const VectorForm& v = forms_[i].vector;
  const HostAssembler::Label slow = look_whether_it_may_run(i);
  HostRegister at = none;
  if (v.bytes != 0) {
    at = address_of(block_.ops[i]);
    look_at_alignment(at, v.alignment, slow);
    look_up(at, v.bytes, v.stores, slow);
  }
  const auto missing = static_cast<std::uint16_t>(v.read & ~vectors_here_);
  move_vectors(0x6F, missing);
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

// VEX in three bytes. SDM 2A 2.3.5.
void Translator::encode_vector(const VectorForm& v, unsigned reg, unsigned rm, HostRegister at) {
  const bool memory = v.bytes != 0;
  const unsigned base = memory ? at : rm;
  const unsigned vvvv = v.has_vvvv ? vector_places_[v.vvvv % vector_places_.size()] : 0;
  a_.bytes({0xC4, (reg >= 8 ? 0U : 0x80U) | 0x40U | (base >= 8 ? 0U : 0x20U) | v.map,
            (v.wide ? 0x80U : 0U) | (~vvvv & 0xFU) << 3U | v.prefix, v.opcode});
  if (memory)
    found_operand(reg, at);
  else
    a_.bytes({0xC0U | (reg & 7U) << 3U | (rm & 7U)});
  if (v.immediate) a_.bytes({*v.immediate});
}

}  // namespace vpmu::exec
