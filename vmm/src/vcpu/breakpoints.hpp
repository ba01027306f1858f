#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "support/result.hpp"
#include "vcpu/backend.hpp"
#include "vpmu/address.hpp"

namespace vmm {

/// Addresses at which a walk or a single-step may end. The first is a walk's destination; the others are left out if
/// debug registers are scarce.
struct Stops {
  static constexpr unsigned max = 3;
  std::array<vpmu::GuestLinear, max> at{};
  unsigned size{};

  Stops() = default;
  Stops(vpmu::GuestLinear only) : at{only}, size{1} {}
  void add(std::optional<vpmu::GuestLinear> more) {
    if (more && size < max && !has(*more)) at[size++] = *more;
  }
  [[nodiscard]] bool has(vpmu::GuestLinear place) const {
    return std::find(at.begin(), at.begin() + size, place) != at.begin() + size;
  }
  friend bool operator==(const Stops&, const Stops&) = default;
};

/// The vCPU's debug facilities, shared with the guest: our execution breakpoints and single-steps on top of the guest's
/// own DR0-DR3. While any of ours is set, KVM uses our copy of the debug registers; the guest's breakpoints are merged
/// into it, and its #DB are injected into it again. DR7.GD makes each MOV DR of the guest exit meanwhile, so that it
/// takes effect at once. While none of ours is set, nothing is armed and nothing costs anything.
class Breakpoints {
 public:
  /// Whose event a Debug exit reports.
  enum class Hit : std::uint8_t {
    ours,   ///< One of our breakpoints or our single-step; the guest must not see it.
    guest,  ///< The guest's own; inject() gives it back.
    kvm,  ///< KVM's own single-step: on AMD it steps over what blocks a pending NMI, and reports that step while guest
          ///< debugging is on. To be ignored.
  };

  explicit Breakpoints(VcpuBackend& backend)
      : backend_{&backend}, exits_on_detect_{backend.exits_on_general_detect()} {}

  /// Sets the permanent breakpoint of the RDPMC gate; empty removes it. Takes effect at apply().
  void set_gate(std::optional<vpmu::GuestLinear> at) { gate_ = at; }
  [[nodiscard]] std::optional<vpmu::GuestLinear> gate() const { return gate_; }
  /// Sets a breakpoint at the guest's #DB handler, which finds MOV DR (DebugMoves) where
  /// VcpuBackend::exits_on_general_detect() is false. Empty removes it.
  void set_debug_gate(std::optional<vpmu::GuestLinear> at) { debug_gate_ = exits_on_detect_ ? std::nullopt : at; }
  [[nodiscard]] std::optional<vpmu::GuestLinear> debug_gate() const { return debug_gate_; }
  /// Whether the guest's own DR7 has GD set by us.
  [[nodiscard]] bool detects() const { return detects_; }
  /// Our DR7.GD has raised #DB: restores the guest's DR6.
  Result<void> take_detection_back();
  /// Restores the guest's view of its debug registers, for others that read them. Cancels a #DB that our DR7.GD has
  /// raised and that is not delivered yet: the vCPU is still at the MOV DR.
  Result<void> put_away();
  /// The guest's debug registers, as it knows them.
  Result<kvm_debugregs> guests_registers();
  Result<void> set_guests_registers(kvm_debugregs regs);

  /// Sets breakpoints for one walk; empty removes them. While they are set, interrupts are held off where KVM can do
  /// that. Ends a single-step, whose TF would be visible during a walk.
  void set_walk(const Stops& stops) {
    stops_ = stops;
    step_ = step_ && stops.size == 0;
  }
  /// Stops once, after one instruction or at one of `stops`. Set the registers first: KVM remembers where a step
  /// begins, so the next apply() always calls KVM. A finished step may stay armed until the guest is to run freely. Not
  /// allowed while the guest single-steps itself: KVM would take its RFLAGS.TF for ours.
  void arm_step(const Stops& stops = {}) {
    step_ = unarmed_ = true;
    stops_ = stops;
  }
  void end_step() {
    step_ = false;
    stops_ = {};
  }
  /// Whether a breakpoint of ours that is set in KVM was wanted at `at`.
  [[nodiscard]] bool stops_at(vpmu::GuestLinear at) const { return at == applied_.gate || applied_.stops.has(at); }

  /// Gives KVM the wanted state if it differs. Costs one ioctl if something has changed and, while a breakpoint of ours
  /// is set, another one the first time after the guest ran.
  Result<void> apply();
  /// Whether nothing of ours is set, in KVM either.
  [[nodiscard]] bool none() const {
    return !gate_ && stops_.size == 0 && !step_ && !unarmed_ && applied_.is_nothing() && !detects_;
  }
  /// Another user has set KVM's guest debugging: the next apply() sets ours again.
  void given_others() { unarmed_ = true; }

  /// Merges the gate's breakpoint into another user's guest debugging, displacing one of its breakpoints if no register
  /// is free. The result for KVM replaces ours until the next apply().
  [[nodiscard]] kvm_guest_debug beside_gate(const kvm_guest_debug& others);

  /// Whose event a Debug exit is. `kvm_may_step`: an NMI is pending, and the guest has not just cleared TF. Cost: none.
  [[nodiscard]] Hit classify(const Debug& exit, std::uint64_t rflags, bool kvm_may_step) const;
  /// The guest's part of an exit after an instruction that we ran: data breakpoints of its own that it hit, and its own
  /// single-step unless we stepped. One ioctl if any breakpoint matched, otherwise none.
  Result<std::optional<Debug>> guests_part(const Debug& exit);
  /// Which of the guest's own execution breakpoints are at `at`, as bits 3:0 of DR6; as of the last entry.
  [[nodiscard]] std::uint64_t guests_at(vpmu::GuestLinear at) const;
  /// Injects the guest's #DB, with DR6 as the CPU would set it.
  Result<void> inject(const Debug& exit);

  /// Guest breakpoints that had to give way to ours because all four registers were in use.
  [[nodiscard]] std::uint64_t displaced() const { return displaced_; }

 private:
  struct Wanted {
    std::optional<vpmu::GuestLinear> gate;
    Stops stops;
    bool step{};
    friend bool operator==(const Wanted&, const Wanted&) = default;
    [[nodiscard]] bool is_nothing() const { return !gate && stops.size == 0 && !step; }
  };
  /// Who uses one of DR0 to DR3.
  enum class Holder : std::uint8_t { nobody, guest, us };
  using Holders = std::array<Holder, 4>;
  static bool place_if_free(kvm_guest_debug& debug, vpmu::GuestLinear at, Holders& holders);
  void place(kvm_guest_debug& debug, vpmu::GuestLinear at, Holders& holders);

  Result<void> detect(bool on);

  VcpuBackend* backend_;
  bool exits_on_detect_;
  std::optional<vpmu::GuestLinear> gate_, debug_gate_;
  bool detects_{};
  std::uint64_t guests_detect_{};  ///< The guest's own DR7.GD, while detects_.
  Stops stops_;
  bool step_{}, unarmed_{};
  Wanted applied_{};
  std::uint64_t ours_{};  ///< Which of DR0 to DR3, as KVM has them, are ours: bits as in DR6.
  std::uint64_t displaced_{};
  kvm_debugregs guest_{};  ///< The guest's own registers, as last read.
};

}  // namespace vmm
