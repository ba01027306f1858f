// Hot code that is changed, or whose page goes, and that comes back as it was: it must run as what stands there now. A
// processor notices a store to code by its physical address. SDM 3A 11.6, 4.10.4.
#include <array>
#include <initializer_list>

#include "gt/interrupts.hpp"
#include "gt/paging.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

namespace paging = gt::paging;
namespace pmu = gt::pmu;

constexpr std::uint64_t page = 4096;
constexpr std::uint64_t hot = 1000;  // calls: an engine that compiles has compiled by then
constexpr std::uint64_t here = paging::window, behind = paging::window + page;

alignas(page) std::array<volatile std::uint8_t, 3 * page> room;
volatile std::uint64_t faults;

std::uint64_t frame(unsigned number) { return reinterpret_cast<std::uint64_t>(&room[number * page]); }
void put(std::uint64_t at, std::initializer_list<std::uint8_t> code) {
  for (const std::uint8_t byte : code) room[at++] = byte;
}
/// lea 1(%rdi), %rax; ret
void put_function(std::uint64_t at) { put(at, {0x48, 0x8D, 0x47, 0x01, 0xC3}); }

/// What comes of 0 after so many calls of the function.
std::uint64_t call(std::uint64_t at, std::uint64_t times) {
  const auto function = reinterpret_cast<std::uint64_t (*)(std::uint64_t)>(at);
  std::uint64_t x = 0;
  for (std::uint64_t n = 0; n < times; ++n) x = function(x);
  return x;
}
/// Sources that look at each instruction only do so while somebody counts.
void begin_counting() {
  pmu::stop();
  pmu::program(0, pmu::select(pmu::instructions, pmu::os), 0);
  pmu::start(pmu::gp_bit(0));
}
void end_counting() {
  pmu::stop();
  GT_CHECK(pmu::counter(0) > hot);
}

// MACHINE_CLEARS.SMC: a store to code that was fetched. The first of a function's bytes takes its line.
GT_TEST(ChangingCode_ClearsThePipeline, gt::need_exact_counts | gt::need_pipeline_time) {
  constexpr pmu::Event stores_to_code{0xC3, 0x04};
  constexpr std::uint64_t rounds = 20;
  put_function(0);
  pmu::stop();
  pmu::program(0, pmu::select(stores_to_code, pmu::os), 0);
  pmu::start(pmu::gp_bit(0));
  call(frame(0), 1);
  for (std::uint64_t n = 0; n < rounds; ++n) {
    put_function(0);
    call(frame(0), 1);
  }
  pmu::stop();
  GT_EQUAL(pmu::counter(0), rounds);
}

void return_to_caller(gt::InterruptFrame& f) {
  faults = faults + 1;
  f.rip = *reinterpret_cast<const std::uint64_t*>(f.rsp);
  f.rsp += sizeof f.rip;
}
void map_what_is_behind(gt::InterruptFrame&) {
  faults = faults + 1;
  paging::map(behind, frame(faults % 2 == 0 ? 1 : 2), paging::present | paging::writable);
}

/// The first byte of the function at `to_run` becomes no instruction and comes back, again and again.
void change_and_change_back(std::uint64_t to_run, std::uint64_t to_write) {
  gt::on_vector(x86::vector::UD, return_to_caller);
  GT_EQUAL(call(to_run, hot), hot);
  for (std::uint64_t n = 1; n <= 3; ++n) {
    put(to_write, {0x06});  // PUSH ES, in other modes
    call(to_run, 1);
    GT_EQUAL(faults, n);
    put(to_write, {0x48});
    GT_EQUAL(call(to_run, hot), hot);
  }
  GT_EQUAL(faults, 3U);
}

GT_TEST(ChangingCode_BecomesUndefinedAndComesBack) {
  begin_counting();
  put_function(0);
  change_and_change_back(frame(0), 0);
  end_counting();
}

GT_TEST(ChangingCode_IsChangedByAnotherAddress) {
  begin_counting();
  paging::map(here, frame(0), paging::present | paging::writable);
  paging::map(behind, frame(1), paging::present | paging::writable);
  put_function(page - 2);
  change_and_change_back(here + page - 2, page - 2);
  put(page, {0x47, 0x02});  // lea 2(%rdi), %rax
  GT_EQUAL(call(here + page - 2, hot), 2 * hot);
  end_counting();
}

// As when memory is short, or after fork(): the second page of an instruction is mapped when it is fetched, and is
// another frame each time.
GT_TEST(ChangingCode_SecondPageOfAnInstructionGoesAndComesBack) {
  begin_counting();
  gt::on_vector(x86::vector::PF, map_what_is_behind);
  put_function(page - 2);
  for (unsigned n = 0; n < 3; ++n) room[2 * page + n] = room[page + n];
  paging::map(here, frame(0), paging::present | paging::writable);
  for (std::uint64_t n = 1; n <= 5; ++n) {
    GT_EQUAL(call(here + page - 2, hot), hot);
    GT_EQUAL(faults, n);
    paging::unmap(behind);
  }
  end_counting();
}

}  // namespace
