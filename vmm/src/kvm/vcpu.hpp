#pragma once
#include <linux/kvm.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "kvm/cpuid_table.hpp"
#include "kvm/exit.hpp"
#include "kvm/fd.hpp"
#include "kvm/halt_time.hpp"
#include "kvm/kick.hpp"
#include "support/result.hpp"
#include "vpmu/address.hpp"

namespace vmm {

/// What KVM_TRANSLATE says about a linear address.
struct Translation {
  bool valid;
  vpmu::GuestPhysical at;
};

/// The legacy 4 KiB area of KVM_GET_XSAVE, as 32-bit words.
using XsaveArea = std::array<std::uint32_t, 1024>;

/// One KVM vCPU. Thin typed wrapper without policy. Every member belongs to the thread that runs the vCPU, except
/// interrupt_run().
///
/// Registers: when the host has KVM_CAP_SYNC_REGS, the groups named by sync_after_run() come with each exit without a
/// further system call; other reads cost one ioctl and are kept until the next run(). Writes are kept and handed over
/// by the next run(), or earlier by flush().
class Vcpu {
 public:
  Vcpu(std::uint32_t id, Fd fd, Mapping run, int sync_fields);

  [[nodiscard]] std::uint32_t id() const { return id_; }

  /// What the guest runs. `quiet_step` is a single-step over an instruction that does not change the debug registers
  /// (Instruction::quiet).
  enum class Runs : std::uint8_t { anything, quiet_step };
  /// Runs the guest until it exits to us. Returns Interrupted after a signal, or if interrupt_run() was called before.
  Result<Exit> run(Runs what = Runs::anything);
  /// Runs the guest and checks only whether the exit is a device access, which is then in exit_page(). If it is not,
  /// exit() returns what run() would have. No register write may be pending.
  bool run_to_device();
  Result<Exit> exit() { return exit_after(run_error_, Runs::anything); }
  /// Completes the instruction of the last exit (its answer, its RIP) without running the guest: KVM_RUN with
  /// immediate_exit. Use it before reading or changing registers after an MSR, port or MMIO exit. An access that KVM
  /// hands out in pieces (more than eight bytes, or in two pages) continues with the exit that this returns.
  Result<std::optional<Exit>> complete_exit();
  /// Makes the current or next run() return Interrupted as soon as it checks. Safe in a signal handler and on any
  /// thread, but a thread that is inside the guest must also get a signal: see kick().
  void interrupt_run() { __atomic_store_n(&run_->immediate_exit, kick_mark, __ATOMIC_RELAXED); }
  /// The flag that interrupt_run() sets; for a signal handler, which may hold no object.
  [[nodiscard]] volatile std::uint8_t* immediate_exit_flag() { return &run_->immediate_exit; }

  /// Chooses the register groups (KVM_SYNC_X86_*) that each exit brings along; unsupported groups are left out.
  void sync_after_run(std::uint64_t groups) { run_->kvm_valid_regs = groups & sync_fields_; }

  [[nodiscard]] Result<kvm_regs> regs();
  Result<void> set_regs(const kvm_regs& regs);
  /// `interrupt_bitmap` has no meaning, read or written: an interrupt being delivered is in events().
  [[nodiscard]] Result<kvm_sregs> sregs();
  Result<void> set_sregs(const kvm_sregs& sregs);
  [[nodiscard]] Result<kvm_vcpu_events> events();
  /// KVM's state stays for what others may send to the vCPU at any time: pending NMIs and SMIs, INIT, SIPI's vector.
  Result<void> set_events(const kvm_vcpu_events& events);
  /// Sets all of them now; for a vCPU to which nobody can send anything.
  Result<void> restore_events(const kvm_vcpu_events& events);
  /// Hands pending register writes to KVM now.
  Result<void> flush() { return flush(all_groups); }
  [[nodiscard]] bool is_flushed() const { return dirty_ == 0; }
  /// Somebody else has changed the vCPU: drops cached state. No register write may be pending.
  void forget();
  /// The kvm_run page, with the last exit as KVM describes it.
  [[nodiscard]] kvm_run& exit_page() { return *run_; }

