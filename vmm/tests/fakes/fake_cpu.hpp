#pragma once
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "fakes/fake_guest.hpp"
#include "fakes/fake_timer.hpp"
#include "support/x86.hpp"

namespace vmm::test {

/// Runs a program of a few instructions as a vCPU would: stops at execution breakpoints, single-steps, and exits when
/// the timer kicks. It does not interpret instructions: each has its effect as a function.
class FakeCpu {
 public:
  /// An instruction's effect besides advancing RIP. If it returns an exit, the vCPU exits with RIP at the instruction.
  using Effect = std::function<std::optional<Exit>(FakeBackend&)>;

  FakeCpu(FakeGuest& guest, ScriptedTime& time) : guest_{&guest}, time_{&time} {
    guest.backend.time = &time;
    guest.backend.otherwise = [this](FakeBackend& backend) { return run(backend); };
    guest.backend.passing = [this](std::uint64_t instructions) {
      time_->pass(per_instruction * static_cast<std::int64_t>(instructions));
    };
  }

  nanoseconds per_instruction{100};
  /// Kicks the vCPU: it exits before its next instruction, once.
  void kick() { guest_->backend.kicked = 1; }
  std::uint64_t retired{};
  std::map<std::uint64_t, std::uint64_t> retired_at;  ///< How often, by address.
  std::function<void(std::uint64_t)> on_retired;      ///< Called for each instruction with its address.
  std::function<void()> on_entered;                   ///< Called for each entry into the guest.

  /// Places an instruction; returns the address after it.
  std::uint64_t add(std::uint64_t at, const std::vector<std::uint8_t>& code, Effect effect = {}) {
    guest_->store_code(at, code);
    program_[at] = {.length = code.size(), .effect = std::move(effect)};
    return at + code.size();
  }
  /// `jmp rel8` from `at` to `target`.
  std::uint64_t add_jump(std::uint64_t at, std::uint64_t target) {
    return add(at, {0xEB, static_cast<std::uint8_t>(target - at - 2)}, [=](FakeBackend& p) {
      p.registers.rip = target;
      return std::nullopt;
    });
  }
  [[nodiscard]] bool has_instruction_at(std::uint64_t at) const { return program_.contains(at); }

 private:
  struct Placed {
    std::size_t length{};
    Effect effect;
  };
  static constexpr unsigned max_instructions = 10'000'000;
  static constexpr unsigned max_runs = 100'000;

  [[nodiscard]] static std::optional<unsigned> breakpoint_at(const FakeBackend& backend) {
    if ((backend.guest_debug.control & KVM_GUESTDBG_USE_HW_BP) == 0) return std::nullopt;
    for (unsigned i = 0; i < 4; ++i) {
      const bool on = (backend.guest_debug.arch.debugreg[7] & (3ULL << (2 * i))) != 0;
      if (on && backend.guest_debug.arch.debugreg[i] == backend.registers.rip) return i;
    }
    return std::nullopt;
  }

  Exit run(FakeBackend& backend) {
    if (on_entered) on_entered();
    if (++runs_ > max_runs) {
      ADD_FAILURE() << "the guest is stopped again and again";
      return Shutdown{};
    }
    for (unsigned n = 0; n < max_instructions; ++n) {
      if (std::exchange(backend.kicked, std::uint8_t{0}) != 0 || time_->take_kick()) return Interrupted{};
      if (!x86::rflags::RF::test(backend.registers.rflags))
        if (const auto hit = breakpoint_at(backend))
          return Debug{1, backend.registers.rip, x86::dr6::fixed | vpmu::bit(*hit),
                       backend.guest_debug.arch.debugreg[7]};
      if (auto exit = execute(backend)) return *exit;
      if ((backend.guest_debug.control & KVM_GUESTDBG_SINGLESTEP) != 0)
        return Debug{1, backend.registers.rip, x86::dr6::fixed | vpmu::bit(14), 0x400};
    }
    ADD_FAILURE() << "the guest runs without end: is the timer armed?";
    return Shutdown{};
  }

  std::optional<Exit> execute(FakeBackend& backend) {
    const auto found = program_.find(backend.registers.rip);
    if (found == program_.end()) {
      ADD_FAILURE() << "no instruction at " << std::hex << backend.registers.rip;
      return Shutdown{};
    }
    const std::uint64_t at = found->first;
    if (found->second.effect) {
      if (auto exit = found->second.effect(backend)) return exit;
    }
    if (backend.registers.rip == at) backend.registers.rip = at + found->second.length;
    backend.registers.rflags &= ~x86::rflags::RF::mask;
    ++retired;
    ++retired_at[at];
    time_->pass(per_instruction);
    if (on_retired) on_retired(at);
    return std::nullopt;
  }

  FakeGuest* guest_;
  ScriptedTime* time_;
  std::map<std::uint64_t, Placed> program_;
  unsigned runs_{};
};

}  // namespace vmm::test
