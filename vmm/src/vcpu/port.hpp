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

/// The result of a store into the APIC's page.
enum class Stored : std::uint8_t {
  done,
  not_now,  ///< Not possible at this instruction: try again after the vCPU has run on.
  never,    ///< Its APIC has been moved, it may run nested guests, or KVM does not run the store.
};

/// What a VM provides for one virtual CPU: the interface between the PMU code and KVM. Tests implement it with a
/// scripted port. Every member belongs to the thread that runs the vCPU.
class VcpuPort {
 public:
  virtual ~VcpuPort() = default;

  /// Runs the guest until an exit that the caller must handle; a signal gives Interrupted.
  virtual Result<Exit> run() = 0;
  /// Set while another thread wants the vCPU out of its guest: run() then returns Interrupted before any instruction,
  /// and clears the flag if a kick of ours set it. Signals and other threads may set it at any time. Code that works
  /// long outside of run() must check it; it lives as long as the port.
  [[nodiscard]] virtual vpmu::exec::KickFlag kick_flag() const = 0;
  /// What run_to_device() came to. to_device: an exit to a device, in the port's own form only (KVM's: kvm_run);
  /// elsewhere: exit() returns what run() would have returned; nowhere: nothing has run.
  enum class Came : std::uint8_t { to_device, elsewhere, nowhere };
  /// Like run() while watch_clock() is off, for a guest that is expected to exit to devices only. Where the port can,
  /// such an exit costs no more than KVM's.
  virtual Came run_to_device() { return Came::nowhere; }
  virtual Result<Exit> exit() { return Interrupted{}; }
  /// Like run() for one instruction that is `quiet` (Instruction::quiet), after set_guest_debug() has armed a
  /// single-step for it. Where the port can, the guest's clock advances by one tick only, and cached state that such an
  /// instruction cannot change stays valid.
  virtual Result<Exit> step() { return run(); }
  /// Whether RDPMC gives a CounterRead exit. On KVM it raises #GP in the guest, and RdpmcGate must answer it.
  [[nodiscard]] virtual bool exits_on_rdpmc() const { return false; }
  /// Whether the guest can run instructions of the feature, as Platform::has() asks. On KVM, CPUID hides no instruction
  /// that the host has.
  [[nodiscard]] virtual bool has(vpmu::exec::CpuFeature /*feature*/) const { return true; }
  /// Whether no other vCPU of the guest runs at the same time.
  [[nodiscard]] virtual bool runs_alone() const { return false; }
  /// Whether MOV to and from debug registers gives a Debug exit if set_guest_debug() sets DR7.GD; the guest's own
  /// DR7.GD then only raises #DB in the guest.
  [[nodiscard]] virtual bool exits_on_general_detect() const { return true; }
  /// Completes the instruction of the last MSR, counter, port or MMIO exit without running the guest, so that RIP and
  /// registers are final. If the access continues with another exit, the next run() returns that.
  virtual Result<void> complete_exit() = 0;

  virtual Result<kvm_regs> regs() = 0;
  virtual Result<void> set_regs(const kvm_regs& regs) = 0;
  virtual Result<kvm_sregs> sregs() = 0;
  virtual Result<void> set_sregs(const kvm_sregs& sregs) = 0;
  /// Translations changed in memory or in CR3, outside of any run() of the vCPU: flushes what the port has cached of
  /// them.
  virtual Result<void> forget_translations() = 0;
  virtual Result<kvm_vcpu_events> events() = 0;
  virtual Result<void> set_events(const kvm_vcpu_events& events) = 0;
  virtual Result<kvm_debugregs> debugregs() = 0;
  virtual Result<void> set_debugregs(const kvm_debugregs& regs) = 0;
  /// Registers must be set before: KVM remembers the RIP at which stepping starts.
  virtual Result<void> set_guest_debug(const kvm_guest_debug& debug) = 0;

  /// x87, SSE and AVX registers. Slow: several system calls, each for whole components.
  virtual Result<vpmu::exec::VectorState> vectors() = 0;
  virtual Result<void> set_vectors(const vpmu::exec::VectorState& state) = 0;

  /// Whether the vCPU is in HLT, waiting for an interrupt.
  virtual Result<bool> halted() = 0;

  /// The guest's MSR as KVM holds it, regardless of the filter.
  virtual Result<std::uint64_t> msr(std::uint32_t index) = 0;
  virtual Result<void> set_msr(std::uint32_t index, std::uint64_t value) = 0;
  /// Reads several into as many `values`. One system call where the port can.
  virtual Result<void> msrs(std::span<const std::uint32_t> indices, std::span<std::uint64_t> values) {
    for (std::size_t i = 0; i < indices.size(); ++i) {
      VMM_ASSIGN(values[i], msr(indices[i]));
    }
    return {};
  }

  virtual Result<kvm_lapic_state> lapic() = 0;
  /// In xAPIC mode: stores into LVTPC like the guest itself. No other register of the APIC changes, and no interrupt
  /// that arrives meanwhile is lost. Not allowed at the IRET of an NMI handler.
  virtual Result<Stored> store_lvtpc(std::uint32_t value) = 0;
  virtual Result<void> nmi() = 0;
  /// A fixed-vector interrupt to this vCPU's LAPIC.
  virtual Result<void> interrupt(std::uint32_t apic_id, std::uint8_t vector) = 0;

  /// Whether the PMU is in use from now on: unhalted_ticks() counts only while it is (guest_clock.hpp).
  virtual void watch_clock(bool on) = 0;
  /// TSC ticks that the vCPU has run unhalted while its clock was watched, as the guest saw them.
  [[nodiscard]] virtual std::uint64_t unhalted_ticks() const = 0;
  /// The caller has emulated the guest's next instructions since the last exit: advances its clock by `ticks` of the
  /// TSC, or by fewer while other vCPUs share the time (MachineClock).
  virtual void pass_time(std::uint64_t ticks) = 0;
  /// For how many ticks from now run() has nothing to handle: no interrupt, no end of the machine, no kick. 0:
  /// something waits now. Empty: the port does not know.
  virtual std::optional<std::uint64_t> quiet_for() { return std::nullopt; }
  /// Call before emulating instructions outside of run(). Waits for the vCPU's turn, or for a kick, and lets expired
  /// timers raise their interrupts. Returns how many instructions may be emulated before the next run(): `left` if the
  /// port knows no limit, none after a kick.
  virtual std::uint64_t look_around(std::uint64_t left) { return left; }
  /// The guest's TSC.
  virtual Result<std::uint64_t> tsc() = 0;
  /// The same after that many more ticks of pass_time().
  virtual Result<std::uint64_t> tsc_after(std::uint64_t ticks) {
    VMM_ASSIGN(const std::uint64_t now, tsc());
    return now + ticks;
  }
  /// kHz of the guest's TSC.
  [[nodiscard]] virtual std::uint64_t tsc_khz() const = 0;

  /// How often the processor has entered the guest, for any reason; empty if not known.
  [[nodiscard]] virtual std::optional<std::uint64_t> entries() const { return std::nullopt; }

  /// Calls `visit(name, value)` for each statistic of the port.
  virtual void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& /*visit*/) const {}
};

}  // namespace vmm
