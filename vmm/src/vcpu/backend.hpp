#pragma once
#include <linux/kvm.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <variant>

#include "exec/state/cpu_feature.hpp"
#include "exec/state/kick_flag.hpp"
#include "exec/state/vector_state.hpp"
#include "kvm/exit.hpp"
#include "support/result.hpp"
#include "vcpu/lost_translations.hpp"
#include "vpmu/observer.hpp"

namespace vmm {

/// The result of a store into the APIC's page.
enum class Stored : std::uint8_t {
  done,
  not_now,  ///< Not possible at this instruction: try again after the vCPU has run on.
  never,    ///< Its APIC has been moved, it may run nested guests, or KVM does not run the store.
};

/// What CPUID says about the guest's page tables. SDM 3A 4.1.4.
struct PagingLimits {
  std::uint8_t physical_width{52};  ///< Leaf 80000008H, EAX[7:0].
  bool gigabyte_pages{true};        ///< Leaf 80000001H, EDX[26].
};

/// What the other thread of a vCPU's core does.
struct Sibling {
  bool runs{};  ///< It is not halted. Without a sibling: false.
  /// Instructions that it has run at CPL 0, and at CPL 1 to 3; of these, while this vCPU was halted.
  std::array<std::uint64_t, 2> instructions{}, alone{};
  /// The same, counted from `before` on.
  [[nodiscard]] Sibling since(const Sibling& before) const {
    Sibling all = *this;
    for (unsigned level = 0; level < all.alone.size(); ++level) {
      all.instructions[level] -= before.instructions[level];
      all.alone[level] -= before.alone[level];
    }
    return all;
  }
};

/// What a back end can do beyond what each must.
struct VcpuAbilities {
  /// The guest's clock advances by pass_time() only while instructions are emulated, however long that takes, but by
  /// the host's time in run().
  bool hides_time{};
  /// RDPMC gives a CounterRead exit. On KVM it raises #GP in the guest, and RdpmcGate must answer it.
  bool exits_on_rdpmc{};
  /// MOV to and from debug registers gives a Debug exit if set_guest_debug() sets DR7.GD; the guest's own DR7.GD then
  /// only raises #DB in the guest.
  bool exits_on_general_detect{true};
  /// No other vCPU of the guest runs at the same time.
  bool runs_alone{};
  /// Which instructions the guest can run: a bit for each CpuFeature, as Platform::has() asks. On KVM, CPUID hides no
  /// instruction that the host has.
  std::uint64_t features{~std::uint64_t{}};
  /// Which bits of page-table entries the processor that runs the guest holds for reserved.
  PagingLimits paging;
  std::uint64_t tsc_khz{};  ///< kHz of the guest's TSC.
};

/// How far VcpuBackend::run() goes.
enum class RunMode : std::uint8_t {
  to_exit,  ///< Until an exit that the caller must handle; a signal gives Interrupted.
  /// For one instruction that is `quiet` (Instruction::quiet), after set_guest_debug() has armed a single-step for it.
  /// Where the back end can, the guest's clock advances by one tick only, and cached state that such an instruction
  /// cannot change stays valid.
  quiet_step,
  /// For one instruction that does not read the time, or for the delivery of an event, after set_guest_debug() has
  /// armed the stop behind it. Where the back end can, the guest's clock advances by one tick only.
  once,
};

/// Why an engine stopped before the guest's next instruction: Engine::run(), missing() and raised().
struct LeftByEngine {
  vpmu::exec::Stop why{};
  std::optional<vpmu::exec::MissingAccess> missing;
  std::uint8_t raised{};
};

/// What came of an instruction that an engine left.
struct LeftRun {
  enum class End : std::uint8_t {
    not_run,
    retired,
    delivered,  ///< It has faulted: the vCPU is at the handler.
  } end{};
  std::optional<Exit> exit{};
};

/// Registers, as KVM groups them: where to read them to, and where to write them from.
using RegistersTo =
    std::variant<kvm_regs*, kvm_sregs*, kvm_vcpu_events*, kvm_debugregs*, vpmu::exec::VectorState*, kvm_lapic_state*>;
using RegistersFrom = std::variant<const kvm_regs*, const kvm_sregs*, const kvm_vcpu_events*, const kvm_debugregs*,
                                   const vpmu::exec::VectorState*, const kvm_guest_debug*>;
/// Bytes to read, or to write.
using BytesOfAccess = std::variant<std::span<std::byte>, std::span<const std::byte>>;

/// An NMI, or a fixed interrupt by the LAPIC.
struct RaisedInterrupt {
  bool nmi{};
  std::uint32_t apic_id{};
  std::uint8_t vector{};
};

/// Keeps what it knows of guest memory while a back end runs the vCPU, and is told what no longer holds.
class MemoryFollower {
 public:
  /// Somebody has written to a page of RAM.
  virtual void written(vpmu::GuestPhysical page) = 0;
  /// A device may have written to RAM, and does not say where.
  virtual void written_unseen() = 0;
  virtual void lost(const vpmu::exec::LostByInstruction& lost) = 0;

