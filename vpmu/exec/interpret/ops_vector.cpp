#include <bit>
#include <span>

#include "exec/host/host_routine.hpp"
#include "exec/interpret/ops.hpp"
#include "exec/interpret/vector_unit.hpp"
#include "exec/memory/access.hpp"
#include "exec/state/dispatch.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/x86.hpp"

/// x87 and vector instructions: the guest's own instruction runs on this CPU, on the guest's registers.
namespace vpmu::exec {
namespace {

constexpr std::uint64_t xcr0_sse_and_avx = x86::xcr0::SSE::mask | x86::xcr0::AVX::mask;
constexpr unsigned exceptions = VectorState::exceptions, before_computing = 0x7, underflow = 0x10;
constexpr unsigned mxcsr_masks_at = 7;
constexpr std::uint32_t mxcsr_masks = exceptions << mxcsr_masks_at, mxcsr_flushes = 0x8000;
constexpr std::uint64_t flags_always = 0x202;

bool can_run(Core* c, const HostForm& f) {
  return is_enabled(c, f.unit) && (!f.mmx_and_sse || x86::cr4::OSFXSR::test(c->paging.cr4));
}
/// An x87 instruction only notes what it raises: the next one that waits gets #MF. SDM 1 8.6, 8.7. That is so for
/// CR0.NE = 0, too: there is no IGNNE#, and KVM's guests have it as well.
bool gets_mf(const Core* c, const HostForm& f) {
  return f.unit == VectorUnit::x87 && f.waits && c->vectors->has_pending_x87();
}
/// Whether it may raise an SSE exception that the guest has not masked.
bool may_get_xm(const Core* c, const HostForm& f) {
  return f.uses_mxcsr && (c->vectors->mxcsr() & mxcsr_masks) != mxcsr_masks;
}

/// `f` can run: compiled code need not ask again. But it runs what heeds MXCSR only while the guest masks all
/// exceptions.
void let_compiled_code_run(Core* c, const HostForm& f) {
  if (f.control_in_memory) c->compiled.forget_vectors();
  if (f.unit != VectorUnit::sse && f.unit != VectorUnit::avx) return;
  (f.unit == VectorUnit::sse ? c->compiled.no_sse : c->compiled.no_avx) = 0;
  if (f.uses_mxcsr) c->compiled.wants_mxcsr = may_get_xm(c, f) ? 0 : 1;
}

std::byte* stop_at_fault(Core* c) {
  c->stop = Stop::fault;
  return nullptr;
}

/// A copy of the operand.
std::byte* load_copy(Core* c, std::uint64_t at, unsigned bytes) {
  if (crosses_page(at, bytes)) return load_across(c, at, bytes) != nullptr ? c->operand.data() : nullptr;
  const std::byte* const from = find_slow_path(c, at, PagingAccess::read, bytes);
  if (from == nullptr) return nullptr;
  std::memcpy(c->operand.data(), from, bytes);
  return c->operand.data();
}

std::byte* find_to_load(Core* c, std::uint64_t at, const HostForm& f) {
  if (f.control_in_memory) {
    // Another vCPU may change the operand between our look at it and the CPU's.
    std::byte* const copy = load_copy(c, at, f.bytes);
    std::uint32_t mxcsr{};
    if (copy != nullptr) std::memcpy(&mxcsr, copy + VectorState::mxcsr_at, sizeof mxcsr);
    return (mxcsr & ~writable_mxcsr()) == 0 ? copy : stop_at_fault(c);
  }
  if (can_read_fast(c, at, f.bytes)) [[likely]]
    return known_address(c, at);
  return crosses_page(at, f.bytes) ? load_copy(c, at, f.bytes) : find_slow_path(c, at, PagingAccess::read, f.bytes);
}

/// Where the routine is to store: Core::operand, with what stands there now, if that is in two pages.
std::byte* find_to_store(Core* c, std::uint64_t at, const HostForm& f) {
  if (can_write_fast(c, at, f.bytes)) [[likely]]
    return known_address(c, at);
  if (!crosses_page(at, f.bytes)) return find_slow_path(c, at, PagingAccess::write, f.bytes);
  c->across.in_low = page_size - at % page_size;
  c->across.low = find_slow_path(c, at, PagingAccess::write, static_cast<unsigned>(c->across.in_low));
  if (c->across.low == nullptr) return nullptr;
  c->across.high =
      find_slow_path(c, at + c->across.in_low, PagingAccess::write, f.bytes - static_cast<unsigned>(c->across.in_low));
  if (c->across.high == nullptr) return nullptr;
  std::memcpy(c->operand.data(), c->across.low, c->across.in_low);
  std::memcpy(c->operand.data() + c->across.in_low, c->across.high, f.bytes - c->across.in_low);
  return c->operand.data();
}
void store_operand(Core* c, std::size_t bytes) {
  std::memcpy(c->across.low, c->operand.data(), c->across.in_low);
  std::memcpy(c->across.high, c->operand.data() + c->across.in_low, bytes - c->across.in_low);
}

/// `vectors` may be null for an instruction of general registers alone.
std::uint64_t run_routine(Core* c, const HostRoutine& routine, VectorState* vectors, std::byte* memory,
                          std::uint64_t* gprs) {
  return routine.entry(vectors, memory, gprs, routine.form.reads_flags ? c->flags.bits() | flags_always : 0);
}

/// A run of an SSE or AVX instruction on copies, with all exceptions masked.
struct MaskedRun {
  VectorState vectors;
  std::array<std::uint64_t, register_count> gprs;
  std::uint64_t flags{};
  std::array<std::byte, max_operand_bytes> stored;

