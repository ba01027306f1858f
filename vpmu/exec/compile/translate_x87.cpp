#include <array>

#include "exec/compile/translator.hpp"

/// x87 and MMX instructions. Their registers are in VectorState until a block uses one. Then they are the host's own,
/// from block to block, until compiled code is left, even for one op: C++ code has the host's state.
namespace vpmu::exec {
/// Where the instruction goes on if its operand is not in the TLB.
HostAssembler::Label Translator::bring_x87(std::size_t i) {
  if (x87_is_here_) return slowly(i);
  put_vectors_back();
  vectors_here_ = 0;
  const HostAssembler::Label slow = slowly(i);
  if (x87_load_count_ == x87_loads_.size()) {
    a_.spoil();
    return slow;
  }
  X87Load& load = x87_loads_[x87_load_count_++];
  load = {.from = a_.label(), .loaded = a_.label(), .slow = slow};
  jump_unless_0({core_base, in_state(offsetof(CompiledState, no_x87))}, load.from);
  a_.here(load.loaded);
  x87_is_here_ = true;
  return slow;
}

void Translator::write_x87_loads() {
  for (std::size_t n = 0; n < x87_load_count_; ++n) {
    const X87Load& load = x87_loads_[n];
    a_.here(load.from);
    a_.mov(scratch_c, {core_base, in_state(offsetof(CompiledState, x87_forbidden))});
    a_.jump_unless_rcx_is_0(load.slow);
    a_.call({core_base, in_state(offsetof(CompiledState, load_x87))});
    a_.jump(load.loaded);
  }
}

/// FLDCW, unless it unmasks an exception. Another vCPU may change the word meanwhile, so the CPU loads a copy.
/// RCX: the six masks, minus all of them, so 0 if all are set.
void Translator::load_control_word(HostRegister at, HostAssembler::Label slow) {
  constexpr unsigned masks = 0x3F;
  constexpr std::int32_t copy = in_state(offsetof(CompiledState, kept_mxcsr));
  a_.movzx_16(scratch_c, found(at));
  a_.mov_32({core_base, copy}, scratch_c);
  a_.mov_constant(scratch_d, masks);
  a_.pext(scratch_c, scratch_c, scratch_d);
  a_.lea(scratch_c, scratch_c, none, 0, -static_cast<std::int32_t>(masks));
  jump_unless_rcx_is_0(slow);
  a_.fldcw({core_base, copy});
}

/// The interpreter's form of it, whose memory operand is at (%rsi).
void Translator::x87(std::size_t i) {
  const HostForm& h = *forms_[i].host;
  const Op& op = block_.ops()[i];
  // That the interpreter can run one of these does not tell that no exception is pending.
  if (!h.waits && !x87_is_here_) return run_alone(i);
  const HostAssembler::Label slow = bring_x87(i);
  if (h.bytes == 0) {
    a_.copy(h.instruction());
    if (is_fnstsw_ax(h)) a_.mov_16(homes[rax], scratch_a);
    return;
  }
  const HostRegister at = address_of(op);
  look_up(at, op.bytes, h.stores, slow);
  if (loads_control_word(h)) return load_control_word(at, slow);
  const Encoding& e = h.encoding;
  a_.bytes({HostAssembler::rex(0, scratch_d, at, false)});
  if (e.map != 0) a_.bytes({0x0F});
  if (e.map == 2) a_.bytes({0x38});
  if (e.map == 3) a_.bytes({0x3A});
  a_.bytes({e.opcode});
  found_operand(e.reg & 7U, at);
  if (e.immediate) a_.bytes({*e.immediate});
}

}  // namespace vpmu::exec
