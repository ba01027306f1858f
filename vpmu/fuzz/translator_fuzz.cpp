#include <algorithm>
#include <array>
#include <optional>

#include "engine_guest.hpp"
#include "fenced_code.hpp"
#include "timing/core_timer.hpp"
#include "uarch/processor_model.hpp"
#include "vpmu/x86.hpp"
#include "watcher.hpp"

// Random bytes as code that is compiled as soon as it runs, beside the interpreter: the same end and the same memory,
// three times from the same registers, so that blocks come to run compiled and then linked. What is written as code
// stays within what it is said to be, and leaves the host's registers alone (FencedCode). Half of the inputs are
// observed: then both are told of the same accesses and branches. Some are timed: then both take the same cycles.

namespace {

using namespace vpmu;
using namespace vpmu::fuzz;

constexpr unsigned passes = 3;
std::uint64_t instructions_run = 0, blocks_compiled = 0, accesses_seen = 0;

exec::CpuState take_state(Input& input) {
  exec::CpuState s;
  for (auto& gpr : s.gpr) gpr = take_value(input, 0);
  s.gpr[exec::rsp] = input.take<std::uint16_t>() % (ScatteredRam::pages * page_size) & ~7ULL;
  s.fs_base = take_value(input, 0);
  s.gs_base = take_value(input, 0);
  s.rflags = (input.take<std::uint16_t>() & (x86::rflags::status | x86::rflags::DF::mask | x86::rflags::IF::mask)) | 2;
  s.cpl = (input.take<std::uint8_t>() & 1) != 0 ? 3 : 0;
  s.rip = 8 * page_size + input.take<std::uint16_t>() % page_size;
  s.paging.cr0 = 1;
  s.paging.cr4 = 1U << 9 | 1U << 10 | 1U << 18;  // OSFXSR, OSXMMEXCPT, OSXSAVE
  return s;
}

/// Registers that hold numbers of all kinds, and control words that are the guest's alone: some unmask exceptions.
void take_vectors(Input& input, exec::VectorState& v) {
  const auto controls = input.take<std::uint16_t>();
  v.xcr0 = (controls & 1) != 0 ? 3 : 7;
  v.set_mxcsr(0x1F80U | (controls & 0xE040U));  // rounding, FTZ, DAZ
  if (controls % 8 == 7) v.set_mxcsr(controls & 0x1F80U);
  v.set_fcw(static_cast<std::uint16_t>(0x37FU | (controls & 0xC00U)));
  if (controls % 8 == 6) v.set_fcw(static_cast<std::uint16_t>(0x340U | (controls >> 3 & 0x3FU)));
  const auto seed = input.take<std::uint64_t>();
  for (std::size_t n = 0; n < 16 * 16; ++n)
    v.legacy[exec::VectorState::xmm_at + n] = static_cast<std::byte>(seed >> (n * 7 % 64));
}

/// What a core's clock makes of the code.
struct TimedCore {
  explicit TimedCore(unsigned which)
      : timer{which % 2 != 0 ? timing::skylake : timing::sandy_bridge},
        model{*uarch::find_profile(which % 2 != 0 ? "skylake" : "sandybridge")} {
    model.keep_time(timer);
  }
  timing::CoreTimer timer;
  uarch::ProcessorModel model;
};

/// Of two that have run the same: the same, and more than nothing.
void require_same_cycles(TimedCore& core, const exec::Engine& engine, TimedCore& other, const exec::Engine& reference) {
  require(engine.observed() == reference.observed(), "the same number of instructions is seen");
  const std::uint64_t cycles = core.timer.cycles(engine.observed());
  require(cycles == other.timer.cycles(reference.observed()), "the same cycles compiled as interpreted");
  require(cycles != 0 || engine.observed() == 0, "instructions take time");
  core.timer.pause(engine.observed(), 1);
  other.timer.pause(reference.observed(), 1);
}

}  // namespace

/// What the inputs so far amounted to.
extern "C" std::uint64_t fuzz_work() { return std::min({instructions_run, 10 * blocks_compiled, 10 * accesses_seen}); }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static ScatteredRam ram;
  static ScatteredRam reference_ram;
  static FencedCode code;
  static FencedCode reference_code;
  Input input{data, size};
  auto pieces = input.take<std::array<std::uint8_t, 4>>();
  const std::uint64_t budget = 32 + pieces[0];
  const exec::CpuState from = take_state(input);
  Surroundings surroundings;
  take_vectors(input, surroundings.state);
  Surroundings reference_surroundings = surroundings;
  fill(input, ram, from.rip);
  reference_ram.copy_from(ram);

  code.clear();
  reference_code.clear();
  exec::Engine engine{ram, surroundings, &code, compiled};
  exec::Engine reference_engine{reference_ram, reference_surroundings, &reference_code, interpreted};
  Watcher watcher, reference_watcher;
  const bool is_observed = (pieces[3] & 1) != 0;
  // The models are large: not for each input.
  const bool is_timed = is_observed && (pieces[3] & 6) == 0;
  std::optional<TimedCore> core, reference_core;
  if (is_timed) {
    core.emplace(pieces[3] >> 3);
    reference_core.emplace(pieces[3] >> 3);
    engine.observe(&core->model);
    reference_engine.observe(&reference_core->model);
  } else if (is_observed) {
    engine.observe(&watcher);
    reference_engine.observe(&reference_watcher);
  }
  constexpr std::array<std::uint8_t, 1> in_one_go{255};
  for (auto& piece : pieces)
    piece = static_cast<std::uint8_t>(piece + 1) == 0 ? 1 : static_cast<std::uint8_t>(piece + 1);
  for (unsigned pass = 0; pass < passes; ++pass) {
    const End reference = run_from(from, reference_engine, reference_surroundings, budget, in_one_go);
    const End end = run_from(from, engine, surroundings, budget, pieces);
    require_same(end, reference, "the same end compiled as interpreted");
    require(ram.same_as(reference_ram), "the same memory compiled as interpreted");
    if (is_timed) require_same_cycles(*core, engine, *reference_core, reference_engine);
    require(watcher.sum == reference_watcher.sum && watcher.seen == reference_watcher.seen,
            "the same is seen of compiled as of interpreted code");
    instructions_run += end.passed.instructions;
  }
  code.check();
  reference_code.check();
  require(engine.compiled_blocks() == 0 || code.watched != 0, "somebody looks at the way into compiled code");
  blocks_compiled += engine.compiled_blocks();
  if (engine.compiled_blocks() != 0) accesses_seen += watcher.seen;
  return 0;
}
