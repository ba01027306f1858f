#include <bit>

#include "exec/dispatch.hpp"
#include "exec/host_routine.hpp"
#include "exec/ops.hpp"
#include "exec/vector_unit.hpp"
#include "vpmu/bits.hpp"

/// x87 and vector instructions: the guest's own instruction runs on this CPU, on the guest's registers.
namespace vpmu::exec {
namespace {

constexpr std::uint64_t cr0_em = bit(2), cr0_ts = bit(3), cr4_osfxsr = bit(9), cr4_osxsave = bit(18);
constexpr std::uint64_t xcr0_sse_and_avx = VectorState::sse | VectorState::avx;
constexpr std::uint32_t mxcsr_masks = 0x1F80;
constexpr std::uint16_t fcw_masks = 0x3F, fsw_summary = 0x80;
constexpr std::uint64_t flags_always = 0x202;

/// It cannot raise an x87 or SSE floating-point exception: they are all masked, and none is pending.
bool cannot_trap(const Core* c, const HostForm& f) {
  if (f.unit == VectorUnit::x87 && f.waits &&
      ((c->vectors->fcw() & fcw_masks) != fcw_masks || (c->vectors->fsw() & fsw_summary) != 0))
    return false;
  return !f.uses_mxcsr || (c->vectors->mxcsr() & mxcsr_masks) == mxcsr_masks;
}

bool can_run(Core* c, const HostForm& f) {
  return is_enabled(c, f.unit) && cannot_trap(c, f) && (!f.mmx_and_sse || (c->paging.cr4 & cr4_osfxsr) != 0);
}

/// `f` can run: compiled code need not ask again.
void let_compiled_code_run(Core* c, const HostForm& f) {
  if (f.control_in_memory) c->compiled.forget_vectors();
  if (f.unit != VectorUnit::sse && f.unit != VectorUnit::avx) return;
  (f.unit == VectorUnit::sse ? c->compiled.no_sse : c->compiled.no_avx) = 0;
  if (f.uses_mxcsr) c->compiled.wants_mxcsr = 1;
}

std::byte* stop_at_fault(Core* c) {
  c->stop = Stop::fault;
  return nullptr;
}

/// A copy of the operand.
std::byte* load_copy(Core* c, std::uint64_t at, unsigned bytes) {
  if (crosses_page(at, bytes)) return load_across(c, at, bytes) != nullptr ? c->operand.data() : nullptr;
  const std::byte* const from = find_slowly(c, at, PagingAccess::read, bytes);
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
  if (can_read_quickly(c, at, f.bytes)) [[likely]]
    return known_address(c, at);
  return crosses_page(at, f.bytes) ? load_copy(c, at, f.bytes) : find_slowly(c, at, PagingAccess::read, f.bytes);
}

/// Where the routine is to store: Core::operand, with what stands there now, if that is in two pages.
std::byte* find_to_store(Core* c, std::uint64_t at, const HostForm& f) {
  if (can_write_quickly(c, at, f.bytes)) [[likely]]
    return known_address(c, at);
  if (!crosses_page(at, f.bytes)) return find_slowly(c, at, PagingAccess::write, f.bytes);
  c->across.in_low = page_size - at % page_size;
  c->across.low = find_slowly(c, at, PagingAccess::write, static_cast<unsigned>(c->across.in_low));
  if (c->across.low == nullptr) return nullptr;
  c->across.high =
      find_slowly(c, at + c->across.in_low, PagingAccess::write, f.bytes - static_cast<unsigned>(c->across.in_low));
  if (c->across.high == nullptr) return nullptr;
  std::memcpy(c->operand.data(), c->across.low, c->across.in_low);
  std::memcpy(c->operand.data() + c->across.in_low, c->across.high, f.bytes - c->across.in_low);
  return c->operand.data();
}
void store_operand(Core* c, std::size_t bytes) {
  std::memcpy(c->across.low, c->operand.data(), c->across.in_low);
  std::memcpy(c->across.high, c->operand.data() + c->across.in_low, bytes - c->across.in_low);
}

enum class Memory : std::uint8_t { none, load, store };

template <Memory M>
void host_op(const Op* op, Core* c) {
  const auto* const routine = std::bit_cast<const HostRoutine*>(op->imm);
  const HostForm& f = routine->form;
  if (!can_run(c, f)) [[unlikely]]
    return leave_for(op, c, Stop::unsupported);
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
  const std::uint64_t flags =
      routine->entry(c->vectors, memory, c->r.data(), f.reads_flags ? c->flags.bits() | flags_always : 0);
  if (f.writes_flags) c->flags.set_bits(flags);
  if (f.unit == VectorUnit::x87) {
    c->vectors->forget_pointers();
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
  if ((c->paging.cr4 & cr4_osxsave) == 0 || which > (InUse ? 1 : 0) || !has_vectors(c))
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
    case VectorUnit::x87: return (cr0 & (cr0_em | cr0_ts)) == 0 && has_vectors(c);
    case VectorUnit::sse: return (cr0 & (cr0_em | cr0_ts)) == 0 && (cr4 & cr4_osfxsr) != 0 && has_vectors(c);
    case VectorUnit::avx:
      return (cr0 & cr0_ts) == 0 && (cr4 & cr4_osxsave) != 0 && has_vectors(c) &&
             (c->vectors->xcr0 & xcr0_sse_and_avx) == xcr0_sse_and_avx;
    case VectorUnit::xsave:
      return (cr0 & cr0_ts) == 0 && (cr4 & cr4_osxsave) != 0 && has_vectors(c) &&
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
