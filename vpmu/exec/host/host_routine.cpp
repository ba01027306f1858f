#include "exec/host/host_routine.hpp"

#include <cstddef>

#include "exec/host/host_assembler.hpp"

namespace vpmu::exec {
namespace {

/// What a routine has from its caller: HostRoutine::Entry. General registers are in R11, once RDX may be in use.
constexpr HostRegister vectors = 7, gprs_given = 2, flags_given = 1, gprs = 11, rsp = 4, result = 0;
constexpr HostAssembler::Memory kept_mxcsr{rsp}, kept_fcw{rsp, 4};
constexpr std::int8_t word = 8;

HostAssembler::Memory gpr_place(const HostGpr& g) { return {gprs, word * g.guest}; }
HostAssembler::Memory xmm_place(unsigned n) {
  return {vectors, static_cast<std::int32_t>(VectorState::xmm_at + 16 * n)};
}
HostAssembler::Memory upper_place(unsigned n) {
  return {vectors, static_cast<std::int32_t>(offsetof(VectorState, upper) + 16 * n)};
}
constexpr HostAssembler::Memory mxcsr_place{vectors, VectorState::mxcsr_at};

void emit_loads(HostAssembler& a, const HostForm& f) {
  if (f.unit == VectorUnit::x87) {
    if (f.stores_environment) a.fninit();  // what it does not store on some CPUs must not be the host's either
    a.fxrstor64({vectors});
  } else {
    if (f.uses_mxcsr) a.ldmxcsr(mxcsr_place);
    for (HostRegister n = 0; n < 16; ++n) {
      if ((f.vectors >> n & 1) == 0) continue;
      if (f.vex)
        a.vmovaps_128(n, xmm_place(n));
      else
        a.movaps(n, xmm_place(n));
      if (f.vex) a.vinsertf128_upper(n, upper_place(n));
    }
  }
  for (unsigned i = 0; i < f.gpr_count; ++i) a.mov(f.gprs[i].scratch, gpr_place(f.gprs[i]));
}

// MULX with the same register twice leaves the high half in it, which ModRM.reg names: the first operand is stored
// last. SDM 2A MULX.
void emit_stores(HostAssembler& a, const HostForm& f) {
  for (unsigned i = f.gpr_count; i-- > 0;)
    if (f.gprs[i].written) a.mov(gpr_place(f.gprs[i]), f.gprs[i].scratch);
  if (f.unit == VectorUnit::x87) return a.fxsave64({vectors});
  for (HostRegister n = 0; n < 16; ++n) {
    if ((f.vectors_written >> n & 1) == 0) continue;
    if (f.vex)
      a.vmovaps_128(xmm_place(n), n);
    else
      a.movaps(xmm_place(n), n);
    if (f.vex) a.vextractf128_upper(upper_place(n), n);
  }
  if (f.uses_mxcsr) a.stmxcsr(mxcsr_place);
}

/// The code around the instruction changes no flags. Empty when it does not fit.
std::span<const std::byte> emit(const HostForm& f, HostAssembler& a) {
  const bool x87 = f.unit == VectorUnit::x87;
  const bool keeps_control = x87 || f.uses_mxcsr;
  a.clear();
  a.mov(gprs, gprs_given);
  if (keeps_control) {
    a.sub(rsp, word);
    a.stmxcsr(kept_mxcsr);
  }
  if (x87) a.fnstcw(kept_fcw);
  if (f.reads_flags) {
    a.push(flags_given);
    a.popfq();
  }
  emit_loads(a, f);
  a.copy(f.instruction());
  emit_stores(a, f);
  if (x87) {
    a.fninit();
    a.fldcw(kept_fcw);
  }
  if (keeps_control) {
    a.ldmxcsr(kept_mxcsr);
    a.lea(rsp, rsp, HostAssembler::none, 0, word);
  }
  if (f.writes_flags) {
    a.pushfq();
    a.pop(result);
  }
  if (f.unit == VectorUnit::avx) a.vzeroupper();
  a.ret();
  return a.finish();
}

}  // namespace

const HostRoutine* HostRoutines::find(const HostForm& form) {
  if (code_ == nullptr || !host_has(form.feature) || !guest_has(form.feature)) return nullptr;
  const std::span<const std::byte> code = emit(form, assembler_);
  if (code.empty()) return nullptr;
  const std::string routine{reinterpret_cast<const char*>(code.data()), code.size()};
  auto& slot = routines_[routine];
  if (slot == nullptr) {
    const std::byte* const at = code_->add(code);
    if (at == nullptr) {
      routines_.erase(routine);
      lacked_room_ = true;
      return nullptr;
    }
    slot = std::make_unique<HostRoutine>(
        HostRoutine{.entry = reinterpret_cast<HostRoutine::Entry>(reinterpret_cast<std::uintptr_t>(at)), .form = form});
  }
  return slot.get();
}

void HostRoutines::clear() {
  routines_.clear();
  if (code_ != nullptr) code_->clear();
  lacked_room_ = false;
}

}  // namespace vpmu::exec
