#include <atomic>

#include "exec/dispatch.hpp"
#include "exec/ops.hpp"
#include "exec/system.hpp"
#include "exec/tap.hpp"
#include "vpmu/bits.hpp"

namespace vpmu::exec {
namespace {

constexpr std::uint64_t cr4_tsd = bit(2);
constexpr std::uint64_t iopl = 3U << 12, identification = bit(21);
/// What POPF changes in ring 0 besides the status flags, TF apart.
constexpr std::uint64_t changeable = rflags::IF | rflags::DF | iopl | rflags::NT | rflags::AC | identification;

void set_other_flags(Core& core, std::uint64_t value) {
  const bool ac = (value & rflags::AC) != 0;
  core.other_flags = value;
  if (ac == core.paging.alignment_check) return;
  core.paging.alignment_check = ac;  // under SMAP it decides what may be reached
  choose_tlb(&core);
}

void change_flags(const Op* op, Core* c) {
  const std::uint64_t before = c->other_flags | c->flags.bits();
  const std::uint64_t after =
      (before & ~static_cast<std::uint64_t>(op->imm)) ^ static_cast<std::uint64_t>(std::int64_t{op->disp});
  if ((static_cast<std::uint64_t>(op->imm) & rflags::IF) != 0 && c->cpl != 0)
    return leave_for(op, c, Stop::unsupported);  // CLI
  c->flags.set_bits(after);
  c->other_flags = after & ~rflags::status;
  VPMU_NEXT(op, c);
}

constexpr std::uint64_t ah_flags = rflags::SF | rflags::ZF | rflags::AF | rflags::PF | rflags::CF;

void lahf(const Op* op, Core* c) {
  constexpr std::uint64_t always_one = 2;
  set_reg(c, rax * 8 + 1, static_cast<std::uint8_t>((c->flags.bits() & ah_flags) | always_one));
  VPMU_NEXT(op, c);
}
void sahf(const Op* op, Core* c) {
  c->flags.set_bits((c->flags.bits() & rflags::OF) | (reg<std::uint8_t>(c, rax * 8 + 1) & ah_flags));
  VPMU_NEXT(op, c);
}

// The platform may look at the machine, so RIP must be right. Its answer goes to Core::answer: an op that passes out
// the address of a variable could not end in a tail call.
template <class Ask>
bool asks(const Op* op, Core* c, Ask ask) {
  c->rip = c->block->rip + op->offset;
  c->stop = Stop::platform;
  return ask(*c->platform) == Answer::done;
}
template <class Ask>
bool asks_in_ring_0(const Op* op, Core* c, Ask ask) {
  return asks(op, c, [&](Platform& p) { return c->cpl == 0 ? ask(p) : Answer::leave; });
}

void set_edx_eax(Core* c, std::uint64_t value) {
  set_reg(c, rax * 8, static_cast<std::uint32_t>(value));
  set_reg(c, rdx * 8, static_cast<std::uint32_t>(value >> 32));
}

void rdmsr(const Op* op, Core* c) {
  if (!asks_in_ring_0(op, c, [&](Platform& p) { return p.rdmsr(reg<std::uint32_t>(c, rcx * 8), c->answer); }))
    VPMU_LEAVE(op, c);
  set_edx_eax(c, c->answer);
  VPMU_NEXT(op, c);
}
// Ends its block: after what it changed, the engine may have to stop.
void wrmsr(const Op* op, Core* c) {
  const std::uint64_t value = std::uint64_t{reg<std::uint32_t>(c, rdx * 8)} << 32 | reg<std::uint32_t>(c, rax * 8);
  if (!asks_in_ring_0(op, c, [&](Platform& p) { return p.wrmsr(reg<std::uint32_t>(c, rcx * 8), value); }))
    VPMU_LEAVE(op, c);
  return end_at(c, next_rip(op, c));
}
void rdpmc(const Op* op, Core* c) {
  if (!asks_in_ring_0(op, c, [&](Platform& p) { return p.rdpmc(reg<std::uint32_t>(c, rcx * 8), c->answer); }))
    VPMU_LEAVE(op, c);
  set_edx_eax(c, c->answer);
  VPMU_NEXT(op, c);
}
// SDM 2B RDTSC: CR4.TSD keeps it from programs.
bool may_read_tsc(const Core* c) { return c->cpl == 0 || (c->paging.cr4 & cr4_tsd) == 0; }

void rdtsc(const Op* op, Core* c) {
  if (!asks(op, c, [&](Platform& p) { return may_read_tsc(c) ? p.rdtsc(c->answer) : Answer::leave; }))
    VPMU_LEAVE(op, c);
  set_edx_eax(c, c->answer);
  VPMU_NEXT(op, c);
}
void rdtscp(const Op* op, Core* c) {
  if (!asks(op, c, [&](Platform& p) { return may_read_tsc(c) ? p.rdtscp(c->answer, c->tsc_aux) : Answer::leave; }))
    VPMU_LEAVE(op, c);
  set_edx_eax(c, c->answer);
  set_reg(c, rcx * 8, static_cast<std::uint32_t>(c->tsc_aux));
  VPMU_NEXT(op, c);
}

void read_control(const Op* op, Core* c) {
  if (c->cpl != 0) return leave_for(op, c, Stop::unsupported);
  std::uint64_t value{};
  switch (op->imm) {
    case 0: value = c->paging.cr0; break;
    case 2: value = c->cr2; break;
    case 3: value = c->paging.cr3; break;
    case 4: value = c->paging.cr4; break;
    default: return leave_for(op, c, Stop::unsupported);
  }
  set_reg(c, op->d, value);
  VPMU_NEXT(op, c);
}

void fence(const Op* op, Core* c) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  VPMU_NEXT(op, c);
}

void flush_line_of_host([[maybe_unused]] const std::byte* line) {
#if defined(__SSE2__)
  __builtin_ia32_clflush(line);
#endif
}

// SDM 2A CLFLUSH: checked as a load of a byte. Devices that do not look into caches may read the line afterwards, so
// the host's goes, too.
void flush_line(const Op* op, Core* c) {
  const std::uint64_t at = address(op, c);
  const std::byte* const line =
      can_read_quickly(c, at, 1) ? known_address(c, at) : find_slowly(c, at, PagingAccess::read, 0);
  if (line == nullptr) VPMU_LEAVE(op, c);
  if (c->tap != nullptr) note_flush(*c, at);
  flush_line_of_host(line);
  VPMU_NEXT(op, c);
}

template <bool On>
void set_ac(const Op* op, Core* c) {
  if (c->cpl != 0) return leave_for(op, c, Stop::unsupported);
  set_other_flags(*c, On ? c->other_flags | rflags::AC : c->other_flags & ~rflags::AC);
  VPMU_NEXT(op, c);
}

}  // namespace

bool can_set_flags(const Core& core, std::uint64_t value) {
  const bool lets_interrupts_in = (value & ~core.other_flags & rflags::IF) != 0;
  return core.cpl == 0 && ((value | core.other_flags) & rflags::TF) == 0 && !lets_interrupts_in;
}

void set_flags(Core& core, std::uint64_t value) {
  core.flags.set_bits(value);
  set_other_flags(core, (core.other_flags & ~(changeable | rflags::RF)) | (value & changeable));
}

Run op_change_flags() { return change_flags; }
Run op_lahf() { return lahf; }
Run op_sahf() { return sahf; }
Run op_rdmsr() { return rdmsr; }
Run op_wrmsr() { return wrmsr; }
Run op_rdpmc() { return rdpmc; }
Run op_rdtsc() { return rdtsc; }
Run op_rdtscp() { return rdtscp; }
Run op_read_control() { return read_control; }
Run op_fence() { return fence; }
Run op_flush_line() { return flush_line; }
Run op_set_ac(bool on) { return on ? set_ac<true> : set_ac<false>; }

}  // namespace vpmu::exec
