#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "exec/tests/fixtures/host_cpu.hpp"
#include "footprint.hpp"
#include "guest.hpp"
#include "hit_timer.hpp"
#include "kernels.hpp"
#include "peers.hpp"
#include "timing/core_timer.hpp"
#include "uarch/processor_model.hpp"
#include "vpmu/msr.hpp"
#include "vpmu/pmu.hpp"

/// How fast the engine is: the same bytes of code on this CPU, in the engine and under other observers, side by side in
/// one run. Nothing here depends on time; what fails is a wrong result, or two counts of the same that differ.
namespace vpmu::exec::bench {
namespace {

constexpr std::uint64_t without_end = ~0ULL;
constexpr std::size_t room_for_code = 8U << 20U;

struct Options {
  bool tiny{};  ///< Little work, and every instruction also by itself.
  bool peers{};
};

void check(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error{what};
}

bool same_counts(const Passed& a, const Passed& b) {
  return a.instructions == b.instructions && a.branches == b.branches && a.loads == b.loads && a.stores == b.stores;
}

double million_a_second(const Passed& passed, double seconds) {
  return static_cast<double>(passed.instructions) / seconds * 1e-6;
}

std::string self() {
  std::array<char, PATH_MAX> path{};
  check(::readlink("/proc/self/exe", path.data(), path.size() - 1) > 0, "cannot tell where this program is");
  return path.data();
}

Guest kernels_guest() { return Guest{{__start_vpmu_kernels, __stop_vpmu_kernels}, kernel_memory}; }
std::size_t entry_of(const KernelInfo& kernel) {
  return static_cast<std::size_t>(reinterpret_cast<const std::byte*>(kernel.run) - __start_vpmu_kernels);
}

/// An engine whose observer is a model of this processor.
struct ModelledEngine {
  ModelledEngine(Guest& guest, const char* processor)
      : engine{guest.ram(), platform, &code}, model{*uarch::find_profile(processor)} {
    engine.observe(&model);
  }
  test::VectorPlatform platform;
  test::TestCode code{room_for_code};
  Engine engine;
  uarch::ProcessorModel model;
};

/// The same with a model of a Skylake's caches, TLBs and branch prediction, which must have seen what was counted.
Outcome measure_modelled(Guest& guest, const KernelInfo& kernel, std::uint64_t work) {
  ModelledEngine m{guest, "skylake"};
  Outcome best = guest.run_in(m.engine, entry_of(kernel), work, without_end);
  const std::uint64_t loads =
      m.model.count(vpmu::Counts::l1_hit) + m.model.count(vpmu::Counts::lfb_hit) + m.model.count(vpmu::Counts::l1_miss);
  check(loads == best.passed.loads, std::string{kernel.name} + ": the model did not see every load once");
  for (unsigned i = 0; i < 2; ++i)
    best.seconds = std::min(best.seconds, guest.run_in(m.engine, entry_of(kernel), work, without_end).seconds);
  return best;
}

/// The same with the cycles of a Skylake, which must be the same however the run is cut.
Outcome measure_timed(Guest& guest, const KernelInfo& kernel, std::uint64_t work) {
  Outcome best{.seconds = 1e9};
  std::array<std::uint64_t, 2> cycles{};
  for (unsigned i = 0; i < 3; ++i) {
    timing::CoreTimer timer{timing::skylake};
    ModelledEngine m{guest, "skylake"};
    m.model.keep_time(timer);
    const std::uint64_t piece = i == 0 ? 10'007 : without_end;
    const Outcome now = guest.run_in(m.engine, entry_of(kernel), work, piece);
    cycles[i == 0 ? 0 : 1] = timer.cycles(m.engine.observed());
    if (now.seconds < best.seconds) best = now;
  }
  check(cycles[0] == cycles[1] && cycles[0] > best.passed.instructions / 8,
        std::string{kernel.name} + ": other cycles in pieces");
  return best;
}

/// The same by the pipeline alone: caches and predictions as hits.
Outcome measure_hits(Guest& guest, const KernelInfo& kernel, std::uint64_t work) {
  Outcome best{.seconds = 1e9};
  for (unsigned i = 0; i < 3; ++i) {
    timing::CoreTimer timer{timing::skylake};
    HitTimer observer{timer};
    test::VectorPlatform platform;
    test::TestCode code{room_for_code};
    Engine engine{guest.ram(), platform, &code};
    engine.observe(&observer);
    const Outcome now = guest.run_in(engine, entry_of(kernel), work, without_end);
    check(timer.cycles(engine.observed()) > now.passed.instructions / 8, std::string{kernel.name} + ": no cycles");
    if (now.seconds < best.seconds) best = now;
  }
  return best;
}

/// The same with the LBR of a Sandy Bridge, which records branches of all kinds; without caches.
Outcome measure_lbr(Guest& guest, const KernelInfo& kernel, std::uint64_t work) {
  ModelledEngine m{guest, "sandybridge"};
  const CountPlan plan{.branches_wanted = true, .lbr_filter = {.kinds = {0xFE, 0xFE}, .depth = 16}};
  m.model.follow(plan);
  Outcome best{.seconds = 1e9};
  for (unsigned i = 0; i < 3; ++i) {
    const std::uint64_t before = m.model.count(vpmu::Counts::branches_taken);
    m.model.keep_branches(0, plan.lbr_filter, m.engine.observed());
    const Outcome now = guest.run_in(m.engine, entry_of(kernel), work, without_end);
    const BranchRun run = m.model.kept_branches(m.engine.observed());
    const std::uint64_t taken = m.model.count(vpmu::Counts::branches_taken) - before;
    check(run.branches.size() == plan.lbr_filter.depth && run.missing + run.branches.size() == taken,
          std::string{kernel.name} + ": the LBR did not see every taken branch once");
    if (now.seconds < best.seconds) best = now;
  }
  return best;
}

/// A DS area and the records in memory of this process.
class TraceMemory final : public GuestEnv {
 public:
  static constexpr std::uint64_t area = 0x1000, records = 0x2000, records_bytes = 1U << 20;
  void begin() {
    const std::array<std::uint64_t, 4> words{records, records, records + records_bytes, ~0ULL};
    std::memcpy(bytes_.data() + area, words.data(), sizeof words);
  }
  AccessResult read_linear(GuestLinear at, std::span<std::byte> out) override {
    std::memcpy(out.data(), bytes_.data() + at.value(), out.size());
    return {};
  }
  AccessResult write_linear(GuestLinear at, std::span<const std::byte> in) override {
    std::memcpy(bytes_.data() + at.value(), in.data(), in.size());
    return {};
  }
  AccessResult probe_linear(GuestLinear, std::uint64_t, AccessKind) override { return {}; }
  std::uint64_t tsc() override { return 0; }
  void request_pmi() override {}

