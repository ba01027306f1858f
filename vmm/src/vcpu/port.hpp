#pragma once
#include <linux/kvm.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "exec/cpu_feature.hpp"
#include "exec/kick_flag.hpp"
#include "exec/vector_state.hpp"
#include "kvm/exit.hpp"
#include "support/result.hpp"

namespace vmm {

/// What became of a store into the APIC's page.
enum class Stored : std::uint8_t {
  done,
  not_now,  ///< The processor is where it cannot: try again when it has gone on.
  never,    ///< Its APIC is not where it is after RESET, it may run guests of its own, or KVM does not run the store.
};

/// What a VM gives us of one virtual CPU: the seam between the PMU code and KVM. Tests put a scripted port below it.
/// Every member belongs to the thread that runs the vCPU.
class VcpuPort {
 public:
  virtual ~VcpuPort() = default;

  /// Runs the guest until something needs us; a signal gives Interrupted.
  virtual Result<Exit> run() = 0;
  /// Set while somebody wants the vCPU out of its guest: run() then gives Interrupted before any instruction, and
  /// takes a kick of ours away. Signals and other threads set it at any time. Whoever does much beside run() looks at
  /// it; it lives as long as the port.
  [[nodiscard]] virtual vpmu::exec::KickFlag kick_flag() const = 0;
  /// Where run_to_device() has come: to a device, and that exit stands in the port's own form alone (KVM's: kvm_run);
  /// elsewhere, and exit() tells what run() would have; nowhere: nothing has run.
  enum class Came : std::uint8_t { to_device, elsewhere, nowhere };
  /// As run() while watch_clock() is off, for a guest of which only exits to devices are expected. Cost of those:
  /// KVM's, where the port can.
  virtual Came run_to_device() { return Came::nowhere; }
  virtual Result<Exit> exit() { return Interrupted{}; }
  /// As run() for one instruction, for which set_guest_debug() has just armed a single-step and which is `quiet`
  /// (Instruction::quiet): where the port can, the guest's clock stands still meanwhile but for a tick, and what such
  /// an instruction cannot change stays known.
  virtual Result<Exit> step() { return run(); }
  /// Whether RDPMC gives a CounterRead exit. On KVM it raises #GP in the guest, and RdpmcGate must turn that into an
  /// answer.
  [[nodiscard]] virtual bool exits_on_rdpmc() const { return false; }
  /// Whether instructions of the feature are the guest's, as Platform::has() asks. On KVM CPUID hides no instruction
  /// that the host has.
  [[nodiscard]] virtual bool has(vpmu::exec::CpuFeature /*feature*/) const { return true; }
  /// Whether no other processor of the guest runs while this one does.
  [[nodiscard]] virtual bool runs_alone() const { return false; }
  /// Whether MOV to and from debug registers gives a Debug exit where DR7.GD is set for set_guest_debug(); the guest's
  /// own DR7.GD then raises #DB in the guest alone.
  [[nodiscard]] virtual bool exits_on_general_detect() const { return true; }
  /// Completes the instruction of the last MSR, counter, port or MMIO exit without running the guest, so that RIP and
  /// registers are final. Where the access goes on with another exit, the next run() gives that.
  virtual Result<void> complete_exit() = 0;

  virtual Result<kvm_regs> regs() = 0;
  virtual Result<void> set_regs(const kvm_regs& regs) = 0;
  virtual Result<kvm_sregs> sregs() = 0;
  virtual Result<void> set_sregs(const kvm_sregs& sregs) = 0;
  /// Translations changed in memory or in CR3, and no run() of the vCPU saw that: what it keeps of them is looked at
  /// anew.
  virtual Result<void> forget_translations() = 0;
  virtual Result<kvm_vcpu_events> events() = 0;
  virtual Result<void> set_events(const kvm_vcpu_events& events) = 0;
  virtual Result<kvm_debugregs> debugregs() = 0;
  virtual Result<void> set_debugregs(const kvm_debugregs& regs) = 0;
  /// Registers must be set before: KVM remembers the RIP at which stepping starts.
  virtual Result<void> set_guest_debug(const kvm_guest_debug& debug) = 0;

  /// x87, SSE and AVX registers. Heavy: several system calls, and whole components at a time.
  virtual Result<vpmu::exec::VectorState> vectors() = 0;
  virtual Result<void> set_vectors(const vpmu::exec::VectorState& state) = 0;

  /// Whether the vCPU sits in HLT, waiting for an interrupt.
  virtual Result<bool> halted() = 0;

  /// The guest's MSR as KVM holds it, never filtered.
  virtual Result<std::uint64_t> msr(std::uint32_t index) = 0;
  virtual Result<void> set_msr(std::uint32_t index, std::uint64_t value) = 0;
  /// Several at once, into as many `values`. One system call where the port can.
  virtual Result<void> msrs(std::span<const std::uint32_t> indices, std::span<std::uint64_t> values) {
    for (std::size_t i = 0; i < indices.size(); ++i) {
      VMM_ASSIGN(values[i], msr(indices[i]));
    }
    return {};
  }

  virtual Result<kvm_lapic_state> lapic() = 0;
  /// In xAPIC mode: what the guest's own store into LVTPC would do. No other register of the APIC changes, and no
  /// interrupt that arrives meanwhile is lost. Not at the IRET of an NMI's handler.
  virtual Result<Stored> store_lvtpc(std::uint32_t value) = 0;
  virtual Result<void> nmi() = 0;
  /// A fixed-vector interrupt to this vCPU's LAPIC.
  virtual Result<void> interrupt(std::uint32_t apic_id, std::uint8_t vector) = 0;

  /// Whether the PMU is in use from now on: unhalted_ticks() counts only while it is (guest_clock.hpp).
  virtual void watch_clock(bool on) = 0;
  /// TSC ticks that the vCPU has run unhalted while its clock was watched, as the guest saw them.
  [[nodiscard]] virtual std::uint64_t unhalted_ticks() const = 0;
  /// The guest's next instructions have been done outside it, after the last exit: its clock goes on by `ticks` of the
  /// TSC; by fewer while other vCPUs share the time (MachineClock).
  virtual void pass_time(std::uint64_t ticks) = 0;
  /// For how many ticks from now on nothing waits that run() would see to: an interrupt, an end, a kick. 0: something
  /// waits now. Empty: the port does not know.
  virtual std::optional<std::uint64_t> quiet_for() { return std::nullopt; }
  /// The vCPU is going to be let do instructions outside of run(), `left` of them if the port cannot tell: waits for
  /// its turn, or for a kick, and lets timers that have run out raise their interrupts. Gives how many it may do before
  /// the next run(): none after a kick.
  virtual std::uint64_t look_around(std::uint64_t left) { return left; }
  /// The guest's TSC.
  virtual Result<std::uint64_t> tsc() = 0;
  /// The same once that much more has passed by pass_time().
  virtual Result<std::uint64_t> tsc_after(std::uint64_t ticks) {
    VMM_ASSIGN(const std::uint64_t now, tsc());
    return now + ticks;
  }
  /// kHz of the guest's TSC.
  [[nodiscard]] virtual std::uint64_t tsc_khz() const = 0;

  /// How often the processor has entered the guest, for whatever reason; empty where that is not known.
  [[nodiscard]] virtual std::optional<std::uint64_t> entries() const { return std::nullopt; }

  /// Calls `visit(name, value)` for each statistic of the port.
  virtual void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& /*visit*/) const {}
};

}  // namespace vmm
