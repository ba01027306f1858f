#pragma once
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <span>

#include "exec/engine.hpp"
#include "scattered_ram.hpp"

/// Each input gets a new engine, and inputs are short: to record the stacks of allocations would cost as much as to run
/// them. NOLINTNEXTLINE(bugprone-reserved-identifier): the sanitizer's name
extern "C" [[gnu::used]] inline const char* __asan_default_options() {
  return "malloc_context_size=2:quarantine_size_mb=16";
}

/// What targets share that run the engine: a guest made of the input, ways to run it, and whether two came to the same
/// end.
namespace vpmu::fuzz {

using exec::Stop;

/// A guest has so many linear pages, on fewer pages of RAM.
inline constexpr unsigned linear_pages = 32;

/// Answers by what the instruction may know: the same, however the way there was cut into pieces.
class Surroundings final : public exec::Platform {
 public:
  exec::Answer rdmsr(std::uint32_t index, std::uint64_t& value) override { return answer(index, value); }
  exec::Answer wrmsr(std::uint32_t index, std::uint64_t) override {
    if (index % 2 == 0) engine->stop_soon();
    return index < 0x1000 ? exec::Answer::done : exec::Answer::leave;
  }
  exec::Answer rdpmc(std::uint32_t index, std::uint64_t& value) override { return answer(index, value); }
  exec::Answer rdtsc(std::uint64_t& value) override { return answer(0, value); }
  bool runs_alone() override { return true; }
  exec::VectorState* vectors() override { return &state; }

  exec::VectorState state;

  exec::Engine* engine{};
  std::uint64_t retired_before{};  ///< By other engines.

