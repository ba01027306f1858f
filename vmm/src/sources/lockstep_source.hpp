#pragma once
#include <array>
#include <map>
#include <random>
#include <string_view>

#include "exec/engine.hpp"
#include "memory/overlay_ram.hpp"
#include "sources/step_source.hpp"

namespace vmm {

struct LockstepStatistics {
  std::uint64_t compared{};   ///< Instructions that the engine and KVM did alike.
  std::uint64_t left{};       ///< Those that the engine left to others.
  std::uint64_t unclear{};    ///< Those that an exit or an interrupt kept from being compared.
  std::uint64_t windows{};
  std::map<std::string_view, std::uint64_t> mnemonics;  ///< Of those compared.
};

/// Counts nothing: holds the engine against KVM. In windows that lie at random in the guest's time, each instruction is first done by the
/// engine, on a copy of what it touches, and then by KVM's single-step. General registers, RIP, RFLAGS, segment bases and touched pages must
/// be the same after both; where they are not the run ends with an error that names the instruction and the first difference.
///
/// Flags that the manual leaves undefined are not compared, nor accessed bits in page tables. What KVM writes to pages that the engine has
/// not touched goes unseen.
class LockstepSource final : public CountSource {
 public:
  LockstepSource(std::unique_ptr<CpuTimer> timer, Breakpoints& breakpoints, GuestView& view, const LinearMemory& memory, std::uint64_t seed)
      : view_{&view}, ram_{memory}, steps_{std::move(timer), breakpoints, view}, engine_{ram_, nobody_}, random_{seed} {}

  static constexpr SourceTraits description{.name = "lockstep"};
  [[nodiscard]] const SourceTraits& traits() const override { return description; }

  Result<void> program(const vpmu::CountPlan& plan) override;
  Result<RunEnd> run(VcpuPort& port, std::optional<std::chrono::nanoseconds> at_most) override;
  /// Always empty.
  Result<vpmu::CountDeltas> sync(VcpuPort& port) override;
  Result<RunEnd> walk(VcpuPort& port, const vpmu::CountPlan& plan) override;
  void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const override;

 private:
  /// The instruction at RIP, and what the engine made of it.
  struct Trial {
    std::array<std::byte, 15> bytes{};
    std::size_t fetched{};
    kvm_regs before{};
    kvm_sregs sregs{};
    bool retired{};
    vpmu::exec::CpuState after;
  };

  Result<std::optional<Trial>> try_one(VcpuPort& port);
  Result<RunEnd> step(VcpuPort& port, std::optional<std::chrono::nanoseconds> at_most);
  Result<void> compare(VcpuPort& port, const Trial& trial);
  Result<void> begin_window();
  Result<void> end_window();

  GuestView* view_;
  OverlayRam ram_;
  vpmu::exec::NoPlatform nobody_;
  StepSource steps_;
  vpmu::exec::Engine engine_;
  std::mt19937_64 random_;
  std::uint64_t window_left_{};  ///< Instructions; 0 while the guest runs freely.
  bool begin_{};                 ///< The guest has run freely long enough.
  LockstepStatistics statistics_{};
};

}  // namespace vmm
