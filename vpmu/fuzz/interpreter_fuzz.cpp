#include <algorithm>
#include <array>
#include <optional>

#include "exec/engine.hpp"
#include "exec/tests/oracle/host_cpu.hpp"
#include "scattered_ram.hpp"

// Random bytes as code, data, registers and page tables. Whatever they are, the engine ends within its budget, touches nothing but RAM, and
// comes to the same end in one go, in pieces, compiled or not, and one instruction at a time by engines that remember nothing, or nothing that they have not
// looked at again.

namespace {

using namespace vpmu;
using exec::Stop;
using fuzz::require;
using fuzz::ScatteredRam;

constexpr unsigned linear_pages = 32;
constexpr std::uint64_t first_linear = 0x7FFF'FFE0'0000;

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

/// Room for the routines of one engine at a time.
exec::HostCode& empty_code() {
  static exec::test::TestCode code;
  code.clear();
  return code;
}

constexpr exec::Compiling interpreted{.after = 0}, compiled{.after = 1};
std::uint64_t blocks_compiled = 0;

struct End {
  Stop stop{};
  exec::CpuState state;
  exec::Passed passed;
  exec::VectorState vectors;
};

bool same(const exec::CpuState& a, const exec::CpuState& b) {
  return a.gpr == b.gpr && a.rip == b.rip && a.rflags == b.rflags && a.fs_base == b.fs_base && a.gs_base == b.gs_base && a.cpl == b.cpl &&
         a.paging.cr0 == b.paging.cr0 && a.paging.cr3 == b.paging.cr3 && a.paging.cr4 == b.paging.cr4 && a.paging.efer == b.paging.efer;
}
bool same(const exec::VectorState& a, const exec::VectorState& b) { return a.legacy == b.legacy && a.upper == b.upper; }
bool same(const exec::Passed& a, const exec::Passed& b) {
  return a.instructions == b.instructions && a.branches == b.branches && a.loads == b.loads && a.stores == b.stores;
}
exec::Passed sum(const exec::Passed& a, const exec::Passed& b) {
  return {a.instructions + b.instructions, a.branches + b.branches, a.loads + b.loads, a.stores + b.stores};
}

/// Runs so many instructions at most, string instructions to their end: one that overwrites its own page takes a turn for each element.
Stop run_some(exec::Engine& engine, std::uint64_t instructions) {
  const std::uint64_t before = engine.passed().instructions;
  Stop stop = Stop::again;
  for (unsigned turn = 0; stop == Stop::again; ++turn) {
    require(turn < 1U << 18, "a string instruction ends");
    stop = engine.run(instructions - (engine.passed().instructions - before));
    require(engine.passed().instructions - before <= instructions, "the budget holds");
  }
  require(stop != Stop::none && stop != Stop::alone, "the reason for a stop is one for the owner");
  const exec::Passed p = engine.passed();
  require(p.branches <= p.instructions && p.loads <= p.instructions && p.stores <= p.instructions, "no event without an instruction");
  return stop;
}

/// `pieces`: how many instructions to ask for each time, over and over.
End run_in_pieces(ScatteredRam& ram, const exec::CpuState& from, std::uint64_t budget, std::span<const std::uint8_t> pieces, exec::Compiling compiling) {
  Surroundings surroundings;
  exec::Engine engine{ram, surroundings, &empty_code(), compiling};
  surroundings.engine = &engine;
  engine.load(from);
  Stop stop = Stop::budget;
  for (std::size_t n = 0; stop == Stop::budget && engine.passed().instructions < budget; ++n) {
    const std::uint64_t before = engine.passed().instructions;
    const std::uint64_t most = std::min<std::uint64_t>(budget - before, pieces[n % pieces.size()]);
    if (n % 2 == 1) engine.resume(engine.state());
    stop = run_some(engine, most);
    require(stop != Stop::budget || engine.passed().instructions > before, "it goes on");
  }
  blocks_compiled += engine.compiled_blocks();
  return {stop, engine.state(), engine.passed(), surroundings.state};
}

/// One instruction at a time, the registers loaded before each. `forgetful`: by a new engine for each, which is slow.
End run_one_by_one(ScatteredRam& ram, const exec::CpuState& from, std::uint64_t budget, bool forgetful) {
  End end{Stop::budget, from, {}, {}};
  std::optional<exec::Engine> engine;
  Surroundings surroundings;
  while (end.stop == Stop::budget && end.passed.instructions < budget) {
    if (forgetful || !engine) engine.emplace(ram, surroundings, &empty_code(), interpreted);
    surroundings.engine = &*engine;
    surroundings.retired_before = end.passed.instructions;
    engine->load(end.state);
    end.stop = run_some(*engine, 1);
    end.state = engine->state();
    end.passed = sum(end.passed, engine->passed());
  }
  end.vectors = surroundings.state;
  return end;
}

/// Linear pages lead to RAM, mostly. Words of 512 each: PML4, PDPT, page directory, page table.
void make_tables(fuzz::Input& input, ScatteredRam& ram) {
  constexpr std::uint64_t present = 1, all = 7, accessed = 1U << 5, large = 1U << 7, execute_disable = 1ULL << 63;
  const auto index = [](unsigned level) { return static_cast<unsigned>(first_linear >> (12 + 9 * (3 - level)) & 511); };
  for (unsigned n = 0; n < ScatteredRam::table_words; ++n) ram.table_word(n) = 0;
  for (unsigned level = 0; level < 3; ++level)
    ram.table_word(level * 512 + index(level)) = (ScatteredRam::tables + (level + 1) * page_size) | all | accessed;
  const auto kind = input.take<std::uint8_t>();
  if (kind == 0xFF) ram.table_word(2 * 512 + index(2)) = all | accessed | large;
  for (unsigned n = 0; n < linear_pages; ++n) {
    const auto bits = input.take<std::uint8_t>();
    const std::uint64_t frame = (n + (bits >> 4)) % (ScatteredRam::pages + (bits == 0xF3 ? 4 : 0));
    // Most pages should be good for everything: a zero byte is.
    const std::uint64_t rights = all & ~static_cast<std::uint64_t>((bits & 3) == 3 ? bits >> 2 & all : 0);
    ram.table_word(3 * 512 + index(3) + n) = frame * page_size | rights | ((bits & 0xC) == 0xC ? execute_disable : 0) | (rights & present) * accessed;
  }
}

std::uint64_t take_value(fuzz::Input& input, std::uint64_t ram) {
  const auto kind = input.take<std::uint8_t>();
  switch (kind % 4) {
    case 0: return ram + (std::uint64_t{input.take<std::uint16_t>()} * 2 & (linear_pages * page_size - 1));
    case 1: return static_cast<std::uint64_t>(std::int64_t{input.take<std::int8_t>()});
    case 2: return input.take<std::uint64_t>();
    default: return ram + (kind / 4) % ScatteredRam::pages * page_size + page_size - input.take<std::uint8_t>() % 16;
  }
}

exec::CpuState take_state(fuzz::Input& input, std::uint64_t ram, bool paged) {
  exec::CpuState s;
  for (auto& gpr : s.gpr) gpr = take_value(input, ram);
  s.fs_base = take_value(input, ram);
  s.gs_base = take_value(input, ram);
  s.rflags = (input.take<std::uint16_t>() & (exec::rflags::status | exec::rflags::DF | exec::rflags::IF)) | 2;
  const auto bits = input.take<std::uint8_t>();
  s.cpl = (bits & 1) != 0 ? 3 : 0;
  if ((bits & 2) != 0) s.rflags |= exec::rflags::AC;
  s.rip = ram + (bits >> 2) % ScatteredRam::pages * page_size + input.take<std::uint16_t>() % page_size;
  s.paging.cr0 = 1;
  s.paging.cr4 = 1U << 9 | 1U << 10 | 1U << 18;  // OSFXSR, OSXMMEXCPT, OSXSAVE
  if (!paged) return s;
  constexpr std::uint64_t paging = 1ULL << 31, write_protect = 1U << 16, pae = 1U << 5, smep = 1U << 20, smap = 1U << 21;
  constexpr std::uint64_t execute_disable = 1U << 11, long_mode = 1U << 10 | 1U << 8;
  const auto modes = input.take<std::uint8_t>();
  s.paging.cr0 |= paging | ((modes & 1) != 0 ? write_protect : 0);
  s.paging.cr4 |= pae | ((modes & 2) != 0 ? smep : 0) | ((modes & 4) != 0 ? smap : 0);
  s.paging.efer = long_mode | ((modes & 8) != 0 ? execute_disable : 0);
  s.paging.cr3 = ScatteredRam::tables;
  return s;
}

/// Fills the linear pages: the rest of the input stands at the code, and again in every other page.
void fill(fuzz::Input& input, ScatteredRam& ram, std::uint64_t rip) {
  std::array<std::byte, page_size> code{};
  std::size_t size = 0;
  while (size < code.size() && !input.empty()) code[size++] = std::byte{input.take<std::uint8_t>()};
  for (unsigned n = 0; n < ScatteredRam::pages; ++n) {
    std::byte* const page = ram.at_page(n);
    std::memset(page, 0x90, page_size);
    for (std::size_t k = 0; k < size; ++k) page[(rip + k) % page_size] = code[k];
  }
}

std::uint64_t instructions_run = 0;

void show(const char* what, const End& e) {
  std::fprintf(stderr, "%s: stop %u at RIP %lx, flags %lx, passed %lu %lu %lu %lu\n", what, static_cast<unsigned>(e.stop), e.state.rip,
               e.state.rflags, e.passed.instructions, e.passed.branches, e.passed.loads, e.passed.stores);
  for (unsigned n = 0; n < e.state.gpr.size(); ++n) std::fprintf(stderr, "%lx%c", e.state.gpr[n], n % 8 == 7 ? '\n' : ' ');
}
void require_same(const End& found, const End& reference, const char* what) {
  const bool holds = found.stop == reference.stop && same(found.state, reference.state) && same(found.passed, reference.passed) &&
                     same(found.vectors, reference.vectors);
  if (!holds) {
    show("found", found);
    show("one by one", reference);
  }
  require(holds, what);
}

}  // namespace

