#pragma once
#include <algorithm>
#include <optional>
#include <utility>

#include "fakes/fake_cpu.hpp"
#include "sources/source.hpp"

namespace vmm::test {

/// A source that knows exactly what the FakeCpu below it retired: the simplest one that keeps the contract. Every event
/// happens once per instruction; walk() is one step.
class FakeSource final : public CountSource {
 public:
  FakeSource(FakeGuest& guest, FakeCpu& cpu, ScriptedTime& time) : guest_{&guest}, cpu_{&cpu}, time_{&time} {}

  static constexpr SourceTraits description{.name = "fake", .exact_counts = true};
  [[nodiscard]] const SourceTraits& traits() const override { return description; }

  Result<void> program(const vpmu::CountPlan& plan) override {
    plan_ = plan;
    taken_ = cpu_->retired;
    return {};
  }

  Result<RunEnd> run(VcpuBackend& backend, std::optional<nanoseconds> at_most) override {
    const std::uint64_t cpl = cpl_of(guest_->backend.special);
    std::optional<std::uint64_t> instructions;
    for (const vpmu::PlanEntry& e : plan_.active())
      if (e.wants_overflow && (cpl == 0 ? e.os : e.usr))
        instructions = std::min(instructions.value_or(~0ULL), e.distance);
    std::optional<nanoseconds> due = at_most;
    if (instructions) {
      const nanoseconds needed =
          cpu_->per_instruction * static_cast<std::int64_t>(std::min<std::uint64_t>(*instructions, 1 << 30));
      due = due ? std::min(*due, needed) : needed;
    }
    if (due) time_->due = time_->now + *due;
    VMM_ASSIGN(const Exit exit, backend.run());
    return RunEnd{.exit = exit};
  }

  Result<vpmu::CountDeltas> sync(VcpuBackend&) override {
    vpmu::CountDeltas deltas;
    const std::uint64_t n = cpu_->retired - std::exchange(taken_, cpu_->retired);
    for (vpmu::PlanEntry& e : std::span{plan_.entries}.first(plan_.size)) {
      if (!(cpl_of(guest_->backend.special) == 0 ? e.os : e.usr)) continue;
      deltas[e.counter] = n;
      e.distance -= std::min(n, e.distance - 1);
    }
    return deltas;
  }

  Result<RunEnd> walk(VcpuBackend& backend) override {
    const std::uint64_t at = guest_->backend.registers.rip;
    time_->due = time_->now + nanoseconds{1};
    VMM_ASSIGN(const Exit exit, backend.run());
    taken_ = cpu_->retired;
    if (!std::holds_alternative<Interrupted>(exit)) return RunEnd{.exit = exit};
    Retired retired{};
    retired.what.ip = vpmu::GuestLinear{at};
    retired.what.next_ip = vpmu::GuestLinear{guest_->backend.registers.rip};
    retired.what.has_load = at == load_at;
    return RunEnd{.retired = retired};
  }

  [[nodiscard]] bool is_idle() const override { return plan_.size == 0; }
  void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const override {
    visit("fake.retired", cpu_->retired);
  }

  std::uint64_t load_at{};  ///< The one instruction of the program that loads.

 private:
  FakeGuest* guest_;
  FakeCpu* cpu_;
  ScriptedTime* time_;
  vpmu::CountPlan plan_{};
  std::uint64_t taken_{};
};

}  // namespace vmm::test