 private:
  exec::Answer answer(std::uint32_t index, std::uint64_t& value) const {
    value = retired_before + engine->passed().instructions;
    return index < 0x1000 ? exec::Answer::done : exec::Answer::leave;
  }
};

inline constexpr exec::Compiling interpreted{.after = 0}, compiled{.after = 1};

struct End {
  Stop stop{};
  exec::CpuState state;
  exec::Passed passed;
  exec::VectorState vectors;
};

inline bool same(const exec::CpuState& a, const exec::CpuState& b) {
  return a.gpr == b.gpr && a.rip == b.rip && a.rflags == b.rflags && a.fs_base == b.fs_base && a.gs_base == b.gs_base &&
         a.cpl == b.cpl && a.paging.cr0 == b.paging.cr0 && a.paging.cr3 == b.paging.cr3 &&
         a.paging.cr4 == b.paging.cr4 && a.paging.efer == b.paging.efer;
}
inline bool same(const exec::VectorState& a, const exec::VectorState& b) {
  return a.legacy == b.legacy && a.upper == b.upper;
}
inline bool same(const exec::Passed& a, const exec::Passed& b) {
  return a.instructions == b.instructions && a.branches == b.branches && a.loads == b.loads && a.stores == b.stores &&
         a.more_loads == b.more_loads && a.more_stores == b.more_stores;
}
inline exec::Passed sum(const exec::Passed& a, const exec::Passed& b) {
  return {a.instructions + b.instructions, a.branches + b.branches,      a.loads + b.loads, a.stores + b.stores,
          a.more_loads + b.more_loads,     a.more_stores + b.more_stores};
}
inline exec::Passed difference(const exec::Passed& a, const exec::Passed& b) {
  return {a.instructions - b.instructions, a.branches - b.branches,      a.loads - b.loads, a.stores - b.stores,
          a.more_loads - b.more_loads,     a.more_stores - b.more_stores};
}

/// Runs at most `instructions`, string instructions to their end: one that overwrites its own page takes a run() for
/// each element. Calls `after` after each run().
template <class After>
Stop run_some(exec::Engine& engine, std::uint64_t instructions, const After& after) {
  const std::uint64_t before = engine.passed().instructions;
  Stop stop = Stop::again;
  for (unsigned turn = 0; stop == Stop::again; ++turn) {
    require(turn < 1U << 18, "a string instruction ends");
    stop = engine.run(instructions - (engine.passed().instructions - before));
    after();
    require(engine.passed().instructions - before <= instructions, "the budget holds");
  }
  require(stop != Stop::none && stop != Stop::alone, "the reason for a stop is one for the owner");
  const exec::Passed p = engine.passed();
  require(p.branches <= p.instructions && p.loads <= p.instructions && p.stores <= p.instructions,
          "no event without an instruction");
  return stop;
}
inline Stop run_some(exec::Engine& engine, std::uint64_t instructions) {
  return run_some(engine, instructions, [] {});
}

/// `pieces`: how many instructions to ask for each time, over and over.
inline End run_from(const exec::CpuState& from, exec::Engine& engine, Surroundings& surroundings, std::uint64_t budget,
                    std::span<const std::uint8_t> pieces) {
  surroundings.engine = &engine;
  engine.load(from);
  Stop stop = Stop::budget;
  for (std::size_t n = 0; stop == Stop::budget && engine.passed().instructions < budget; ++n) {
    const std::uint64_t before = engine.passed().instructions;
    const std::uint64_t max = std::min<std::uint64_t>(budget - before, pieces[n % pieces.size()]);
    if (n % 2 == 1) engine.resume(engine.state());
    stop = run_some(engine, max);
    require(stop != Stop::budget || engine.passed().instructions > before, "it goes on");
  }
  return {stop, engine.state(), engine.passed(), surroundings.state};
}

inline std::uint64_t take_value(Input& input, std::uint64_t ram) {
  const auto kind = input.take<std::uint8_t>();
  switch (kind % 4) {
    case 0: return ram + (std::uint64_t{input.take<std::uint16_t>()} * 2 & (linear_pages * page_size - 1));
    case 1: return static_cast<std::uint64_t>(std::int64_t{input.take<std::int8_t>()});
    case 2: return input.take<std::uint64_t>();
    default: return ram + (kind / 4) % ScatteredRam::pages * page_size + page_size - input.take<std::uint8_t>() % 16;
  }
}

/// Fills the linear pages: the rest of the input stands at the code, and again in every other page. Between them are
/// short blocks, for decoding is what takes most of the time.
inline void fill(Input& input, ScatteredRam& ram, std::uint64_t rip) {
  static constexpr std::uint64_t filler = 0x00EB'9090'9090'9090;  // six NOPs; JMP to the next
  static const auto empty_page = [] {
    std::array<std::uint64_t, page_size / sizeof filler> words{};
    words.fill(filler);
    return words;
  }();
  std::byte* const first = ram.at_page(0);
  std::memcpy(first, empty_page.data(), page_size);
  for (std::size_t at = 0; at < page_size && !input.empty(); ++at)
    first[(rip + at) % page_size] = std::byte{input.take<std::uint8_t>()};
  for (unsigned n = 1; n < ScatteredRam::pages; ++n) std::memcpy(ram.at_page(n), first, page_size);
}

inline void show(const char* what, const End& e) {
  std::fprintf(stderr, "%s: stop %u at RIP %lx, flags %lx, passed %lu %lu %lu %lu\n", what,
               static_cast<unsigned>(e.stop), e.state.rip, e.state.rflags, e.passed.instructions, e.passed.branches,
               e.passed.loads, e.passed.stores);
  for (unsigned n = 0; n < e.state.gpr.size(); ++n)
    std::fprintf(stderr, "%lx%c", e.state.gpr[n], n % 8 == 7 ? '\n' : ' ');
}
inline void require_same(const End& found, const End& reference, const char* what) {
  const bool holds = found.stop == reference.stop && same(found.state, reference.state) &&
                     same(found.passed, reference.passed) && same(found.vectors, reference.vectors);
  if (!holds) {
    show("found", found);
    show("in one go", reference);
  }
  require(holds, what);
}

}  // namespace vpmu::fuzz