/// What the inputs so far amounted to.
extern "C" std::uint64_t fuzz_work() { return std::min(instructions_run, 10 * blocks_compiled); }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static ScatteredRam original;
  static ScatteredRam ram;
  static ScatteredRam reference_ram;
  fuzz::Input input{data, size};
  const auto flags = input.take<std::uint8_t>();
  const bool paged = (flags & 1) != 0;
  const std::uint64_t budget = 1 + (flags >> 2);
  std::array pieces = input.take<std::array<std::uint8_t, 4>>();
  const bool forgetful = pieces[0] >= 0xF8;
  for (auto& piece : pieces) piece = static_cast<std::uint8_t>(piece % 16 + 1);
  if (paged) make_tables(input, original);
  const exec::CpuState from = take_state(input, paged ? first_linear : 0, paged);
  fill(input, original, from.rip);

  reference_ram.copy_from(original);
  const End reference = run_one_by_one(reference_ram, from, budget, forgetful);
  for (const exec::Compiling compiling : {interpreted, compiled}) {
    ram.copy_from(original);
    constexpr std::array<std::uint8_t, 1> in_one_go{255};
    require_same(run_in_pieces(ram, from, budget, in_one_go, compiling), reference, "the same end in one go as one by one");
    require(ram.same_as(reference_ram), "the same memory in one go as one by one");
    ram.copy_from(original);
    require_same(run_in_pieces(ram, from, budget, pieces, compiling), reference, "the same end in pieces as one by one");
    require(ram.same_as(reference_ram), "the same memory in pieces as one by one");
  }
  instructions_run += reference.passed.instructions;
  return 0;
}
