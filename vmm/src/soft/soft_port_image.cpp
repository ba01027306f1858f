// Saves and restores a vCPU without KVM.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "soft/soft_port.hpp"
#include "support/assert.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::bit;

constexpr std::uint64_t none = ~0ULL;
/// DR6: B0 to B3.
constexpr std::uint64_t breakpoints = 0xF;

/// The state except registers and MSRs.
struct Words {
  std::uint64_t features{}, halted{}, waits_for_start{}, init_pending{}, start_pending{none};
  std::uint64_t held_hits{}, branch_steps{}, random{};
  VirtualTime::Image time;
  InterruptUnit::Image timer;
};

Failure not_ours() {
  return usage_error("the snapshot's state of a vCPU is cut short, or has another format than this version's",
                     snapshot_advice);
}

Failure refused(std::string_view what, std::uint64_t value) {
  return usage_error(fmt::format("the snapshot's vCPU has an impossible {} {:#x}", what, value), snapshot_advice);
}

// RFLAGS: what IRET and SYSRET may load, so no virtual-8086 mode (SDM 1 3.4.3, 3A 2.3). Paging modes: SDM 3A 4.1.1.
Result<void> check_control(const kvm_regs& regs, const kvm_sregs& s, const GuestFeatures& features) {
  constexpr std::uint64_t rflags_known = 0x3D'7FD7, rflags_fixed = bit(1);
  constexpr std::uint64_t cr0_pe = bit(0), cr0_pg = bit(31), cr4_pae = bit(5);
  const bool pages = (s.cr0 & cr0_pg) != 0, is_long = (s.efer & efer_lma) != 0;
  if ((regs.rflags & ~rflags_known) != 0 || (regs.rflags & rflags_fixed) == 0) return refused("RFLAGS", regs.rflags);
  if (s.cr0 >> 32 != 0 || (pages && (s.cr0 & cr0_pe) == 0)) return refused("CR0", s.cr0);
  if ((s.cr4 & ~features.cr4()) != 0 || (is_long && (s.cr4 & cr4_pae) == 0)) return refused("CR4", s.cr4);
  if ((s.efer & ~efer_known) != 0 || is_long != (pages && (s.efer & efer_lme) != 0))
    return refused("IA32_EFER", s.efer);
  if ((s.apic_base & ~apic_base_known) != 0) return refused("IA32_APIC_BASE", s.apic_base);
  return {};
}

Result<void> check_segments(const kvm_sregs& s) {
  constexpr std::uint8_t most_type = 15, most_level = 3;
  for (const kvm_segment* const segment : {&s.cs, &s.ds, &s.es, &s.fs, &s.gs, &s.ss, &s.tr, &s.ldt}) {
    const unsigned flags =
        segment->present | segment->s | segment->db | segment->l | segment->g | segment->avl | segment->unusable;
    if (segment->type > most_type || segment->dpl > most_level || flags > 1)
      return refused("segment with selector", segment->selector);
  }
  return {};
}

/// The fields of KVM's structure that have a meaning here. SDM 3A 6.7.1: one NMI waits while another is in service.
std::optional<kvm_vcpu_events> events_of(const kvm_vcpu_events& saved) {
  constexpr std::uint8_t most_exception = 31, most_nmis = 2;
  constexpr std::uint8_t shadows = KVM_X86_SHADOW_INT_MOV_SS | KVM_X86_SHADOW_INT_STI;
  if (saved.exception.nr > most_exception || saved.nmi.pending > most_nmis || saved.nmi.masked > 1) return std::nullopt;
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

Bytes SoftPort::save() const {
  VMM_ASSERT(open_.kind == Open::Kind::none);
  ByteWriter out;
  out.put(Words{.features = features_.all(),
                .halted = s_.halted,
                .waits_for_start = s_.waits_for_start,
                .init_pending = s_.init_pending,
                .start_pending = s_.start_pending ? *s_.start_pending : none,
                .held_hits = held_hits_,
                .branch_steps = branch_steps_,
                .random = system_.random_state(),
                .time = time_.image(),
                .timer = interrupts_.image()});
  out.put(s_.regs);
  out.put(s_.sregs);
  out.put(s_.debug);
  out.put(s_.events);
  out.put(s_.apic.page());
  out.put(s_.vectors.legacy);
  out.put(s_.vectors.upper);
  out.put(s_.vectors.xcr0);
  ByteWriter msrs;
  for (const auto& [index, value] : s_.msrs) msrs.put(kvm_msr_entry{.index = index, .reserved = 0, .data = value});
  out.put_run(msrs.take());
  return out.take();
}

Result<void> SoftPort::restore(std::span<const std::byte> image) {
  ByteReader in{image};
  const auto words = in.get<Words>();
  const auto regs = in.get<kvm_regs>();
  auto sregs = in.get<kvm_sregs>();
  const auto debug = in.get<kvm_debugregs>();
  const auto events = events_of(in.get<kvm_vcpu_events>());
  const auto apic = in.get<kvm_lapic_state>();
  vpmu::exec::VectorState vectors;
  vectors.legacy = in.get<decltype(vectors.legacy)>();
  vectors.upper = in.get<decltype(vectors.upper)>();
  vectors.xcr0 = in.get<std::uint64_t>();
  ByteReader msrs{in.get_run()};
  if (!in.done()) return not_ours();
  if (words.features != features_.all())
    return usage_error(fmt::format("the snapshot's guest and a guest on this host have different CPU features: {}",
                                   fmt::join(feature_names(words.features ^ features_.all()), ", ")),
                       "restore it on a host whose CPU has the features of the one that it was saved on");
  while (!msrs.done()) {
    const auto msr = msrs.get<kvm_msr_entry>();
    if (!msrs.good()) return not_ours();
    if (!msrs_.restore(msr.index, msr.data)) return refused(fmt::format("in MSR {:#x}", msr.index), msr.data);
  }
  constexpr std::uint32_t mxcsr_known = 0xFFFF;
  constexpr std::uint64_t most_vector = 0xFF;
  if (!events || (words.start_pending > most_vector && words.start_pending != none) ||
      !interrupts_.restore(words.timer))
    return not_ours();
  VMM_TRY(check_control(regs, sregs, features_));
  VMM_TRY(check_segments(sregs));
  if (vectors.mxcsr() > mxcsr_known) return refused("MXCSR", vectors.mxcsr());
  if (!features_.may_enable(vectors.xcr0)) return refused("XCR0", vectors.xcr0);
  vectors.forget_pointers();
  std::ranges::fill(sregs.interrupt_bitmap, 0);
  s_.regs = regs;
  s_.sregs = sregs;
  s_.debug = debug;
  s_.events = *events;
  s_.apic.set_page(apic);
  s_.vectors = vectors;
  s_.halted = words.halted != 0;
  s_.waits_for_start = words.waits_for_start != 0;
  s_.init_pending = words.init_pending != 0;
  s_.start_pending.reset();
  if (words.start_pending != none) s_.start_pending = static_cast<std::uint8_t>(words.start_pending);
  held_hits_ = words.held_hits & breakpoints;
  branch_steps_ = words.branch_steps != 0;
  system_.set_random_state(words.random);
  time_.restore(words.time);
  flush_ = stale_ = true;
  return {};
}

}  // namespace vmm
