#pragma once
#include <memory>

#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/fake_cpu.hpp"
#include "fakes/fake_perf_host.hpp"
#include "fakes/fake_source.hpp"
#include "fakes/fake_timer.hpp"
#include "sources/clock_source.hpp"
#include "sources/perf_source.hpp"
#include "sources/step_source.hpp"

/// What the contract suite runs a counting source on. A rig has
/// - `source()` and `guest`, whose vCPU runs a loop without end,
/// - `truth()`: events of Counts::instructions that have happened so far, as far as the source can know,
/// - `slack`: how far counts may be from the truth,
/// - `latest`: by how many events it may come back after an overflow,
/// - `vital`: a call of the back end that it cannot do without.
namespace vmm::test {

/// A guest in a loop of eight instructions, of which one loads.
class LoopingGuest {
 public:
  static constexpr std::uint64_t code = 0x40'0000, data = 0x50'0000, load_at = code + 3;

  LoopingGuest() {
    for (const std::uint64_t page : {code, data}) guest.map(page, vpmu::page_size, {.is_user = true});
    std::uint64_t at = code;
    for (int n = 0; n < 3; ++n) at = cpu.add(at, X86("nop"));
    at = cpu.add(at, X86("mov (%rbx), %eax"));
    for (int n = 0; n < 3; ++n) at = cpu.add(at, X86("nop"));
    cpu.add_jump(at, code);
    guest.backend.registers.rip = code;
    guest.backend.registers.rbx = data;
    guest.backend.registers.rflags = 0x202;
  }

  FakeGuest guest;
  ScriptedTime time;
  FakeCpu cpu{guest, time};
};

class FakeSourceRig : public LoopingGuest {
 public:
  FakeSourceRig() { source_.load_at = load_at; }
  CountSource& source() { return source_; }
  [[nodiscard]] std::uint64_t truth() const { return cpu.retired; }
  static constexpr std::uint64_t slack = 0, latest = 0;
  static constexpr std::string_view vital = "run";

 private:
  FakeSource source_{guest, cpu, time};
};

/// The clock source counts one instruction per nanosecond of scripted time in the guest, whatever runs.
class ClockSourceRig : public LoopingGuest {
 public:
  CountSource& source() { return source_; }
  [[nodiscard]] std::uint64_t truth() const {
    return static_cast<std::uint64_t>((cpu.per_instruction * cpu.retired).count());
  }
  static constexpr std::uint64_t slack = 0;
  /// The timer's shortest time, and the instruction that is under way when it fires.
  static constexpr std::uint64_t latest = 10'000 + 100;
  static constexpr std::string_view vital = "run";

 private:
  ClockSource source_{std::make_unique<FakeTimer>(time), guest.breakpoints, guest.view,
                      vpmu::describe(vpmu::Generation::skylake), 1};
};

/// Each instruction by a single-step: slow ones, so that a test's time is few of them.
class StepSourceRig : public LoopingGuest {
 public:
  StepSourceRig() { cpu.per_instruction = std::chrono::microseconds{1}; }
  CountSource& source() { return source_; }
  [[nodiscard]] std::uint64_t truth() const { return cpu.retired; }
  static constexpr std::uint64_t slack = 0, latest = 0;
  static constexpr std::string_view vital = "run";

 private:
  StepSource source_{std::make_unique<FakeTimer>(time), guest.breakpoints, guest.view,
                     vpmu::describe(vpmu::Generation::skylake)};
};

/// A guest whose code the engine runs for real, without the FakeCpu: what both did is the truth. A burst of the
/// engine's is half a millisecond.
class EngineGuest : public LoopingGuest {
 public:
  EngineGuest() { cpu.per_instruction = std::chrono::nanoseconds{10}; }
  [[nodiscard]] std::uint64_t truth() const { return cpu.retired + guest.backend.passed; }

 protected:
  std::unique_ptr<ExactSource> make_exact() {
    return std::make_unique<ExactSource>(std::make_unique<FakeTimer>(time), guest.breakpoints, guest.view, guest.memory,
                                         vpmu::describe(vpmu::Generation::skylake), SourceOptions{});
  }
};

class ExactSourceRig : public EngineGuest {
 public:
  CountSource& source() { return *source_; }
  ExactSource& exact() { return *source_; }
  static constexpr std::uint64_t slack = 0, latest = 0;
  static constexpr std::string_view vital = "set_regs";

 private:
  std::unique_ptr<ExactSource> source_{make_exact()};
};

/// The perf source on a simulated PMU whose kicks come `skid` instructions late; the source has been told.
template <std::uint64_t skid>
class PerfSourceRig : public EngineGuest {
 public:
  PerfSourceRig() { perf.skid = skid; }
  CountSource& source() { return source_; }
  static constexpr std::uint64_t slack = 0, latest = 0;
  static constexpr std::string_view vital = "run";

  FakePerf perf{guest, cpu};

 private:
  Log log_;
  PerfSource source_{perf.host(),
                     {.margin_instructions = skid + 10, .margin_cycles = skid + 10, .lands = true},
                     make_exact(),
                     vpmu::describe(vpmu::Generation::skylake),
                     log_};
};

}  // namespace vmm::test
