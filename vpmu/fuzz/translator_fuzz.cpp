#include <algorithm>
#include <array>
#include <bit>
#include <initializer_list>

#include "engine_guest.hpp"
#include "fenced_code.hpp"

// Random bytes as code that is compiled as soon as it runs, beside the interpreter: the same end and the same memory,
// three times from the same registers, so that blocks come to run compiled and then linked. What is written as code
// stays within what it is said to be, and leaves the host's registers alone (FencedCode). Half of the inputs are
// observed: then both are told of the same accesses and branches.

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
  s.rflags = (input.take<std::uint16_t>() & (exec::rflags::status | exec::rflags::DF | exec::rflags::IF)) | 2;
  s.cpl = (input.take<std::uint8_t>() & 1) != 0 ? 3 : 0;
  s.rip = 8 * page_size + input.take<std::uint16_t>() % page_size;
  s.paging.cr0 = 1;
  s.paging.cr4 = 1U << 9 | 1U << 10 | 1U << 18;  // OSFXSR, OSXMMEXCPT, OSXSAVE
  return s;
}

/// All that is seen but code: of a block that is cut, lines are fetched when they run.
class Watcher final : public exec::Observer {
 public:
  void fetched(const exec::SeenCode&) override {}
  void accessed(const exec::SeenAccess& a, std::uint64_t now) override {
    ++seen;
    add({a.linear, a.physical, a.page_bytes, a.bytes, a.store ? 1ULL : 0, a.second_half ? 1ULL : 0, now});
  }
  void retired(bool load, bool store) override { add({load ? 1ULL : 0, store ? 1ULL : 0}); }
  void branched(const exec::SeenBranch& b) override {
    add({b.at, b.behind, b.to, static_cast<std::uint64_t>(b.kind), b.taken ? 1ULL : 0, b.now});
  }
  void abandoned() override { add({}); }
  void flushed_line(const exec::SeenFlush& f) override { add({f.linear, f.physical}); }
  void flushed() override {}

  std::uint64_t sum{};
  std::uint64_t seen{};  ///< Accesses.

 private:
  void add(std::initializer_list<std::uint64_t> words) {
    sum = std::rotl(sum ^ words.size(), 7);
    for (const std::uint64_t word : words) sum = (sum ^ word) * 0x9E37'79B9'7F4A'7C15ULL + (sum >> 29);
  }
};

/// Registers that hold numbers of all kinds, and control words that are the guest's alone.
void take_vectors(Input& input, exec::VectorState& v) {
  const auto controls = input.take<std::uint16_t>();
  v.xcr0 = (controls & 1) != 0 ? 3 : 7;
  v.set_mxcsr(0x1F80U | (controls & 0xE040U));  // rounding, FTZ, DAZ
  if (controls % 8 == 7) v.set_mxcsr(controls & 0x1F80U);
  v.set_fcw(static_cast<std::uint16_t>(0x37FU | (controls & 0xC00U)));
  const auto seed = input.take<std::uint64_t>();
  for (std::size_t n = 0; n < 16 * 16; ++n)
    v.legacy[exec::VectorState::xmm_at + n] = static_cast<std::byte>(seed >> (n * 7 % 64));
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
  if (is_observed) {
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
