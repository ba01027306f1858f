#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "support/result.hpp"
#include "vcpu/port.hpp"
#include "vpmu/address.hpp"

namespace vmm {

/// Places at which a walk or a step may end. The first is what it is for; the others are given up where registers are
/// scarce.
struct Stops {
  static constexpr unsigned most = 3;
  std::array<vpmu::GuestLinear, most> at{};
  unsigned size{};

  Stops() = default;
  Stops(vpmu::GuestLinear only) : at{only}, size{1} {}
  void add(std::optional<vpmu::GuestLinear> more) {
    if (more && size < most && !has(*more)) at[size++] = *more;
  }
  [[nodiscard]] bool has(vpmu::GuestLinear place) const {
    return std::find(at.begin(), at.begin() + size, place) != at.begin() + size;
  }
  friend bool operator==(const Stops&, const Stops&) = default;
};

/// The vCPU's debug facilities, shared with the guest: our execution breakpoints and single-steps on top of the guest's
/// own DR0-DR3. While any of ours is set, KVM uses our copy of the debug registers; the guest's breakpoints are merged
/// into it and its #DB are handed back to it. DR7.GD makes each MOV DR of the guest's an exit meanwhile, so that it
/// takes effect at once. Nothing is armed, and nothing costs anything, while we have no use of it.
class Breakpoints {
 public:
  /// What a Debug exit was.
  enum class Hit : std::uint8_t {
    ours,   ///< One of our breakpoints or our single-step; the guest must not see it.
    guest,  ///< The guest's own; inject() gives it back.
    kvm,  ///< KVM's: on AMD it steps over what keeps an NMI out, and while guest debugging is on that step comes to us.
          ///< Nobody's event.
  };

  explicit Breakpoints(VcpuPort& port) : port_{&port}, exits_on_detect_{port.exits_on_general_detect()} {}

  /// The permanent breakpoint of the RDPMC gate; empty takes it away. Takes effect at apply().
  void set_gate(std::optional<vpmu::GuestLinear> at) { gate_ = at; }
  [[nodiscard]] std::optional<vpmu::GuestLinear> gate() const { return gate_; }
  /// The guest's #DB handler, where it is stopped at to find MOV DR (DebugMoves); of use where
  /// VcpuPort::exits_on_general_detect() is false. Empty takes it away.
  void set_debug_gate(std::optional<vpmu::GuestLinear> at) { debug_gate_ = exits_on_detect_ ? std::nullopt : at; }
  [[nodiscard]] std::optional<vpmu::GuestLinear> debug_gate() const { return debug_gate_; }
  /// Whether DR7.GD of ours stands in the guest's own DR7.
  [[nodiscard]] bool detects() const { return detects_; }
  /// It has raised #DB: DR6 is again what the guest knows.
  Result<void> take_detection_back();
  /// The guest's debug registers are what it knows of them, for whoever looks. A #DB of a MOV DR that waits to be
  /// delivered goes: the vCPU still stands at the instruction.
  Result<void> put_away();
  /// The guest's debug registers, as it knows them.
  Result<kvm_debugregs> guests_registers();
  Result<void> set_guests_registers(kvm_debugregs regs);

  /// Breakpoints for one walk; empty takes them away. While they are set, interrupts are held off where KVM can do
  /// that. Ends a step: what walks would show its TF.
  void set_walk(const Stops& stops) {
    stops_ = stops;
    step_ = step_ && stops.size == 0;
  }
  /// Stops after one instruction, once, or at one of the places. Registers must be final before; KVM is told at the
  /// next apply() in any case, since it remembers where a step begins. A step that is over may stay on until the guest
  /// is to run freely. Never while the guest steps itself: KVM would take its RFLAGS.TF for ours.
  void arm_step(const Stops& stops = {}) {
    step_ = unarmed_ = true;
    stops_ = stops;
  }
  void end_step() {
    step_ = false;
    stops_ = {};
  }
  /// Whether a breakpoint of ours, as KVM has them now, was wanted at `at`.
  [[nodiscard]] bool stops_at(vpmu::GuestLinear at) const { return at == applied_.gate || applied_.stops.has(at); }

  /// Hands the wanted state to KVM if it differs from what KVM has. Costs one ioctl where something has changed, and,
  /// while a breakpoint of ours is set, another one for the first time after the guest ran.
  Result<void> apply();
  /// Whether nothing of ours is set, and KVM knows.
  [[nodiscard]] bool none() const {
    return !gate_ && stops_.size == 0 && !step_ && !unarmed_ && applied_.is_nothing() && !detects_;
  }
  /// Somebody else has given KVM other breakpoints: the next apply() gives ours anew.
  void given_others() { unarmed_ = true; }

  /// What KVM needs for somebody else's guest debugging with the gate's breakpoint beside it, where a register is free.
  /// It displaces ours until the next apply().
  [[nodiscard]] kvm_guest_debug beside_gate(const kvm_guest_debug& others);

  /// Whose a Debug exit is. `kvm_may_step`: an NMI waits, and the guest has not just cleared TF itself. Cost: none.
  [[nodiscard]] Hit classify(const Debug& exit, std::uint64_t rflags, bool kvm_may_step) const;
  /// What of the exit behind an instruction that we have run is the guest's: data breakpoints of its own that it hit,
  /// and its own single-step where we did not step. One ioctl where any breakpoint matched, otherwise none.
  Result<std::optional<Debug>> guests_part(const Debug& exit);
  /// Which of the guest's own execution breakpoints stand at `at`, as bits 3:0 of DR6; as of the last entry.
  [[nodiscard]] std::uint64_t guests_at(vpmu::GuestLinear at) const;
  /// Gives the guest its #DB: DR6 as the CPU would set it, then the exception.
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
  /// Whose one of DR0 to DR3 is.
  enum class Holder : std::uint8_t { nobody, guest, us };
  using Holders = std::array<Holder, 4>;
  static bool place_if_free(kvm_guest_debug& debug, vpmu::GuestLinear at, Holders& holders);
  void place(kvm_guest_debug& debug, vpmu::GuestLinear at, Holders& holders);

  Result<void> detect(bool on);

  VcpuPort* port_;
  bool exits_on_detect_;
  std::optional<vpmu::GuestLinear> gate_, debug_gate_;
  bool detects_{};
  std::uint64_t guests_detect_{};  ///< DR7.GD as the guest has set it, while detects_.
  Stops stops_;
  bool step_{}, unarmed_{};
  Wanted applied_{};
  std::uint64_t displaced_{};
  kvm_debugregs guest_{};  ///< The guest's own, as last looked at.
};

}  // namespace vmm