  [[nodiscard]] Result<XsaveArea> xsave() const;
  Result<void> set_xsave(const XsaveArea& area);
  /// XCR0; 3 (x87 and SSE) if KVM has none.
  [[nodiscard]] Result<std::uint64_t> xcr0() const;
  Result<void> set_xcr0(std::uint64_t value);
  /// Cached until the next run() with Runs::anything.
  [[nodiscard]] Result<kvm_debugregs> debugregs();
  Result<void> set_debugregs(const kvm_debugregs& regs);
  /// True if the last exit shows that the vCPU is not halted; if false, ask mp_state(). Cost: none.
  [[nodiscard]] bool is_running() const { return running_; }
  [[nodiscard]] Result<kvm_mp_state> mp_state() const;
  Result<void> set_mp_state(const kvm_mp_state& state);

  /// KVM_SET_GUEST_DEBUG.
  /// Flushes pending writes of RIP (and CS) first, because KVM remembers where stepping starts.
  Result<void> set_guest_debug(const kvm_guest_debug& debug);

  /// The LAPIC page as 1 KiB of registers.
  [[nodiscard]] Result<kvm_lapic_state> lapic() const;
  /// Expensive (rebuilds the APIC map, restarts the timer), and overwrites IRR: an interrupt that has arrived since
  /// lapic() is lost. For a vCPU to which nobody can send anything.
  Result<void> set_lapic(const kvm_lapic_state& state);
  /// Queues an NMI; at most two wait.
  Result<void> nmi();

  Result<void> set_cpuid(const CpuidTable& table);
  /// One MSR by its index, never filtered. Fails when KVM does not know it.
  [[nodiscard]] Result<std::uint64_t> msr(std::uint32_t index) const;
  Result<void> set_msr(std::uint32_t index, std::uint64_t value);
  /// Up to 8 in one ioctl.
  Result<void> msrs(std::span<const std::uint32_t> indices, std::span<std::uint64_t> values) const;

  /// kHz of the guest's TSC.
  [[nodiscard]] Result<std::uint32_t> tsc_khz() const;
  /// The same when the vCPU was made, which is the frequency of the host's TSC. 0 if KVM did not say.
  [[nodiscard]] std::uint32_t host_tsc_khz() const { return host_tsc_khz_; }
  /// What KVM adds to the (scaled) host TSC. Fails with ENXIO on kernels before 5.16.
  [[nodiscard]] Result<std::uint64_t> tsc_offset() const;
  Result<void> set_tsc_offset(std::uint64_t offset);

  /// How long the vCPU has been halted.
  [[nodiscard]] HaltTime halt_time() const { return HaltTime{statistics()}; }
  /// The number of vCPU exits, and so of VM entries.
  [[nodiscard]] VcpuStatistic exits() const { return VcpuStatistic{statistics(), "exits"}; }

  /// KVM's own page walk, as supervisor. Fails for user addresses when the guest has SMAP on: for tests.
  [[nodiscard]] Result<Translation> translate(vpmu::GuestLinear at);

 private:
  static constexpr std::uint64_t all_groups = ~std::uint64_t{0};
  /// KVM_GET_STATS_FD; empty where KVM has none.
  [[nodiscard]] Fd statistics() const;
  /// KVM_RUN; 0 or its errno.
  int enter(Runs what);
  Result<Exit> exit_after(int error, Runs what);
  Result<void> flush(std::uint64_t groups);
  [[nodiscard]] Exit decode_exit() const;
  void forget_interrupts_under_way();
  void leave_what_others_send();

  std::uint32_t id_;
  Fd fd_;
  Mapping mapping_;
  kvm_run* run_;
  std::uint64_t sync_fields_;  ///< Register groups that this KVM exchanges through kvm_run.
  std::uint64_t fresh_{};      ///< Groups whose copy in kvm_run equals KVM's.
  std::uint64_t dirty_{};      ///< Groups written by us and not yet handed over.
  std::optional<kvm_debugregs> debugregs_;
  std::uint32_t host_tsc_khz_{tsc_khz().value_or(0)};
  bool stepping_{};  ///< KVM_SET_GUEST_DEBUG has asked for single-steps.
  bool running_{};   ///< As is_running().
  int run_error_{};  ///< Of the last run_to_device().
};

}  // namespace vmm
