#pragma once
#include <functional>
#include <optional>
#include <utility>

#include "decode/instruction.hpp"
#include "exec/engine.hpp"
#include "memory/engine_ram.hpp"
#include "memory/host_code.hpp"
#include "sources/guest_time.hpp"
#include "sources/source.hpp"
#include "vcpu/backend.hpp"
#include "vcpu/guest_view.hpp"

namespace vmm {

/// The engine, and what it holds of the vCPU that it runs, from take() until give_back().
///
/// Meanwhile it emulates RDTSC, RDTSCP, and in run_many() STI and SWAPGS, and has the vector registers if an
/// instruction needed them; every other system instruction stops the engine. The back end has the registers only after
/// store().
class EngineVcpu final : private vpmu::exec::NoPlatform, private MemoryFollower {
 public:
  /// `memory` must outlive it.
  EngineVcpu(const LinearMemory& memory, vpmu::exec::Compiling compiling)
      : ram_{memory}, engine_{ram_, *this, &host_code_, compiling} {}
  EngineVcpu(const EngineVcpu&) = delete;
  EngineVcpu& operator=(const EngineVcpu&) = delete;
  EngineVcpu(EngineVcpu&&) = delete;
  EngineVcpu& operator=(EngineVcpu&&) = delete;
  ~EngineVcpu() override;

  /// It is going to take the vCPU of this back end, which must outlive it and has this state.
  void follow(VcpuBackend& backend, const vpmu::exec::CpuState& state);
  /// Whether that tells what becomes of memory and translations while it has the vCPU itself.
  [[nodiscard]] bool follows() const { return follows_; }
  /// Takes the vCPU of this back end, which has these registers, and no interrupt shadow. The back end must outlive it.
  void take(VcpuBackend& backend, const kvm_regs& regs, const kvm_sregs& sregs);
  /// Between give_back() and take(): forgets what the TLBs have lost since, if this is the state now.
  void catch_up(const vpmu::exec::CpuState& state);
  /// Gives it back: first what the engine has written to the dirty-page log, then the vector registers.
  void log_written() { ram_.close(); }
  Result<void> give_back();

  [[nodiscard]] vpmu::exec::Engine& engine() { return engine_; }
  [[nodiscard]] const vpmu::exec::Engine& engine() const { return engine_; }

  /// As Engine::observe(), which has first forgotten what the TLBs have lost.
  void observe(vpmu::Observer* observer);
  /// From here on `model` is told at once what the TLBs lose, whether it observes or not: it may share what it knows of
  /// the page tables with another thread's.
  void tell_lost(vpmu::Observer& model) { model_ = &model; }

  /// What SWAPGS does: gives the base of GS another value. False: it is left to the owner.
  using SwapGs = std::function<bool(VcpuBackend&, __u64& base)>;
  void swap_gs_by(SwapGs swap) { swap_gs_ = std::move(swap); }
  /// From here on RDTSC gives the time that this says.
  void tell_time(GuestTime& time) { time_ = &time; }

  /// Its registers. After a change, call resume().
  [[nodiscard]] kvm_regs& regs() { return regs_; }
  [[nodiscard]] const kvm_regs& regs() const { return regs_; }
  [[nodiscard]] kvm_sregs& sregs() { return sregs_; }
  [[nodiscard]] const kvm_sregs& sregs() const { return sregs_; }
  [[nodiscard]] unsigned cpl() const { return cpl_of(sregs_); }
  [[nodiscard]] vpmu::GuestLinear ip() const { return instruction_pointer(regs_, sregs_); }
  /// The engine goes on from these registers. `flush`: see Engine::resume().
  void resume(const std::optional<vpmu::TlbFlush>& flush = {});

  /// KVM_X86_SHADOW_INT_* of STI or MOV SS, which lasts for one instruction; 0: none.
  [[nodiscard]] std::uint8_t shadow() const { return shadow_; }
  void set_shadow(std::uint8_t shadow) { shadow_ = shadow; }
  /// That instruction has run: the back end is told, too.
  Result<void> end_shadow();

  /// RunEnd::told.
  using Told = decltype(RunEnd::told);
  /// From here on run() ends behind an instruction that is to be told.
  void tell() { tells_ = true; }
  /// Whether the last instruction was one.
  [[nodiscard]] bool has_told() const { return told_.index() != 0; }
  Told take_told() { return std::exchange(told_, {}); }

  /// Runs until so many instructions have retired, or until something stops the engine earlier. Stop::again: it has
  /// done a part of a long string instruction, after many calls of Engine::run() or because of a kick.
  vpmu::exec::Stop run(std::uint64_t instructions);
  /// The same for an owner that need not know which instructions these are.
  vpmu::exec::Stop run_many(std::uint64_t instructions);
  /// Gives the back end the registers that they have changed.
  Result<void> store();
  [[nodiscard]] bool is_kicked() const { return backend_->kick_flag().is_set(); }
  /// What has retired since the last call.
  vpmu::exec::Passed take_passed();
  /// Instructions since the last call, which must now advance the guest's clock.
  std::uint64_t take_ticks();

  /// Times that the vector registers were read from a back end.
  [[nodiscard]] std::uint64_t vectors_read() const { return vectors_read_; }

 private:
  void tell_unless_observed(const vpmu::TlbFlush& flush);
  vpmu::exec::Answer rdtsc(std::uint64_t& value) override;
  vpmu::exec::Answer rdtscp(std::uint64_t& value, std::uint64_t& aux) override;
  bool has(vpmu::exec::CpuFeature feature) override { return backend_->has(feature); }
  bool runs_alone() override { return backend_->runs_alone(); }
  vpmu::exec::Answer enables_interrupts() override;
  vpmu::exec::Answer swap_gs(std::uint64_t& base) override;
  void switches_stack(std::uint64_t to) override;
  void exchanges_rbx(std::uint64_t behind) override;
  vpmu::exec::VectorState* vectors() override;
  void written(vpmu::GuestPhysical page) override { engine_.written(page); }
  void written_unseen() override { engine_.written_unseen(); }
  void lost(const vpmu::exec::LostByInstruction& lost) override;

  EngineRam ram_;
  MappedHostCode host_code_;
  vpmu::exec::Engine engine_;
  SwapGs swap_gs_;
  bool runs_many_{};  ///< Within run_many().
  bool tells_{};
  Told told_;
  bool changed_sregs_{};        ///< The back end has others.
  GuestTime* time_{};           ///< Null: an instruction is a tick.
  VcpuBackend* backend_{};      ///< That it was last taken from.
  bool follows_{};              ///< That tells what happens to memory.
  LostTranslations lost_;       ///< Since it was given back.
  vpmu::Observer* observer_{};  ///< The engine's; null: none.
  vpmu::Observer* model_{};     ///< Null: there is none.
  kvm_regs regs_{};
  kvm_sregs sregs_{};
  std::optional<vpmu::exec::VectorState> vectors_;  ///< Once needed.
  std::optional<std::uint64_t> tsc_aux_;            ///< IA32_TSC_AUX, once needed.
  std::uint8_t shadow_{};
  vpmu::exec::Passed taken_passed_{};  ///< The part of Engine::passed() that take_passed() has given.
  std::uint64_t taken_ticks_{};        ///< The part of its instructions that take_ticks() has given.
  std::uint64_t vectors_read_{};
};

}  // namespace vmm
