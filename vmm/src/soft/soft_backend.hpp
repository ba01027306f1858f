#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "exec/compile/compiling.hpp"
#include "kvm/cpuid_table.hpp"
#include "perf/cpu_timer.hpp"
#include "snapshot/byte_stream.hpp"
#include "vcpu/backend.hpp"

namespace vmm {

class DebugUnit;
class InstructionRunner;
class LinearMemory;
class Log;
class MmioDevices;
class SoftBoard;
class SoftEngine;
class SoftTurn;
struct SoftCore;

/// The initial state of a vCPU without KVM.
struct SoftStart {
  std::uint32_t id{};      ///< Its APIC id, and its number on the board.
  bool waits_for_start{};  ///< In the wait-for-SIPI state, like all but the boot processor; the registers are ignored.
  kvm_sregs sregs{};
  kvm_regs regs{};
  static constexpr std::uint64_t default_tsc_khz = 2'500'000;
  std::uint64_t tsc_khz{default_tsc_khz};
  vpmu::exec::Compiling compiling{};
  Log* log{};  ///< Gets each unknown instruction once; must outlive the back end. May be null.
  /// A program has executed CPUID with this in EAX, on the vCPU's thread. Empty: none is asked for.
  std::uint32_t mark_leaf{};
  std::function<void()> marked{};
  MmioDevices* devices{};  ///< Handles accesses where there is no RAM; must outlive the back end. May be null.
};

/// A vCPU without KVM: the engine runs the guest's code, and this class does what KVM does around it. Behaves like KVM
/// as far as the PMU code can see: MSRs that are not the processor's own exit, and guest debugging works as KVM's; but
/// RDPMC also exits.
///
/// Time is virtual: an instruction takes one tick of the TSC (MachineClock), so does entering a handler, and nothing
/// else takes any time. Two runs with the same input are identical. The vCPUs of a machine take turns (RoundRobin):
/// run() waits for its own, which lasts until a later run() ends it.
class SoftBackend final : public VcpuBackend {
 public:
  static constexpr std::uint64_t default_tsc_khz = SoftStart::default_tsc_khz;

  /// `memory` and `board` must outlive it. Without `board` it is alone on a board of its own.
  SoftBackend(LinearMemory& memory, CpuidTable cpuid, const SoftStart& start, SoftBoard* board = nullptr);
  SoftBackend(const SoftBackend&) = delete;
  SoftBackend& operator=(const SoftBackend&) = delete;
  SoftBackend(SoftBackend&&) = delete;
  SoftBackend& operator=(SoftBackend&&) = delete;
  ~SoftBackend() override;

  /// Makes timers on the virtual time of this vCPU. They may not outlive it.
  [[nodiscard]] TimerFactory timers();
  /// run() returns TimeUp once the vCPU has run for `ticks` in total.
  void stop_after(std::uint64_t ticks);
  /// When set, on any thread, run() returns Interrupted.
  [[nodiscard]] volatile std::uint8_t* kick_target() { return &kicked_; }
  /// Somebody other than this vCPU has written to a page of RAM.
  void written(vpmu::GuestPhysical page);

  /// Also returns Hlt, when all vCPUs of the machine are halted and nothing can wake any of them. If only a device can
  /// wake one, it waits.
  Result<Exit> run(RunMode mode) override;
  using VcpuBackend::run;
  [[nodiscard]] bool runs_left() const override { return true; }
  LeftRun run_left(const LeftByEngine& left) override;
  bool tell(MemoryFollower* follower) override;
  bool access_beyond_ram(vpmu::GuestLinear at, BytesOfAccess bytes) override;
  [[nodiscard]] Sibling sibling() const override;
  Result<void> complete_exit() override;
  Result<void> read(RegistersTo to) override;
  Result<void> write(RegistersFrom from) override;
  Result<void> read_msrs(std::span<const std::uint32_t> indices, std::span<std::uint64_t> values) override;
  Result<void> set_msr(std::uint32_t index, std::uint64_t value) override;
  Result<void> forget_translations(const LostTranslations& lost) override;
  Result<void> raise(const RaisedInterrupt& interrupt) override;
  Result<Stored> store_lvtpc(std::uint32_t value) override;
  void set_lapic(const kvm_lapic_state& state);
  Result<bool> halted() override;
  void watch_clock(bool on) override;
  [[nodiscard]] std::uint64_t unhalted_ticks() const override;
  void pass_time(std::uint64_t ticks, std::uint64_t instructions) override;
  void contend() override;
  [[nodiscard]] std::uint64_t turn() const override;
  std::optional<std::uint64_t> quiet_for() override;
  std::uint64_t look_around(std::uint64_t left) override;
  Result<std::uint64_t> tsc_after(std::uint64_t ticks) override;

  /// The whole state as bytes, between two runs of which the last returned Interrupted or TimeUp. Without decoded code,
  /// translations, statistics and its users' timers.
  [[nodiscard]] Bytes save() const;
  /// The reverse, before the first run. Fails with kind usage if the bytes do not have this form, describe an
  /// impossible state, or features that the vCPU lacks; it must not run then.
  Result<void> restore(std::span<const std::byte> image);
  void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const override;

 private:
  void take_turn();
  void take_start();
  std::optional<Exit> take_events();

  volatile std::uint8_t kicked_{};
  std::unique_ptr<SoftBoard> own_board_;
  std::unique_ptr<SoftCore> core_;
  std::unique_ptr<DebugUnit> debug_;
  std::unique_ptr<SoftEngine> engine_;
  std::unique_ptr<InstructionRunner> runner_;
  std::unique_ptr<SoftTurn> turn_;
};

}  // namespace vmm
