#include "exec/host_routine.hpp"

#include <array>
#include <initializer_list>

#include "exec/code_writer.hpp"

namespace vpmu::exec {
namespace {

constexpr std::uint32_t upper_at = offsetof(VectorState, upper);
constexpr unsigned vectors_base = 7;                                   // RDI
constexpr unsigned fxsave = 0, fxrstor = 1, ldmxcsr = 2, stmxcsr = 3;  // of 0F AE

/// Sixteen registers of 32 bytes, loaded and stored, are the most that any has.
constexpr std::size_t most_bytes = 1024;

/// Machine code of one routine: VectorState in RDI, the memory operand in RSI, general registers in RDX and then R11,
/// flags in RCX.
class Emitter {
 public:
  explicit Emitter(std::span<std::byte> to) : out_{to} {}
  void bytes(std::initializer_list<unsigned> list) { out_.bytes(list); }
  void instruction(const HostForm& f) { out_.copy(f.instruction()); }
  /// MOV between `scratch` and the guest's register: 8B loads, 89 stores.
  void move_gpr(unsigned opcode, const HostGpr& g) {
    bytes({0x49U | (g.scratch >= 8 ? 4U : 0U), opcode, 0x43U | (g.scratch & 7U) << 3U, 8U * g.guest});
  }
  /// MOVAPS between XMM `n` and the guest's: 28 loads, 29 stores.
  void move_xmm(unsigned opcode, unsigned n, bool vex) {
    if (vex)
      bytes({0xC5, n >= 8 ? 0x78U : 0xF8U, opcode});
    else if (n >= 8)
      bytes({0x44, 0x0F, opcode});
    else
      bytes({0x0F, opcode});
    state_operand(n & 7U, VectorState::xmm_at + 16 * n);
  }
  void load_upper(unsigned n) {  // vinsertf128 $1, upper, %ymm, %ymm
    bytes({0xC4, n >= 8 ? 0x63U : 0xE3U, 0x05U | (~n & 0xFU) << 3U, 0x18});
    state_operand(n & 7U, upper_at + 16 * n);
    bytes({1});
  }
  void store_upper(unsigned n) {  // vextractf128 $1, %ymm, upper
    bytes({0xC4, n >= 8 ? 0x63U : 0xE3U, 0x7D, 0x19});
    state_operand(n & 7U, upper_at + 16 * n);
    bytes({1});
  }
  void state(unsigned operation, bool wide, std::uint32_t at) {  // 0F AE
    if (wide) bytes({0x48});
    bytes({0x0F, 0xAE});
    state_operand(operation, at);
  }
  [[nodiscard]] std::span<const std::byte> written() const { return out_.written(); }

 private:
  void state_operand(unsigned reg, std::uint32_t at) {
    bytes({0x80U | reg << 3U | vectors_base});
    out_.append(at, 4);
  }
  CodeWriter out_;
};

void emit_loads(Emitter& e, const HostForm& f) {
  if (f.unit == VectorUnit::x87) {
    if (f.stores_environment)
      e.bytes({0xDB, 0xE3});  // fninit: what it does not store on some CPUs must not be the host's either
    e.state(fxrstor, true, 0);
  } else {
    if (f.uses_mxcsr) e.state(ldmxcsr, false, VectorState::mxcsr_at);
    for (unsigned n = 0; n < 16; ++n) {
      if ((f.vectors >> n & 1) == 0) continue;
      e.move_xmm(0x28, n, f.vex);
      if (f.vex) e.load_upper(n);
    }
  }
  for (unsigned i = 0; i < f.gpr_count; ++i) e.move_gpr(0x8B, f.gprs[i]);
}

// MULX with the same register twice leaves the high half in it, which ModRM.reg names: the first operand is stored
// last. SDM 2A MULX.
void emit_stores(Emitter& e, const HostForm& f) {
  for (unsigned i = f.gpr_count; i-- > 0;)
    if (f.gprs[i].written) e.move_gpr(0x89, f.gprs[i]);
  if (f.unit == VectorUnit::x87) {
    e.state(fxsave, true, 0);
    return;
  }
  for (unsigned n = 0; n < 16; ++n) {
    if ((f.vectors_written >> n & 1) == 0) continue;
    e.move_xmm(0x29, n, f.vex);
    if (f.vex) e.store_upper(n);
  }
  if (f.uses_mxcsr) e.state(stmxcsr, false, VectorState::mxcsr_at);
}

/// The code around the instruction changes no flags. Empty when it does not fit.
std::span<const std::byte> emit(const HostForm& f, std::span<std::byte> to) {
  Emitter e{to};
  const bool x87 = f.unit == VectorUnit::x87;
  const bool keeps_control = x87 || f.uses_mxcsr;
  e.bytes({0x49, 0x89, 0xD3});                                                // mov %rdx, %r11
  if (keeps_control) e.bytes({0x48, 0x83, 0xEC, 8, 0x0F, 0xAE, 0x1C, 0x24});  // sub $8, %rsp; stmxcsr (%rsp)
  if (x87) e.bytes({0xD9, 0x7C, 0x24, 4});                                    // fnstcw 4(%rsp)
  if (f.reads_flags) e.bytes({0x51, 0x9D});                                   // push %rcx; popfq
  emit_loads(e, f);
  e.instruction(f);
  emit_stores(e, f);
  if (x87) e.bytes({0xDB, 0xE3, 0xD9, 0x6C, 0x24, 4});                              // fninit; fldcw 4(%rsp)
  if (keeps_control) e.bytes({0x0F, 0xAE, 0x14, 0x24, 0x48, 0x8D, 0x64, 0x24, 8});  // ldmxcsr (%rsp); lea 8(%rsp), %rsp
  if (f.writes_flags) e.bytes({0x9C, 0x58});                                        // pushfq; pop %rax
  if (f.unit == VectorUnit::avx) e.bytes({0xC5, 0xF8, 0x77});                       // vzeroupper
  e.bytes({0xC3});
  return e.written();
}

}  // namespace

const HostRoutine* HostRoutines::find(std::span<const std::byte> instruction) {
  if (code_ == nullptr) return nullptr;
  const auto form = host_form(instruction);
  if (!form || !host_has(form->feature) || !guest_has(form->feature)) return nullptr;
  std::array<std::byte, most_bytes> room;
  const std::span<const std::byte> code = emit(*form, room);
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
    slot = std::make_unique<HostRoutine>(HostRoutine{
        .entry = reinterpret_cast<HostRoutine::Entry>(reinterpret_cast<std::uintptr_t>(at)), .form = *form});
  }
  return slot.get();
}

void HostRoutines::clear() {
  routines_.clear();
  if (code_ != nullptr) code_->clear();
  lacked_room_ = false;
}

}  // namespace vpmu::exec
