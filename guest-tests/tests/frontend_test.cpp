// FRONTEND_RETIRED and MSR_PEBS_FRONTEND: SDM 3B 18.13.1.4, 18.13.1.5, tables 18-58 and 18-59; ITLB_MISS_RETIRED of
// Nehalem and Westmere. The code is laid out so that each line, or page, misses the model's caches.
#include "gt/asm.hpp"
#include "gt/cpu.hpp"
#include "gt/paging.hpp"
#include "gt/pebs.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"

namespace {

namespace pmu = gt::pmu;
namespace pebs = gt::pebs;
using gt::cpu::Microarchitecture;
using pebs::Slot;

constexpr pmu::Event frontend_retired{0xC6, 0x01}, itlb_miss_retired{0xC8, 0x20};
constexpr std::uint64_t dsb_miss = 0x11, l1i_miss = 0x12, l2_miss = 0x13, itlb_miss = 0x14, stlb_miss = 0x15;
/// Selects bubbles of at least `length` cycles with at least `width` empty slots.
constexpr std::uint64_t bubbles(std::uint64_t length, std::uint64_t width) { return 0x06 | length << 8 | width << 20; }

constexpr std::uint64_t line_bytes = 64, page_bytes = 4096;
/// Free RAM in large pages.
constexpr std::uint64_t code = 24ULL << 20;

/// Writes a chain of `links` pieces of code, the first at `at`, each `step` bytes after the one before. Each has two
/// NOPs at the start of a line and a jump to the next piece; the last one returns.
void write_chain(std::uint64_t at, std::uint64_t links, std::uint64_t step) {
  constexpr std::uint8_t nop = 0x90, jmp = 0xE9, ret = 0xC3, nops = 2, jump_bytes = 5;
  for (std::uint64_t i = 0; i < links; ++i) {
    auto* const to = reinterpret_cast<volatile std::uint8_t*>(at + i * step);
    for (unsigned byte = 0; byte < nops; ++byte) to[byte] = nop;
    to[nops] = i + 1 == links ? ret : jmp;
    const std::uint64_t displacement = step - jump_bytes - nops;
    for (unsigned byte = 0; byte < 4; ++byte)
      to[nops + 1 + byte] = static_cast<std::uint8_t>(displacement >> (8 * byte));
  }
}
void run(std::uint64_t at) { reinterpret_cast<void (*)()>(at)(); }

std::uint64_t count(std::uint64_t choice, std::uint64_t at) {
  pmu::stop();
  gt::wrmsr(pmu::msr::MSR_PEBS_FRONTEND, choice);
  pmu::program(0, pmu::select(frontend_retired, pmu::os), 0);
  pmu::start(pmu::gp_bit(0));
  run(at);
  pmu::stop();
  return pmu::counter(0);
}

void need_frontend() {
  if (gt::cpu::facts().microarchitecture < Microarchitecture::skylake) gt::skip("only Skylake has MSR_PEBS_FRONTEND");
}
/// Whether it is `n`, except for a few of the kernel's own lines.
bool is_about(std::uint64_t counted, std::uint64_t n) { return counted + 20 >= n && counted <= n + 20; }

constexpr std::uint64_t in_dsb = 32, in_l1i = 384, in_l2 = 1'536;  // lines of code

// Each line counts once, not each of its instructions.
GT_TEST(Frontend_CountsLinesByWhereTheyWere, gt::need_hit_levels) {
  need_frontend();
  write_chain(code, in_l2, line_bytes);
  GT_CHECK(is_about(count(l2_miss, code), in_l2));  // cold
  GT_CHECK(is_about(count(l2_miss, code), 0));
  GT_CHECK(is_about(count(l1i_miss, code), in_l2));
  GT_CHECK(is_about(count(dsb_miss, code), in_l2));
  write_chain(code, in_l1i, line_bytes);
  count(l1i_miss, code);
  GT_CHECK(is_about(count(l1i_miss, code), 0));
  GT_CHECK(is_about(count(dsb_miss, code), in_l1i));
  write_chain(code, in_dsb, line_bytes);
  count(dsb_miss, code);
  GT_CHECK(is_about(count(dsb_miss, code), 0));
}

// Lines a page apart map to 16 sets of an L2 with 1024 sets: these hold 256 lines at most.
GT_TEST(Frontend_CountsWhatTheL2Lacks, gt::need_hit_levels) {
  need_frontend();
  constexpr std::uint64_t lines = 1'024;
  write_chain(code, lines, page_bytes);
  count(l2_miss, code);
  GT_CHECK(is_about(count(l2_miss, code), lines));
  GT_CHECK(is_about(count(l1i_miss, code), lines));
}

// SDM 3B table 18-59: bubbles of at least this length and width. 1536 lines of code come from the L2, in 12 to 16
// cycles.
GT_TEST(Frontend_CountsBubblesByLengthAndWidth, gt::need_hit_levels) {
  need_frontend();
  write_chain(code, in_l2, line_bytes);
  count(l1i_miss, code);
  for (const std::uint64_t width : {1U, 2U, 3U, 4U}) GT_CHECK(is_about(count(bubbles(2, width), code), in_l2));
  GT_CHECK(is_about(count(bubbles(8, 4), code), in_l2));
  GT_CHECK(is_about(count(bubbles(32, 4), code), 0));
  GT_CHECK(is_about(count(bubbles(0, 4), code), 0));
  GT_CHECK(is_about(count(bubbles(8, 4), code), in_l2));
}

void drop_translations() { gt::write_cr3(gt::read_cr3()); }

/// Writes a chain with one piece in each page of the window.
void write_pages(std::uint64_t pages) {
  for (std::uint64_t page = 0; page < pages; ++page)
    gt::paging::map(gt::paging::window + page * page_bytes, code + page * page_bytes, gt::paging::writable);
  write_chain(gt::paging::window, pages, page_bytes);
}

GT_TEST(Frontend_CountsTranslationsByWhereTheyWere, gt::need_hit_levels) {
  need_frontend();
  constexpr std::uint64_t pages = 512;  // more than the ITLB's 128, less than the STLB
  write_pages(pages);
  drop_translations();
  GT_CHECK(is_about(count(stlb_miss, gt::paging::window), pages));
  GT_CHECK(is_about(count(stlb_miss, gt::paging::window), 0));
  GT_CHECK(is_about(count(itlb_miss, gt::paging::window), pages));
}

GT_TEST(Frontend_CountsItlbMissesOfOlderProcessors, gt::need_hit_levels) {
  if (gt::cpu::facts().microarchitecture > Microarchitecture::westmere)
    gt::skip("ITLB_MISS_RETIRED is Nehalem's and Westmere's");
  constexpr std::uint64_t few = 64, many = 256;
  for (const std::uint64_t pages : {few, many}) {
    write_pages(pages);
    for (unsigned round = 0; round < 2; ++round) {
      pmu::stop();
      pmu::program(0, pmu::select(itlb_miss_retired, pmu::os), 0);
      pmu::start(pmu::gp_bit(0));
      run(gt::paging::window);
      pmu::stop();
      if (round == 1) GT_CHECK(is_about(pmu::counter(0), pages == few ? 0 : many));
    }
  }
}

// SDM 3B 18.13.1.4: the record is for an instruction whose line missed, the first instruction of that line.
GT_TEST(Frontend_RecordsStandOnTheInstructionThatMissed, gt::need_hit_levels) {
  need_frontend();
  constexpr unsigned max = 64;
  for (const std::uint64_t choice : {dsb_miss, l1i_miss, bubbles(8, 4)}) {
    write_chain(code, in_l2, line_bytes);
    count(choice, code);
    pebs::set_up(2 * max, pebs::no_threshold);
    pebs::set_reset(0, 20);
    gt::wrmsr(pmu::msr::MSR_PEBS_FRONTEND, choice);
    pmu::program(0, pmu::select(frontend_retired, pmu::os), pmu::minus(20));
    gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, pmu::gp_bit(0));
    pmu::start(pmu::gp_bit(0));
    run(code);
    pmu::stop();
    gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, 0);
    const std::uint64_t records = pebs::records_written();
    GT_REQUIRE(records >= max);
    std::uint64_t right = 0;
    for (std::uint64_t i = 0; i < records; ++i) {
      const std::uint64_t at = pebs::record(i)[Slot::eventing_ip];
      right += at >= code && at < code + in_l2 * line_bytes && at % line_bytes == 0 ? 1 : 0;
    }
    GT_CHECK(right * 10 >= records * 9);
  }
}

}  // namespace
