#include <atomic>

#include "exec/interpret/ops.hpp"
#include "exec/interpret/system.hpp"
#include "exec/memory/access.hpp"
#include "exec/observe/tap.hpp"
#include "exec/state/dispatch.hpp"
#include "exec/state/tap.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::exec {
namespace {

constexpr std::uint64_t iopl = 3U << 12, identification = bit(21);
/// What POPF changes in ring 0 besides the status flags, TF apart.
constexpr std::uint64_t changeable = x86::rflags::IF::mask | x86::rflags::DF::mask | iopl | x86::rflags::NT::mask |
                                     x86::rflags::AC::mask | identification;

void set_other_flags(Core& core, std::uint64_t value) {
  const bool ac = x86::rflags::AC::test(value);
  core.other_flags = value;
  if (ac == core.paging.alignment_check) return;
  core.paging.alignment_check = ac;  // under SMAP it decides what may be reached
  // While an op is observed the TLB stays the empty one: the next op that is chooses it.
  if (core.tap == nullptr || !core.tap->running) choose_tlb(&core);
}

void change_flags(const Op* op, Core* c) {
  const std::uint64_t before = c->other_flags | c->flags.bits();
  const std::uint64_t after =
      (before & ~static_cast<std::uint64_t>(op->imm)) ^ static_cast<std::uint64_t>(std::int64_t{op->disp});
  if ((static_cast<std::uint64_t>(op->imm) & x86::rflags::IF::mask) != 0 && c->cpl != 0)
    return leave_for(op, c, Stop::unsupported);  // CLI
  c->flags.set_bits(after);
  c->other_flags = after & ~x86::rflags::status;
  VPMU_NEXT(op, c);
}

// SDM 2B STI. Its interrupt shadow hides nothing while no interrupt waits.
void sti(const Op* op, Core* c) {
  if (!can_set_flags(*c, c->other_flags | x86::rflags::IF::mask)) return leave_for(op, c, Stop::unsupported);
  c->other_flags |= x86::rflags::IF::mask;
  VPMU_NEXT(op, c);
}

constexpr std::uint64_t ah_flags = x86::rflags::SF::mask | x86::rflags::ZF::mask | x86::rflags::AF::mask |
                                   x86::rflags::PF::mask | x86::rflags::CF::mask;

void lahf(const Op* op, Core* c) {
  constexpr std::uint64_t always_one = 2;
  set_reg(c, rax * 8 + 1, static_cast<std::uint8_t>((c->flags.bits() & ah_flags) | always_one));
  VPMU_NEXT(op, c);
}
void sahf(const Op* op, Core* c) {
  c->flags.set_bits((c->flags.bits() & x86::rflags::OF::mask) | (reg<std::uint8_t>(c, rax * 8 + 1) & ah_flags));
  VPMU_NEXT(op, c);
}

// The platform may look at the machine, so RIP must be right. Its answer goes to Core::answer: an op that passes out
// the address of a variable could not end in a tail call.
template <class Ask>
bool asks(const Op* op, Core* c, Ask ask) {
  c->rip = c->r[block_rip] + op->offset;
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
bool may_read_tsc(const Core* c) { return c->cpl == 0 || !x86::cr4::TSD::test(c->paging.cr4); }

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

void cpuid(const Op* op, Core* c) {
  const bool answered = asks(op, c, [&](Platform& p) {
    return p.cpuid(reg<std::uint32_t>(c, rax * 8), reg<std::uint32_t>(c, rcx * 8), c->cpuid);
  });
  if (!answered) VPMU_LEAVE(op, c);
  set_reg(c, rax * 8, c->cpuid.eax);
  set_reg(c, rbx * 8, c->cpuid.ebx);
  set_reg(c, rcx * 8, c->cpuid.ecx);
  set_reg(c, rdx * 8, c->cpuid.edx);
  VPMU_NEXT(op, c);
}

// SDM 2B SWAPGS.
void swapgs(const Op* op, Core* c) {
  c->answer = c->r[gs_base];
  if (!asks_in_ring_0(op, c, [&](Platform& p) { return p.swap_gs(c->answer); })) VPMU_LEAVE(op, c);
  c->r[gs_base] = c->answer;
  VPMU_NEXT(op, c);
}

// Ends its block, as WRMSR does: whoever is told may want the engine to stop behind it.
void switch_stack(const Op* op, Core* c) {
  std::uint64_t to{};
  if (!load(c, address(op, c), to)) VPMU_LEAVE(op, c);
  if (c->cpl == 0) c->platform->switches_stack(to);
  set_reg(c, rsp * 8, to);
  return end_at(c, next_rip(op, c));
}

// XCHG RBX, RBX does nothing else.
void client_request(const Op* op, Core* c) {
  if (c->cpl == 3) c->platform->exchanges_rbx(next_rip(op, c));
  return end_at(c, next_rip(op, c));
}

// The same: an interrupt may be possible now.
void write_cr8(const Op* op, Core* c) {
  const std::uint64_t value = reg<std::uint64_t>(c, op->d);
  if (!asks_in_ring_0(op, c, [&](Platform& p) { return p.write_cr8(value); })) VPMU_LEAVE(op, c);
  return end_at(c, next_rip(op, c));
}

void read_control(const Op* op, Core* c) {
  if (c->cpl != 0) return leave_for(op, c, Stop::unsupported);
  std::uint64_t value{};
  switch (op->imm) {
    case 0: value = c->paging.cr0; break;
    case 2: value = c->cr2; break;
    case 3: value = c->paging.cr3; break;
    case 4: value = c->paging.cr4; break;
    case 8:
      if (!asks(op, c, [&](Platform& p) { return p.read_cr8(c->answer); })) VPMU_LEAVE(op, c);
      value = c->answer;
      break;
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
      can_read_fast(c, at, 1) ? known_address(c, at) : find_slow_path(c, at, PagingAccess::read, 0);
  if (line == nullptr) VPMU_LEAVE(op, c);
  if (c->tap != nullptr) note_flush(*c, *op, at);
  flush_line_of_host(line);
  VPMU_NEXT(op, c);
}

// A load whose data nobody gets. It never faults. SDM 2B PREFETCHW.
template <Prefetch To>
void prefetch(const Op* op, Core* c) {
  if (c->tap != nullptr) note_prefetch(*c, address(op, c), To);
  VPMU_NEXT(op, c);
}

template <bool On>
void set_ac(const Op* op, Core* c) {
  if (c->cpl != 0) return leave_for(op, c, Stop::unsupported);
  set_other_flags(*c, On ? c->other_flags | x86::rflags::AC::mask : c->other_flags & ~x86::rflags::AC::mask);
  VPMU_NEXT(op, c);
}

}  // namespace

bool can_set_flags(const Core& core, std::uint64_t value) {
  if (core.cpl != 0 || ((value | core.other_flags) & x86::rflags::TF::mask) != 0) return false;
  const bool lets_interrupts_in = (value & ~core.other_flags & x86::rflags::IF::mask) != 0;
  return !lets_interrupts_in || core.platform->enables_interrupts() == Answer::done;
}

void set_flags(Core& core, std::uint64_t value) {
  core.flags.set_bits(value);
  set_other_flags(core, (core.other_flags & ~(changeable | x86::rflags::RF::mask)) | (value & changeable));
}

Run op_change_flags() { return change_flags; }
Run op_lahf() { return lahf; }
Run op_sahf() { return sahf; }
Run op_rdmsr() { return rdmsr; }
Run op_wrmsr() { return wrmsr; }
Run op_rdpmc() { return rdpmc; }
Run op_rdtsc() { return rdtsc; }
Run op_rdtscp() { return rdtscp; }
Run op_cpuid() { return cpuid; }
Run op_read_control() { return read_control; }
Run op_switch_stack() { return switch_stack; }
Run op_client_request() { return client_request; }
Run op_write_cr8() { return write_cr8; }
Run op_sti() { return sti; }
Run op_swapgs() { return swapgs; }
Run op_fence() { return fence; }
Run op_flush_line() { return flush_line; }
Run op_prefetch(Prefetch to) {
  switch (to) {
    case Prefetch::none: break;
    case Prefetch::to_l1: return prefetch<Prefetch::to_l1>;
    case Prefetch::to_l2: return prefetch<Prefetch::to_l2>;
    case Prefetch::to_write: return prefetch<Prefetch::to_write>;
  }
  return nullptr;
}
bool is_prefetch(const Op& op) {
  return op.run == prefetch<Prefetch::to_l1> || op.run == prefetch<Prefetch::to_l2> ||
         op.run == prefetch<Prefetch::to_write>;
}
Run op_set_ac(bool on) { return on ? set_ac<true> : set_ac<false>; }

}  // namespace vpmu::exec
