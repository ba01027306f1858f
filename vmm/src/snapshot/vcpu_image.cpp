#include "snapshot/vcpu_image.hpp"
#include "vpmu/msr.hpp"

#include <x86intrin.h>

#include <algorithm>

#include <fmt/format.h>

namespace vmm {
namespace {

/// KVM's list has some hundred; restoring one costs two system calls.
constexpr std::size_t max_image_msrs = 4096;
constexpr std::uint32_t chips = 3;  // two 8259s and the IOAPIC

/// The guest's TSC. `offset` is relative to the host's TSC at the time of `host`.
struct SavedTsc {
  std::uint64_t khz, value, host, offset, has_offset, deadline;
};

Result<SavedTsc> save_tsc(Vcpu& vcpu) {
  SavedTsc saved{.khz = 0, .value = 0, .host = __rdtsc(), .offset = 0, .has_offset = 0, .deadline = 0};
  VMM_ASSIGN(saved.khz, vcpu.tsc_khz());
  VMM_ASSIGN(saved.value, vcpu.msr(vpmu::msr::IA32_TIME_STAMP_COUNTER.value()));
  if (const auto offset = vcpu.tsc_offset()) {
    saved.offset = *offset;
    saved.has_offset = 1;
  }
  saved.deadline = vcpu.msr(vpmu::msr::IA32_TSC_DEADLINE.value()).value_or(0);
  return saved;
}

// SDM 3A 10.5.4.1: a deadline is in TSC ticks, so it is restored after the TSC; writing 0 arms nothing.
Result<void> restore_tsc(Vcpu& vcpu, const SavedTsc& saved, std::uint64_t moment) {
  VMM_ASSIGN(const std::uint64_t khz, vcpu.tsc_khz());
  if (khz != saved.khz)
    return host_error(fmt::format("the guest's TSC ran at {} kHz, and on this host it would run at {}", saved.khz, khz),
                      0, "restore it on a host with the same TSC");
  if (saved.has_offset != 0)
    VMM_TRY(vcpu.set_tsc_offset(saved.offset + saved.host - moment));
  else
    VMM_TRY(vcpu.set_msr(vpmu::msr::IA32_TIME_STAMP_COUNTER.value(), saved.value));
  if (saved.deadline != 0) VMM_TRY(vcpu.set_msr(vpmu::msr::IA32_TSC_DEADLINE.value(), saved.deadline));
  return {};
}

/// Saves the MSRs that can be read; KVM's list has some that this vCPU's CPUID hides.
Bytes save_msrs(Vcpu& vcpu, std::span<const std::uint32_t> indices) {
  ByteWriter out;
  for (const std::uint32_t index : indices) {
    const bool is_time =
        index == vpmu::msr::IA32_TIME_STAMP_COUNTER.value() || index == vpmu::msr::IA32_TSC_DEADLINE.value();
    const auto value = is_time ? Failure{Error{}} : vcpu.msr(index);
    if (value) out.put(kvm_msr_entry{.index = index, .reserved = 0, .data = *value});
  }
  return out.take();
}

Result<void> restore_msrs(Vcpu& vcpu, std::span<const std::byte> run) {
  ByteReader in{run};
  while (!in.done()) {
    const auto entry = in.get<kvm_msr_entry>();
    const auto now = vcpu.msr(entry.index);
    if (!now || *now != entry.data) VMM_TRY(vcpu.set_msr(entry.index, entry.data));
  }
  return {};
}

}  // namespace

Result<Bytes> save_vcpu(Vcpu& vcpu, std::span<const std::uint32_t> saved_msrs) {
  VMM_TRY(vcpu.flush());
  VMM_ASSIGN(const SavedTsc tsc, save_tsc(vcpu));
  ByteWriter out;
  VMM_ASSIGN(const kvm_sregs sregs, vcpu.sregs());
  VMM_ASSIGN(const kvm_regs regs, vcpu.regs());
  VMM_ASSIGN(const std::uint64_t xcr0, vcpu.xcr0());
  VMM_ASSIGN(const XsaveArea xsave, vcpu.xsave());
  VMM_ASSIGN(const kvm_debugregs debugregs, vcpu.debugregs());
  VMM_ASSIGN(const kvm_lapic_state lapic, vcpu.lapic());
  VMM_ASSIGN(const kvm_vcpu_events events, vcpu.events());
  VMM_ASSIGN(const kvm_mp_state mp_state, vcpu.mp_state());
  out.put(sregs);
  out.put(regs);
  out.put(xcr0);
  out.put(xsave);
  out.put(debugregs);
  out.put(lapic);
  out.put(events);
  out.put(mp_state);
  out.put(tsc);
  out.put_run(save_msrs(vcpu, saved_msrs));
  return out.take();
}

// Order: XCR0 before XSAVE, the APIC's mode (in sregs) before its registers, the APIC before its deadline.
Result<void> restore_vcpu(Vcpu& vcpu, std::span<const std::byte> image, std::uint64_t moment) {
  ByteReader in{image};
  const auto sregs = in.get<kvm_sregs>();
  const auto regs = in.get<kvm_regs>();
  const auto xcr0 = in.get<std::uint64_t>();
  const auto xsave = in.get<XsaveArea>();
  const auto debugregs = in.get<kvm_debugregs>();
  const auto lapic = in.get<kvm_lapic_state>();
  const auto events = in.get<kvm_vcpu_events>();
  const auto mp_state = in.get<kvm_mp_state>();
  const auto tsc = in.get<SavedTsc>();
  const auto msrs = in.get_run();
  if (!in.done() || msrs.size() % sizeof(kvm_msr_entry) != 0 || msrs.size() / sizeof(kvm_msr_entry) > max_image_msrs)
    return unreadable_vcpu();
  VMM_TRY(vcpu.set_sregs(sregs));
  VMM_TRY(vcpu.set_regs(regs));
  VMM_TRY(vcpu.flush());
  VMM_TRY(vcpu.set_xcr0(xcr0));
  VMM_TRY(vcpu.set_xsave(xsave));
  VMM_TRY(vcpu.set_debugregs(debugregs));
  VMM_TRY(restore_msrs(vcpu, msrs));
  VMM_TRY(vcpu.set_lapic(lapic));
  VMM_TRY(restore_tsc(vcpu, tsc, moment));
  VMM_TRY(vcpu.restore_events(events));
  VMM_TRY(vcpu.flush());
  return vcpu.set_mp_state(mp_state);
}

Result<Bytes> save_chips(const Vm& vm) {
  ByteWriter out;
  for (std::uint32_t chip = 0; chip < chips; ++chip) {
    VMM_ASSIGN(const kvm_irqchip state, vm.irqchip(chip));
    out.put(state);
  }
  VMM_ASSIGN(const kvm_pit_state2 pit, vm.pit());
  out.put(pit);
  return out.take();
}

Result<void> restore_chips(Vm& vm, std::span<const std::byte> image) {
  ByteReader in{image};
  for (std::uint32_t chip = 0; chip < chips; ++chip) {
    auto state = in.get<kvm_irqchip>();
    state.chip_id = chip;
    if (in.good()) VMM_TRY(vm.set_irqchip(state));
  }
  const auto pit = in.get<kvm_pit_state2>();
  if (!in.done()) return unreadable_vcpu();
  return vm.set_pit(pit);
}

}  // namespace vmm
