// Translations that change while the PMU counts: a source that runs the guest's code itself must walk the tables again,
// and so must the processor when it continues. SDM 3A 4.10.4.1.
#include <cstring>

#include "gt/asm.hpp"
#include "gt/paging.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"

namespace {

namespace pmu = gt::pmu;
using gt::paging::window;
using gt::paging::writable;

/// Free RAM.
constexpr std::uint64_t first = 16ULL << 20, second = first + 4096, other_root = first + 8192;

volatile std::uint64_t& word_at(std::uint64_t at) { return *reinterpret_cast<volatile std::uint64_t*>(at); }

/// Reads the window's page, and maps it from the first page to the second while a counter counts; `drop` invalidates
/// the translation.
void check_change(void (*drop)()) {
  word_at(first) = 1;
  word_at(second) = 2;
  for (unsigned round = 0; round < 3; ++round) {
    pmu::stop();
    gt::paging::map(window, first, writable);
    GT_EQUAL(word_at(window), 1U);
    pmu::program(0, pmu::select(pmu::instructions, pmu::os), 0);
    pmu::start(pmu::gp_bit(0));
    const std::uint64_t before = word_at(window);
    gt::paging::change(window, second, writable);
    drop();
    const std::uint64_t after = round == 0 ? 2 : word_at(window);  // in one round nothing is read before counting stops
    pmu::stop();
    GT_EQUAL(before, 1U);
    GT_EQUAL(after, 2U);
    GT_EQUAL(word_at(window), 2U);
    GT_CHECK(pmu::counter(0) > 0);
  }
}

GT_TEST(Translations_DroppedByInvlpgAreLookedAtAnew) {
  check_change([] { gt::invlpg(window); });
}

GT_TEST(Translations_DroppedByTheSameCr3AreLookedAtAnew) {
  check_change([] { gt::write_cr3(gt::read_cr3()); });
}

// To other tables and back: CR3 has the same value afterwards.
GT_TEST(Translations_DroppedByOtherTablesForAWhileAreLookedAtAnew) {
  std::memcpy(reinterpret_cast<void*>(other_root), reinterpret_cast<const void*>(gt::read_cr3()), 4096);
  check_change([] {
    const std::uint64_t root = gt::read_cr3();
    gt::write_cr3(other_root);
    gt::write_cr3(root);
  });
}

}  // namespace
