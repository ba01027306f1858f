#include "soft/soft_image.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "support/x86.hpp"

namespace vmm {
namespace {

constexpr std::uint64_t no_vector = ~0ULL;

/// The state except registers and MSRs.
struct Words {
  std::uint64_t features{}, halted{}, waits_for_start{}, init_pending{}, start_pending{no_vector};
  DebugUnit::Image breakpoints;
  std::uint64_t random{};
  VirtualTime::Image time;
  InterruptUnit::Image timer;
};

Failure refused(std::string_view what, std::uint64_t value) {
  return usage_error(fmt::format("the snapshot's vCPU has an impossible {} {:#x}", what, value), snapshot_advice);
}

// RFLAGS: what IRET and SYSRET may load, so no virtual-8086 mode (SDM 1 3.4.3, 3A 2.3). Paging modes: SDM 3A 4.1.1.
Result<void> check_control(const kvm_regs& regs, const kvm_sregs& s, const GuestFeatures& features) {
  constexpr std::uint64_t known = x86::rflags::by_popf | x86::rflags::RF::mask | x86::rflags::VIF::mask |
                                  x86::rflags::VIP::mask | x86::rflags::fixed;
  const bool pages = x86::cr0::PG::test(s.cr0), is_long = x86::efer::LMA::test(s.efer);
  if ((regs.rflags & ~known) != 0 || (regs.rflags & x86::rflags::fixed) == 0) return refused("RFLAGS", regs.rflags);
  if (s.cr0 >> 32 != 0 || (pages && !x86::cr0::PE::test(s.cr0))) return refused("CR0", s.cr0);
  if ((s.cr4 & ~features.cr4()) != 0 || (is_long && !x86::cr4::PAE::test(s.cr4))) return refused("CR4", s.cr4);
  if ((s.efer & ~efer_known) != 0 || is_long != (pages && x86::efer::LME::test(s.efer)))
    return refused("IA32_EFER", s.efer);
  if ((s.apic_base & ~x86::apic_base::defined) != 0) return refused("IA32_APIC_BASE", s.apic_base);
  return {};
}

Result<void> check_segments(const kvm_sregs& s) {
  constexpr std::uint8_t max_type = 15, max_level = 3;
  for (const kvm_segment* const segment : {&s.cs, &s.ds, &s.es, &s.fs, &s.gs, &s.ss, &s.tr, &s.ldt}) {
    const unsigned flags =
        segment->present | segment->s | segment->db | segment->l | segment->g | segment->avl | segment->unusable;
    if (segment->type > max_type || segment->dpl > max_level || flags > 1)
      return refused("segment with selector", segment->selector);
  }
  return {};
}

/// The fields of KVM's structure that have a meaning here. SDM 3A 6.7.1: one NMI waits while another is in service.
std::optional<kvm_vcpu_events> events_of(const kvm_vcpu_events& saved) {
  constexpr std::uint8_t max_exception = 31, max_nmis = 2;
  constexpr std::uint8_t shadows = KVM_X86_SHADOW_INT_MOV_SS | KVM_X86_SHADOW_INT_STI;
  if (saved.exception.nr > max_exception || saved.nmi.pending > max_nmis || saved.nmi.masked > 1) return std::nullopt;
  kvm_vcpu_events events{};
  events.exception.injected = saved.exception.injected;
  events.exception.pending = saved.exception.pending;
  events.exception.nr = saved.exception.nr;
  events.exception.has_error_code = saved.exception.has_error_code;
  events.exception.error_code = saved.exception.error_code;
  events.interrupt.shadow = saved.interrupt.shadow & shadows;
  events.nmi.pending = saved.nmi.pending;
  events.nmi.masked = saved.nmi.masked;
  return events;
}

}  // namespace

Bytes save_image(const SoftCore& core, const DebugUnit& debug) {
  const SoftState& s = core.state;
  ByteWriter out;
  out.put(Words{.features = core.features.all(),
                .halted = s.halted,
                .waits_for_start = s.waits_for_start,
                .init_pending = s.init_pending,
                .start_pending = s.start_pending ? *s.start_pending : no_vector,
                .breakpoints = debug.image(),
                .random = core.system.random_state(),
                .time = core.time.image(),
                .timer = core.interrupts.image()});
  out.put(s.regs);
  out.put(s.sregs);
  out.put(s.debug);
  out.put(s.events);
  out.put(s.apic.page());
  out.put(s.vectors.legacy);
  out.put(s.vectors.upper);
  out.put(s.vectors.xcr0);
  ByteWriter msrs;
  for (const auto& [index, value] : s.msrs) msrs.put(kvm_msr_entry{.index = index, .reserved = 0, .data = value});
  out.put_run(msrs.take());
  return out.take();
}

Result<void> restore_image(SoftCore& core, DebugUnit& debug, std::span<const std::byte> image) {
  ByteReader in{image};
  const auto words = in.get<Words>();
  const auto regs = in.get<kvm_regs>();
  auto sregs = in.get<kvm_sregs>();
  const auto debug_registers = in.get<kvm_debugregs>();
  const auto events = events_of(in.get<kvm_vcpu_events>());
  const auto apic = in.get<kvm_lapic_state>();
  vpmu::exec::VectorState vectors;
  vectors.legacy = in.get<decltype(vectors.legacy)>();
  vectors.upper = in.get<decltype(vectors.upper)>();
  vectors.xcr0 = in.get<std::uint64_t>();
  ByteReader msrs{in.get_run()};
  if (!in.done()) return unreadable_vcpu();
  if (words.features != core.features.all())
    return usage_error(fmt::format("the snapshot's guest and a guest on this host have different CPU features: {}",
                                   fmt::join(feature_names(words.features ^ core.features.all()), ", ")),
                       "restore it on a host whose CPU has the features of the one that it was saved on");
  while (!msrs.done()) {
    const auto msr = msrs.get<kvm_msr_entry>();
    if (!msrs.good()) return unreadable_vcpu();
    if (!core.msrs.restore(msr.index, msr.data)) return refused(fmt::format("in MSR {:#x}", msr.index), msr.data);
  }
  constexpr std::uint32_t mxcsr_known = 0xFFFF;
  constexpr std::uint64_t max_vector = 0xFF;
  if (!events || (words.start_pending > max_vector && words.start_pending != no_vector) ||
      !core.interrupts.restore(words.timer))
    return unreadable_vcpu();
  VMM_TRY(check_control(regs, sregs, core.features));
  VMM_TRY(check_segments(sregs));
  if (vectors.mxcsr() > mxcsr_known) return refused("MXCSR", vectors.mxcsr());
  if (!core.features.may_enable(vectors.xcr0)) return refused("XCR0", vectors.xcr0);
  vectors.forget_pointers();
  std::ranges::fill(sregs.interrupt_bitmap, 0);
  SoftState& s = core.state;
  s.regs = regs;
  s.sregs = sregs;
  s.debug = debug_registers;
  s.events = *events;
  s.apic.set_page(apic);
  s.vectors = vectors;
  s.halted = words.halted != 0;
  s.waits_for_start = words.waits_for_start != 0;
  s.init_pending = words.init_pending != 0;
  s.start_pending.reset();
  if (words.start_pending != no_vector) s.start_pending = static_cast<std::uint8_t>(words.start_pending);
  debug.restore(words.breakpoints);
  core.system.set_random_state(words.random);
  core.time.restore(words.time);
  return {};
}

}  // namespace vmm