 protected:
  MemoryFollower() = default;
  ~MemoryFollower() = default;
  MemoryFollower(const MemoryFollower&) = default;
  MemoryFollower& operator=(const MemoryFollower&) = default;
  MemoryFollower(MemoryFollower&&) = default;
  MemoryFollower& operator=(MemoryFollower&&) = default;
};

/// What runs one virtual CPU: the interface between the PMU code and KVM, or the instruction engine. Tests implement it
/// with a scripted one. Every member belongs to the thread that runs the vCPU.
///
/// The virtual functions are what a back end must do, in four groups: running, registers, events, the clock. The others
/// are how their callers say it.
class VcpuBackend {
 public:
  virtual ~VcpuBackend() = default;

  [[nodiscard]] const VcpuAbilities& abilities() const { return can_; }
  [[nodiscard]] bool hides_time() const { return can_.hides_time; }
  [[nodiscard]] bool exits_on_rdpmc() const { return can_.exits_on_rdpmc; }
  [[nodiscard]] bool exits_on_general_detect() const { return can_.exits_on_general_detect; }
  [[nodiscard]] bool runs_alone() const { return can_.runs_alone; }
  [[nodiscard]] PagingLimits paging_limits() const { return can_.paging; }
  [[nodiscard]] std::uint64_t tsc_khz() const { return can_.tsc_khz; }
  [[nodiscard]] bool has(vpmu::exec::CpuFeature feature) const {
    return (can_.features >> static_cast<unsigned>(feature) & 1U) != 0;
  }
  /// Set while another thread wants the vCPU out of its guest: run() then returns Interrupted before any instruction,
  /// and clears the flag if a kick of ours set it. Signals and other threads may set it at any time. Code that works
  /// long outside of run() must check it; it lives as long as the back end.
  [[nodiscard]] vpmu::exec::KickFlag kick_flag() const { return kick_flag_; }

  // Running.
  virtual Result<Exit> run(RunMode mode) = 0;
  Result<Exit> run() { return run(RunMode::to_exit); }
  Result<Exit> step() { return run(RunMode::quiet_step); }
  Result<Exit> run_once() { return run(RunMode::once); }
  /// How run_to_device() ended.
  enum class DeviceRun : std::uint8_t {
    device_exit,  ///< An exit to a device, in the back end's own form only (KVM's: kvm_run).
    other_exit,   ///< exit() returns what run() would have returned.
    not_run,      ///< Nothing has run.
  };
  /// Like run() while watch_clock() is off, for a guest that is expected to exit to devices only. Where the back end
  /// can, such an exit costs no more than KVM's.
  virtual DeviceRun run_to_device() { return DeviceRun::not_run; }
  virtual Result<Exit> exit() { return Interrupted{}; }
  /// Whether the back end needs no breakpoint to stop behind one instruction: otherwise run_left() runs none.
  [[nodiscard]] virtual bool runs_left() const { return false; }
  /// Runs the next instruction, which an engine has left, if nothing comes before it and no debugger, the guest's or
  /// another, watches it.
  virtual LeftRun run_left(const LeftByEngine& /*left*/) { return {}; }
  /// From here on `follower` is told what happens to memory and translations while it does not run the vCPU itself: on
  /// the thread whose vCPU's turn it is. Null: nobody is, and when this returns nobody is being told. False if the back
  /// end does not know.
  virtual bool tell(MemoryFollower* /*follower*/) { return false; }
  /// Completes the instruction of the last MSR, counter, port or MMIO exit without running the guest, so that RIP and
  /// registers are final. If the access continues with another exit, the next run() returns that.
  virtual Result<void> complete_exit() = 0;
  /// What the other thread of its core has done. While the vCPU may run.
  [[nodiscard]] virtual Sibling sibling() const { return {}; }
  /// An access by the vCPU within a page that is mapped where there is no RAM: to what is there. False if it is no such
  /// access, or if the VMM is not told of it.
  virtual bool access_beyond_ram(vpmu::GuestLinear /*at*/, BytesOfAccess /*bytes*/) { return false; }