 private:
  std::vector<std::byte> bytes_{std::vector<std::byte>(records + records_bytes)};
};

/// The same with BTS: each taken branch has a record in memory.
Outcome measure_bts(Guest& guest, const KernelInfo& kernel, std::uint64_t work) {
  constexpr std::uint64_t trace = 0x2C0;  // TR, BTS, BTS_OFF_OS
  constexpr unsigned user = 3;
  ModelledEngine m{guest, "sandybridge"};
  m.model.follow({.branches_wanted = true, .branches_stored = true});
  Outcome best{.seconds = 1e9};
  for (unsigned i = 0; i < 3; ++i) {
    TraceMemory memory;
    memory.begin();
    Pmu pmu{{.generation = Generation::sandy_bridge}};
    check(pmu.wrmsr(msr::IA32_DS_AREA, TraceMemory::area) == MsrStatus::ok &&
              pmu.wrmsr(msr::IA32_DEBUGCTL, trace) == MsrStatus::ok,
          "no BTS");
    const std::uint64_t before = m.model.count(vpmu::Counts::branches_taken);
    const Outcome now = guest.run_in(m.engine, entry_of(kernel), work, [&] {
      std::uint64_t max = pmu.branches_storable(user, memory);
      if (max == 0) memory.begin();  // as a driver does that has taken the records
      if (max == 0) max = pmu.branches_storable(user, memory);
      m.model.keep_branches(user, {.kinds = {0xFF, 0xFF}, .call_stack = true}, m.engine.observed());
      const Stop stop = m.engine.run(std::min(max, uarch::ProcessorModel::max_of_call_stack));
      pmu.record_branches(m.model.kept_branches(m.engine.observed()), memory);
      return stop;
    });
    check(pmu.statistics().branches_stored == m.model.count(vpmu::Counts::branches_taken) - before,
          std::string{kernel.name} + ": BTS did not store every taken branch once");
    if (now.seconds < best.seconds) best = now;
  }
  return best;
}

/// The best of three on this CPU and in the engine, interpreted and compiled, taken in turns, so that what else the
/// machine does hits all.
double measure(const KernelInfo& kernel, const Options& options) {
  Guest guest = kernels_guest();
  const std::uint64_t work = options.tiny ? 1 : kernel.usual_work;
  test::VectorPlatform platform;
  test::TestCode routines{room_for_code};
  Engine engine{guest.ram(), platform, &routines, never_compiling};
  test::TestCode code{room_for_code};
  Engine compiling{guest.ram(), platform, &code};
  Outcome native = guest.run_here(entry_of(kernel), work);
  Outcome fast = guest.run_in(engine, entry_of(kernel), work, without_end);
  Outcome compiled = guest.run_in(compiling, entry_of(kernel), work, without_end);
  check(fast.passed.instructions > 0 && fast.passed.branches > 0 && fast.passed.loads > 0 && fast.passed.stores > 0,
        "counted nothing");
  const auto compare = [&](const Outcome& other, const char* what) {
    check(other.result == native.result, std::string{kernel.name} + ": another result " + what);
    check(same_counts(other.passed, fast.passed), std::string{kernel.name} + ": other counts " + what);
  };
  for (unsigned i = 0; i < 3; ++i) {
    native.seconds = std::min(native.seconds, guest.run_here(entry_of(kernel), work).seconds);
    const Outcome again = guest.run_in(engine, entry_of(kernel), work, without_end);
    compare(again, "in the engine");
    fast.seconds = std::min(fast.seconds, again.seconds);
    const Outcome code_again = guest.run_in(compiling, entry_of(kernel), work, without_end);
    compare(code_again, "compiled");
    compiled.seconds = std::min(compiled.seconds, code_again.seconds);
  }
  const std::uint64_t step_work = options.tiny ? 1 : std::max<std::uint64_t>(1, work / 16);
  const Outcome stepped = guest.run_in(engine, entry_of(kernel), step_work, 1);
  if (step_work == work) compare(stepped, "one instruction at a time");
  const Outcome pieces = guest.run_in(compiling, entry_of(kernel), work, 997);
  compare(pieces, "997 instructions at a time");
  const Outcome modelled = measure_modelled(guest, kernel, work);
  compare(modelled, "with models");
  const Outcome timed = measure_timed(guest, kernel, work);
  compare(timed, "with time");
  const Outcome hits = measure_hits(guest, kernel, work);
  compare(hits, "with time and caches as hits");
  const Outcome lbr = measure_lbr(guest, kernel, work);
  compare(lbr, "with an LBR");
  const Outcome bts = measure_bts(guest, kernel, work);
  compare(bts, "with BTS");
  const double mips = million_a_second(fast.passed, fast.seconds);
  std::printf("%-8s %9.1f M %7.0f %7.0f %8.0f %7.1fx %8.0f %8.1f %8.0f %8.0f %8.0f %8.0f %8.0f", kernel.name,
              static_cast<double>(fast.passed.instructions) * 1e-6, million_a_second(fast.passed, native.seconds), mips,
              million_a_second(compiled.passed, compiled.seconds), compiled.seconds / native.seconds,
              million_a_second(pieces.passed, pieces.seconds), million_a_second(stepped.passed, stepped.seconds),
              million_a_second(lbr.passed, lbr.seconds), million_a_second(bts.passed, bts.seconds),
              million_a_second(modelled.passed, modelled.seconds), million_a_second(hits.passed, hits.seconds),
              million_a_second(timed.passed, timed.seconds));
  if (options.peers)
    for (const Peer& peer : installed_peers(self())) {
      // Under a peer, the start of a process counts: more work makes it small.
      constexpr std::uint64_t more = 8;
      const auto seconds = time_under(peer, self(), kernel.name, work * more);
      if (seconds)
        std::printf(" %7.0f (%s)", million_a_second(fast.passed, *seconds / more), peer.name.c_str());
      else
        std::printf("       - (%s)", peer.name.c_str());
    }
  std::printf("\n");
  return fast.seconds;
}

std::size_t heap_in_use() {
  const struct mallinfo2 m = ::mallinfo2();
  return m.uordblks + m.hblkhd;
}

void measure_footprint(const Options& options) {
  const Footprint program = make_footprint(options.tiny ? 500 : 50'000);
  Guest guest{program.code, page_size};
  NoPlatform platform;
  const std::size_t before = heap_in_use();
  Engine engine{guest.ram(), platform};
  const std::size_t empty = heap_in_use();
  constexpr std::uint64_t passes = 20;
  const Outcome cold = guest.run_in(engine, 0, 1, without_end);
  const std::size_t full = heap_in_use();
  const Outcome warm = guest.run_in(engine, 0, passes, without_end);
  check(cold.result == guest.run_here(0, 1).result && warm.result == guest.run_here(0, passes).result,
        "footprint: another result");
  check(cold.passed.instructions == program.instructions, "footprint: not every instruction once");
  std::printf(
      "\nfootprint: %zu instructions in %.2f MB; MIPS: first pass (decoding) %.1f, 20 passes %.0f; %.1f bytes for a "
      "decoded instruction\n",
      program.instructions, static_cast<double>(program.code.size()) * 1e-6,
      million_a_second(cold.passed, cold.seconds), million_a_second(warm.passed, warm.seconds),
      static_cast<double>(full - empty) / static_cast<double>(program.instructions));
  std::printf("an engine without code: %zu bytes\n", sizeof(Engine) + empty - before);
}

int run_native(const char* name, const char* work) {
  for (const KernelInfo& kernel : kernels)
    if (std::strcmp(kernel.name, name) == 0) {
      std::printf("%lx\n", kernels_guest().run_here(entry_of(kernel), std::strtoull(work, nullptr, 10)).result);
      return EXIT_SUCCESS;
    }
  return EXIT_FAILURE;
}

int run(const Options& options, const char* only) {
  std::printf("%-8s %11s %7s %7s %8s %8s %8s %8s %8s %8s %8s %8s %8s%s\n", "kernel", "instr.", "native", "interp.",
              "compiled", "slower", "by 997", "by 1", "LBR", "BTS", "models", "hits", "time",
              options.peers ? "  others" : "");
  for (const KernelInfo& kernel : kernels)
    if (host_has(kernel.feature) && (only == nullptr || std::strcmp(only, kernel.name) == 0)) measure(kernel, options);
  if (only == nullptr || std::strcmp(only, "footprint") == 0) measure_footprint(options);
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace vpmu::exec::bench

int main(int count, char** words) {
  using namespace vpmu::exec::bench;
  if (count == 4 && std::strcmp(words[1], "--native") == 0) return run_native(words[2], words[3]);
  Options options;
  const char* only = nullptr;
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(words[i], "--tiny") == 0)
      options.tiny = true;
    else if (std::strcmp(words[i], "--peers") == 0)
      options.peers = true;
    else
      only = words[i];
  }
  try {
    return run(options, only);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return EXIT_FAILURE;
  }
}
