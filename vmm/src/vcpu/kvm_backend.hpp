#pragma once
#include <optional>

#include "kvm/vcpu.hpp"
#include "kvm/vm.hpp"
#include "vcpu/backend.hpp"
#include "vcpu/guest_clock.hpp"
#include "vcpu/tsc_scale.hpp"

namespace vmm {

/// What a vCPU's clock needs from the host, by KVM.
class KvmClockHost final : public ClockHost {
 public:
  explicit KvmClockHost(Vcpu& vcpu) : vcpu_{&vcpu}, halt_time_{vcpu.halt_time()} {}
  /// Sets the scale between the host's TSC and the guest's.
  void follow(TscScale scale) { scale_ = scale; }
  /// The host's TSC as KVM scales it for the guest.
  [[nodiscard]] std::uint64_t ticks() const override;
  [[nodiscard]] std::chrono::nanoseconds halted() const override { return halt_time_.read(); }
  Result<std::uint64_t> tsc_offset() override { return vcpu_->tsc_offset(); }
  Result<void> set_tsc_offset(std::uint64_t offset) override { return vcpu_->set_tsc_offset(offset); }
  Result<void> rearm_deadline() override;

 private:
  Vcpu* vcpu_;
  HaltTime halt_time_;
  TscScale scale_;
};

/// VcpuBackend over KVM. Holds references: the VM and the vCPU must outlive it.
class KvmBackend final : public VcpuBackend {
 public:
  /// `time`: as time_beside_others() says. If none of KVM's scales explains the guest's TSC, no time is hidden
  /// (`pmu.clock.unknown_scale`). Fails if KVM does not tell the TSC's rate.
  static Result<KvmBackend> create(Vm& vm, Vcpu& vcpu, PmuTime time = PmuTime::hidden);

  /// GuestClock::show_all.
  void show_all_time() {
    wanted_time_ = PmuTime::real;
    clock_.show_all();
    can_.hides_time = clock_.hides();
  }

  /// Another user has changed the vCPU: drops all cached state. No exit may be pending.
  void forget();
  /// Another user has set the rate of the guest's TSC.
  Result<void> follow_tsc();

  using VcpuBackend::run;
  Result<Exit> run(RunMode mode) override;
  DeviceRun run_to_device() override;
  Result<Exit> exit() override;
  Result<void> complete_exit() override;
  Result<void> read(RegistersTo to) override;
  Result<void> write(RegistersFrom from) override;
  Result<void> read_msrs(std::span<const std::uint32_t> indices, std::span<std::uint64_t> values) override {
    return vcpu_->msrs(indices, values);
  }
  Result<void> set_msr(std::uint32_t index, std::uint64_t value) override { return vcpu_->set_msr(index, value); }
  Result<void> forget_translations(const LostTranslations& lost) override;
  Result<void> raise(const RaisedInterrupt& interrupt) override;
  Result<Stored> store_lvtpc(std::uint32_t value) override;
  Result<bool> halted() override;
  void watch_clock(bool on) override;
  [[nodiscard]] std::uint64_t unhalted_ticks() const override { return clock_.unhalted_ticks(); }
  void pass_time(std::uint64_t ticks, std::uint64_t /*instructions*/) override { clock_.pass(ticks); }
  Result<std::uint64_t> tsc_after(std::uint64_t ticks) override;
  [[nodiscard]] std::optional<std::uint64_t> entries() const override { return exits_.read(); }
  void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const override;

 private:
  KvmBackend(Vm& vm, Vcpu& vcpu, PmuTime time)
      : VcpuBackend{vpmu::exec::KickFlag{*vcpu.immediate_exit_flag()}},
        vm_{&vm},
        vcpu_{&vcpu},
        wanted_time_{time},
        exits_{vcpu.exits()},
        clock_host_{vcpu},
        clock_{time, 0} {}
  std::optional<TscScale> find_scale(std::uint32_t khz);

  Result<Exit> run_vcpu(Vcpu::Runs what);
  Result<Exit> run_to_exit();
  Result<Exit> step_quietly();
  Result<Exit> run_one();
  Result<vpmu::exec::VectorState> read_vectors();
  Result<void> write_vectors(const vpmu::exec::VectorState& state);
  Result<void> debug_guest(const kvm_guest_debug& debug);

  Vm* vm_;
  Vcpu* vcpu_;
  PmuTime wanted_time_;
  VcpuStatistic exits_;
  bool unknown_scale_{};
  KvmClockHost clock_host_;
  GuestClock clock_;
  bool stepping_{};
  bool holds_interrupts_{};            ///< KVM_GUESTDBG_BLOCKIRQ is on.
  std::uint64_t interrupt_holds_{};    ///< Times that it was turned on or off.
  bool exit_open_{};                   ///< The last exit has not been completed.
  std::optional<Exit> early_;          ///< An exit that occurred outside of run(); the next run() returns it.
  std::optional<XsaveArea> xsave_;     ///< KVM's state, cached until the vCPU runs.
  std::optional<std::uint64_t> xcr0_;  ///< The same, until the vCPU runs anything but a quiet instruction.
};

}  // namespace vmm