  // Registers. Vector registers are slow: several system calls, each for whole components. Registers must be written
  // before kvm_guest_debug: KVM remembers the RIP at which stepping starts.
  virtual Result<void> read(RegistersTo to) = 0;
  virtual Result<void> write(RegistersFrom from) = 0;
  Result<kvm_regs> regs() { return read_as<kvm_regs>(); }
  Result<void> set_regs(const kvm_regs& regs) { return write(&regs); }
  Result<kvm_sregs> sregs() { return read_as<kvm_sregs>(); }
  Result<void> set_sregs(const kvm_sregs& sregs) { return write(&sregs); }
  Result<kvm_vcpu_events> events() { return read_as<kvm_vcpu_events>(); }
  Result<void> set_events(const kvm_vcpu_events& events) { return write(&events); }
  Result<kvm_debugregs> debugregs() { return read_as<kvm_debugregs>(); }
  Result<void> set_debugregs(const kvm_debugregs& regs) { return write(&regs); }
  Result<vpmu::exec::VectorState> vectors() { return read_as<vpmu::exec::VectorState>(); }
  Result<void> set_vectors(const vpmu::exec::VectorState& state) { return write(&state); }
  Result<kvm_lapic_state> lapic() { return read_as<kvm_lapic_state>(); }
  Result<void> set_guest_debug(const kvm_guest_debug& debug) { return write(&debug); }
  /// Reads the guest's MSRs as KVM holds them, regardless of the filter, into as many `values`. One system call where
  /// the back end can.
  virtual Result<void> read_msrs(std::span<const std::uint32_t> indices, std::span<std::uint64_t> values) = 0;
  Result<std::uint64_t> msr(std::uint32_t index) {
    std::uint64_t value{};
    VMM_TRY(read_msrs({&index, 1}, {&value, 1}));
    return value;
  }
  virtual Result<void> set_msr(std::uint32_t index, std::uint64_t value) = 0;
  /// The TLBs have lost this by instructions outside of any run() of the vCPU: flushes what the back end has cached.
  virtual Result<void> forget_translations(const LostTranslations& lost) = 0;

  // Events.
  virtual Result<void> raise(const RaisedInterrupt& interrupt) = 0;
  Result<void> nmi() { return raise({.nmi = true}); }
  /// A fixed-vector interrupt to this vCPU's LAPIC.
  Result<void> interrupt(std::uint32_t apic_id, std::uint8_t vector) {
    return raise({.apic_id = apic_id, .vector = vector});
  }
  /// In xAPIC mode: stores into LVTPC like the guest itself. No other register of the APIC changes, and no interrupt
  /// that arrives meanwhile is lost. Not allowed at the IRET of an NMI handler.
  virtual Result<Stored> store_lvtpc(std::uint32_t value) = 0;
  /// Whether the vCPU is in HLT, waiting for an interrupt.
  virtual Result<bool> halted() = 0;

  // The clock.
  /// Whether the PMU is in use from now on: unhalted_ticks() counts only while it is (guest_clock.hpp).
  virtual void watch_clock(bool on) = 0;
  /// TSC ticks that the vCPU has run unhalted while its clock was watched, as the guest saw them.
  [[nodiscard]] virtual std::uint64_t unhalted_ticks() const = 0;
  /// The caller has emulated so many of the guest's next instructions since the last exit: advances its clock by
  /// `ticks` of the TSC, or by fewer while other vCPUs share the time (MachineClock).
  virtual void pass_time(std::uint64_t ticks, std::uint64_t instructions) = 0;
  /// What was emulated has taken lines that another vCPU had changed: they should take turns more often.
  virtual void contend() {}
  /// How long the turns are that vCPUs take now, in ticks; very long if they take none.
  [[nodiscard]] virtual std::uint64_t turn() const { return ~std::uint64_t{0}; }
  /// For how many ticks from now run() has nothing to handle: no interrupt, no end of the machine, no kick. 0:
  /// something waits now. Empty: the back end does not know.
  virtual std::optional<std::uint64_t> quiet_for() { return std::nullopt; }
  /// Call before emulating instructions outside of run(). Waits for the vCPU's turn, or for a kick, and lets expired
  /// timers raise their interrupts. Returns how many instructions may be emulated before the next run(): `left` if the
  /// back end knows no limit, none after a kick.
  virtual std::uint64_t look_around(std::uint64_t left) { return left; }
  /// The guest's TSC after that many more ticks of pass_time().
  virtual Result<std::uint64_t> tsc_after(std::uint64_t ticks) = 0;
  Result<std::uint64_t> tsc() { return tsc_after(0); }

  /// How often the processor has entered the guest, for any reason; empty if not known.
  [[nodiscard]] virtual std::optional<std::uint64_t> entries() const { return std::nullopt; }
  /// Calls `visit(name, value)` for each statistic of the back end.
  virtual void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& /*visit*/) const {}

 protected:
  explicit VcpuBackend(vpmu::exec::KickFlag kick_flag) : kick_flag_{kick_flag} {}
  VcpuBackend(const VcpuBackend&) = default;
  VcpuBackend& operator=(const VcpuBackend&) = default;
  VcpuBackend(VcpuBackend&&) = default;
  VcpuBackend& operator=(VcpuBackend&&) = default;

  VcpuAbilities can_;

 private:
  template <class Registers>
  Result<Registers> read_as() {
    Result<Registers> registers{Registers{}};
    VMM_TRY(read(&*registers));
    return registers;
  }

  vpmu::exec::KickFlag kick_flag_;
};

}  // namespace vmm