  /// `flushes`: with MXCSR.FZ.
  MaskedRun(Core* c, const HostRoutine& routine, std::byte* memory, bool flushes) : vectors{*c->vectors}, gprs{c->r} {
    const HostForm& f = routine.form;
    constexpr std::uint32_t others = ~(exceptions | mxcsr_flushes);
    vectors.set_mxcsr((vectors.mxcsr() & others) | mxcsr_masks | (flushes ? mxcsr_flushes : 0));
    if (f.stores) std::memcpy(stored.data(), memory, f.bytes);
    flags = run_routine(c, routine, &vectors, f.stores ? stored.data() : memory, gprs.data());
  }
  [[nodiscard]] unsigned raised() const { return vectors.mxcsr() & exceptions; }
};

/// Whether one of the numbers of 16 bits is denormal.
bool has_denormal_half(std::span<const std::byte> numbers) {
  constexpr std::uint16_t exponent = 0x7C00, fraction = 0x3FF;
  for (std::size_t at = 0; at < numbers.size(); at += sizeof(std::uint16_t)) {
    std::uint16_t number{};
    std::memcpy(&number, numbers.data() + at, sizeof number);
    if ((number & exponent) == 0 && (number & fraction) != 0) return true;
  }
  return false;
}
/// Whether a result is tiny: not masked, underflow is that. Masked, it is a tiny result that is inexact, too, or that
/// FZ makes 0. SDM 1 4.9.1.5, 10.2.3.3; SDM 2C VCVTPS2PH.
bool is_tiny(Core* c, const HostRoutine& routine, std::byte* memory, const MaskedRun& run) {
  const HostForm& f = routine.form;
  if (!f.makes_halves) return (MaskedRun{c, routine, memory, true}.raised() & underflow) != 0;
  if (f.stores) return has_denormal_half(std::span{run.stored}.first(f.bytes));
  const auto to = static_cast<std::size_t>(std::countr_zero(f.vectors_written));
  return has_denormal_half(std::span{run.vectors.legacy}.subspan(VectorState::xmm_at + 16 * to, 16));
}

/// Runs one that may raise an exception that is not masked. False: it raises it, and nothing has changed. SDM 1 11.5.
[[gnu::noinline]] bool run_unmasked(Core* c, const HostRoutine& routine, std::byte* memory) {
  const HostForm& f = routine.form;
  VectorState& guest = *c->vectors;
  const unsigned unmasked = exceptions & ~(guest.mxcsr() >> mxcsr_masks_at);
  const bool traps_underflow = (unmasked & underflow) != 0;
  const MaskedRun run{c, routine, memory, !traps_underflow && (guest.mxcsr() & mxcsr_flushes) != 0};
  unsigned raised = run.raised();
  if (traps_underflow && is_tiny(c, routine, memory, run)) raised |= underflow;
  if ((raised & unmasked) != 0) {
    // One that is found before the computation ends it: SDM 1 11.5.3.
    const bool early = (raised & unmasked & before_computing) != 0;
    c->raised = static_cast<std::uint8_t>(early ? raised & before_computing : raised);
    return false;
  }
  const std::uint32_t mxcsr = guest.mxcsr() | raised;
  guest = run.vectors;
  guest.set_mxcsr(mxcsr);
  c->r = run.gprs;
  if (f.writes_flags) c->flags.set_bits(run.flags);
  if (f.stores) std::memcpy(memory, run.stored.data(), f.bytes);
  return true;
}

enum class Memory : std::uint8_t { none, load, store };

template <Memory M>
void host_op(const Op* op, Core* c) {
  const auto* const routine = std::bit_cast<const HostRoutine*>(op->imm);
  const HostForm& f = routine->form;
  if (!can_run(c, f)) [[unlikely]]
    return leave_for(op, c, Stop::unsupported);
  if (gets_mf(c, f)) [[unlikely]]
    return leave_for(op, c, Stop::float_error);
  let_compiled_code_run(c, f);
  std::byte* memory = nullptr;
  if constexpr (M != Memory::none) {
    const std::uint64_t at = address(op, c);
    if ((at & (f.alignment - 1U)) != 0) [[unlikely]]
      return leave_for(op, c, Stop::fault);
    memory = M == Memory::load ? find_to_load(c, at, f) : find_to_store(c, at, f);
    if (memory == nullptr) [[unlikely]]
      VPMU_LEAVE(op, c);
  }
  if (may_get_xm(c, f)) [[unlikely]] {
    if (!run_unmasked(c, *routine, memory)) return leave_for(op, c, Stop::float_error);
  } else {
    const std::uint64_t flags = run_routine(c, *routine, c->vectors, memory, c->r.data());
    if (f.writes_flags) c->flags.set_bits(flags);
  }
  if (f.unit == VectorUnit::x87) {
    c->vectors->forget_pointers();
    c->compiled.x87_forbidden = c->vectors->masks_all_x87() ? 0 : 1;
    look_at_kick(c);
  }
  if (M == Memory::store && memory == c->operand.data()) store_operand(c, f.bytes);
  VPMU_NEXT(op, c);
}

template <bool Vex>
constexpr VectorUnit unit_of_control = Vex ? VectorUnit::avx : VectorUnit::sse;

template <bool Vex>
void load_mxcsr(const Op* op, Core* c) {
  if (!is_enabled(c, unit_of_control<Vex>)) return leave_for(op, c, Stop::unsupported);
  std::uint32_t value{};
  if (!load(c, address(op, c), value)) VPMU_LEAVE(op, c);
  if ((value & ~writable_mxcsr()) != 0) return leave_for(op, c, Stop::fault);
  c->vectors->set_mxcsr(value);
  c->compiled.forget_vectors();
  VPMU_NEXT(op, c);
}

template <bool Vex>
void store_mxcsr(const Op* op, Core* c) {
  if (!is_enabled(c, unit_of_control<Vex>)) return leave_for(op, c, Stop::unsupported);
  if (!store(c, address(op, c), c->vectors->mxcsr())) VPMU_LEAVE(op, c);
  VPMU_NEXT(op, c);
}

template <bool All>
void vzero(const Op* op, Core* c) {
  if (!is_enabled(c, VectorUnit::avx)) return leave_for(op, c, Stop::unsupported);
  c->compiled.no_avx = 0;
  c->vectors->upper = {};
  if constexpr (All) std::memset(c->vectors->legacy.data() + VectorState::xmm_at, 0, sizeof c->vectors->upper);
  VPMU_NEXT(op, c);
}

// SDM 2D XGETBV; ECX = 1 asks for the components in use.
template <bool InUse>
void xgetbv(const Op* op, Core* c) {
  const auto which = reg<std::uint32_t>(c, rcx * 8);
  if (!x86::cr4::OSXSAVE::test(c->paging.cr4) || which > (InUse ? 1 : 0) || !has_vectors(c))
    return leave_for(op, c, Stop::unsupported);
  if (which == 1 && (c->vectors->xcr0 & ~VectorState::components) != 0) return leave_for(op, c, Stop::unsupported);
  const std::uint64_t value = c->vectors->xcr0 & (which == 1 ? c->vectors->in_use() : ~0ULL);
  set_reg(c, rax * 8, static_cast<std::uint32_t>(value));
  set_reg(c, rdx * 8, static_cast<std::uint32_t>(value >> 32));
  VPMU_NEXT(op, c);
}

}  // namespace

std::uint32_t writable_mxcsr() {
  static const std::uint32_t mask = [] {
    constexpr std::uint32_t without_daz = 0xFFBF;
    VectorState here;
    __asm__ volatile("fxsave64 %0" : "=m"(here.legacy));
    std::uint32_t m{};
    std::memcpy(&m, here.legacy.data() + VectorState::mxcsr_mask_at, sizeof m);
    return m == 0 ? without_daz : m;
  }();
  return mask;
}

bool has_vectors(Core* c) {
  if (c->vectors != nullptr) [[likely]]
    return true;
  VectorState* const got = c->platform->vectors();
  if (got == nullptr || (got->mxcsr() & ~writable_mxcsr()) != 0) return false;
  c->vectors = got;
  return true;
}

bool is_enabled(Core* c, VectorUnit unit) {
  const std::uint64_t cr0 = c->paging.cr0;
  const std::uint64_t cr4 = c->paging.cr4;
  switch (unit) {
    case VectorUnit::none: return true;
    case VectorUnit::x87: return (cr0 & (x86::cr0::EM::mask | x86::cr0::TS::mask)) == 0 && has_vectors(c);
    case VectorUnit::sse:
      return (cr0 & (x86::cr0::EM::mask | x86::cr0::TS::mask)) == 0 && x86::cr4::OSFXSR::test(cr4) && has_vectors(c);
    case VectorUnit::avx:
      return !x86::cr0::TS::test(cr0) && x86::cr4::OSXSAVE::test(cr4) && has_vectors(c) &&
             (c->vectors->xcr0 & xcr0_sse_and_avx) == xcr0_sse_and_avx;
    case VectorUnit::xsave:
      return !x86::cr0::TS::test(cr0) && x86::cr4::OSXSAVE::test(cr4) && has_vectors(c) &&
             (c->vectors->xcr0 & ~VectorState::components) == 0;
  }
  return false;
}

Run op_host(const HostRoutine& routine) {
  if (routine.form.bytes == 0) return host_op<Memory::none>;
  return routine.form.stores ? host_op<Memory::store> : host_op<Memory::load>;
}
const HostRoutine* routine_of(const Op& op) {
  const bool is_one =
      op.run == host_op<Memory::none> || op.run == host_op<Memory::load> || op.run == host_op<Memory::store>;
  return is_one ? std::bit_cast<const HostRoutine*>(op.imm) : nullptr;
}
Run op_ldmxcsr(bool vex) { return vex ? load_mxcsr<true> : load_mxcsr<false>; }
Run op_stmxcsr(bool vex) { return vex ? store_mxcsr<true> : store_mxcsr<false>; }
Run op_vzero(bool all) { return all ? vzero<true> : vzero<false>; }
Run op_xgetbv(bool in_use) { return in_use ? xgetbv<true> : xgetbv<false>; }

}  // namespace vpmu::exec
