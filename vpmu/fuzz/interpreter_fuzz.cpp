#include <algorithm>
#include <array>
#include <optional>

#include "engine_guest.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"
#include "vpmu/x86.hpp"

// Random bytes as code, data, registers and page tables. Whatever they are, the engine ends within its budget, touches
// nothing but RAM, and comes to the same end in one go, in pieces, compiled or not, and one instruction at a time by
// engines that remember nothing, or nothing that they have not checked again. Each input is run in two of these ways,
// and says which: what it costs is how much of all this comes up.

namespace {

using namespace vpmu;
using namespace vpmu::fuzz;

constexpr std::uint64_t first_linear = 0x7FFF'FFE0'0000, again = tlb_entries * page_size;

/// Room for the routines of one engine at a time.
exec::HostCode& empty_code() {
  static exec::test::TestCode code;
  code.clear();
  return code;
}

std::uint64_t blocks_compiled = 0;

End run_in_pieces(ScatteredRam& ram, const exec::CpuState& from, std::uint64_t budget,
                  std::span<const std::uint8_t> pieces, exec::Compiling compiling) {
  Surroundings surroundings;
  exec::Engine engine{ram, surroundings, &empty_code(), compiling};
  End end = run_from(from, engine, surroundings, budget, pieces);
  blocks_compiled += engine.compiled_blocks();
  return end;
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

/// Linear pages lead to RAM, mostly, and again from `again` on, at the same places of the software TLB. Words of 512
/// each: PML4, PDPT, page directory, page table.
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
    const std::uint64_t rights = all & ~((bits & 3) == 3 ? bits >> 2 & all : 0);
    ram.table_word(3 * 512 + index(3) + n) = ram.table_word(3 * 512 + index(3) + tlb_entries + n) =
        frame * page_size | rights | ((bits & 0xC) == 0xC ? execute_disable : 0) | (rights & present) * accessed;
  }
}

exec::CpuState take_state(fuzz::Input& input, std::uint64_t ram, bool paged) {
  exec::CpuState s;
  for (auto& gpr : s.gpr) gpr = take_value(input, ram);
  s.fs_base = take_value(input, ram);
  s.gs_base = take_value(input, ram);
  s.rflags = (input.take<std::uint16_t>() & (x86::rflags::status | x86::rflags::DF::mask | x86::rflags::IF::mask)) | 2;
  const auto bits = input.take<std::uint8_t>();
  s.cpl = (bits & 1) != 0 ? 3 : 0;
  if ((bits & 2) != 0) s.rflags |= x86::rflags::AC::mask;
  s.rip = ram + (bits >> 2) % ScatteredRam::pages * page_size + input.take<std::uint16_t>() % page_size;
  s.paging.cr0 = 1;
  s.paging.cr4 = 1U << 9 | 1U << 10 | 1U << 18;  // OSFXSR, OSXMMEXCPT, OSXSAVE
  if (!paged) {
    // RAM is at 0: where 16- and 32-bit code finds it.
    const auto narrow = input.take<std::uint8_t>();
    s.mode = narrow % 4 == 1   ? exec::CodeMode::bits32
             : narrow % 4 == 2 ? exec::CodeMode::bits16
                               : exec::CodeMode::bits64;
    s.stack_is_32_bit = (narrow & 4) != 0;
    if ((narrow & 8) != 0)
      for (auto& segment : s.segment_bases) segment = input.take<std::uint16_t>();
    if (s.mode != exec::CodeMode::bits64) s.rip -= s.segment_bases[1];
    if (s.mode != exec::CodeMode::bits64) s.rip &= 0xFFFF'FFFF;
    return s;
  }
  constexpr std::uint64_t paging = 1ULL << 31, write_protect = 1U << 16, pae = 1U << 5, smep = 1U << 20,
                          smap = 1U << 21;
  constexpr std::uint64_t execute_disable = 1U << 11, long_mode = 1U << 10 | 1U << 8;
  const auto modes = input.take<std::uint8_t>();
  if ((modes & 0x10) != 0)
    for (std::size_t n = 1; n < s.gpr.size(); n += 2) s.gpr[n] += again;
  s.paging.cr0 |= paging | ((modes & 1) != 0 ? write_protect : 0);
  s.paging.cr4 |= pae | ((modes & 2) != 0 ? smep : 0) | ((modes & 4) != 0 ? smap : 0);
  s.paging.efer = long_mode | ((modes & 8) != 0 ? execute_disable : 0);
  s.paging.cr3 = ScatteredRam::tables;
  return s;
}

std::uint64_t instructions_run = 0;

}  // namespace

/// What the inputs so far amounted to.
extern "C" std::uint64_t fuzz_work() { return std::min(instructions_run, 10 * blocks_compiled); }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static ScatteredRam ram;
  static ScatteredRam other_ram;
  fuzz::Input input{data, size};
  const auto flags = input.take<std::uint8_t>();
  const bool paged = (flags & 1) != 0;
  const std::uint64_t budget = 1 + (flags >> 2);
  auto pieces = input.take<std::array<std::uint8_t, 4>>();
  const unsigned way = pieces[0] / 16U;
  const bool long_strings = pieces[1] >= 0xF0;
  for (auto& piece : pieces) piece = static_cast<std::uint8_t>(piece % 16 + 1);
  if (paged) make_tables(input, ram);
  exec::CpuState from = take_state(input, paged ? first_linear : 0, paged);
  // A string instruction on its own page takes a run() for each element: thousands of them only where the input asks
  // for that.
  constexpr std::uint64_t usual_elements = 0x3F;
  if (!long_strings) from.gpr[exec::rcx] &= usual_elements;
  fill(input, ram, from.rip + (from.mode == exec::CodeMode::bits64 ? 0 : from.segment_bases[1]));
  other_ram.copy_from(ram);

  constexpr std::array<std::uint8_t, 1> in_one_go{255};
  const End reference = run_in_pieces(ram, from, budget, in_one_go, interpreted);
  End other;
  switch (way) {
    case 0:
    case 1: other = run_one_by_one(other_ram, from, budget, false); break;
    case 2: other = run_one_by_one(other_ram, from, budget, true); break;
    case 3:
    case 4:
    case 5: other = run_in_pieces(other_ram, from, budget, pieces, interpreted); break;
    case 6:
    case 7:
    case 8:
    case 9:
    case 10: other = run_in_pieces(other_ram, from, budget, pieces, compiled); break;
    default: other = run_in_pieces(other_ram, from, budget, in_one_go, compiled); break;
  }
  require_same(other, reference, "the same end in another way as in one go");
  require(ram.same_as(other_ram), "the same memory in another way as in one go");
  instructions_run += reference.passed.instructions;
  return 0;
}
