// Branch trace store. SDM 3B 17.4.5, 17.4.9; rules B1 to B6, F14, F15, Z1.
#include <array>

#include "gt/asm.hpp"
#include "gt/branches.hpp"
#include "gt/cpu.hpp"
#include "gt/interrupts.hpp"
#include "gt/paging.hpp"
#include "gt/pebs.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"
#include "vpmu/bts.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

namespace pmu = gt::pmu;
namespace dbg = gt::pmu::reg::debugctl;
using vpmu::BtsRecord;

constexpr std::uint64_t trace_on = dbg::TR::mask | dbg::BTS::mask;
constexpr std::uint64_t with_interrupt = trace_on | dbg::BTINT::mask;
constexpr std::uint64_t poison = 0xB75B'75B7'5B75'B75B;
constexpr unsigned capacity = 400;
constexpr unsigned no_threshold = 100'000;

alignas(4096) constinit std::array<std::uint64_t, capacity * 3> buffer{};

std::uint64_t base() { return reinterpret_cast<std::uint64_t>(buffer.data()); }
std::uint64_t address(const char* label) { return reinterpret_cast<std::uint64_t>(label); }

/// The BTS half of the DS area, and an empty PEBS half.
void set_up(unsigned records, unsigned threshold, std::uint64_t begin = base()) {
  for (auto& word : buffer) *const_cast<volatile std::uint64_t*>(&word) = poison;
  gt::pebs::set_up(1, gt::pebs::no_threshold);
  auto& area = gt::pebs::area();
  area.bts_base = begin;
  area.bts_index = begin;
  area.bts_maximum = begin + records * BtsRecord::size + 1;
  area.bts_threshold = begin + threshold * BtsRecord::size;
}

std::uint64_t stored() { return (gt::pebs::area().bts_index - gt::pebs::area().bts_base) / BtsRecord::size; }
BtsRecord record(std::uint64_t i) {
  const volatile std::uint64_t* const at = buffer.data() + 3 * i;
  return {at[0], at[1], at[2]};
}
bool is_untouched(std::uint64_t i) { return record(i) == BtsRecord{poison, poison, poison}; }

GT_TEST(Bts_RecordsEachTakenBranch, gt::need_exact_counts) {
  set_up(capacity, no_threshold);
  gt::gt_branch_kinds(trace_on);
  const auto known = gt::branch_kinds();
  GT_EQUAL(stored(), known.size());
  for (unsigned i = 0; i < known.size(); ++i) {
    GT_EQUAL(record(i).from, known.at(i).from);
    GT_EQUAL(record(i).to, known.at(i).to);
    GT_EQUAL(record(i).flags & ~BtsRecord::PREDICTED::mask, 0U);
  }
  GT_CHECK(is_untouched(known.size()));
}

// Rule B1: TR alone sends messages on a bus, BTS alone does nothing.
GT_TEST(Bts_NeedsBothBits, gt::need_exact_counts) {
  set_up(capacity, 1);
  for (const std::uint64_t control :
       {std::uint64_t{dbg::TR::mask}, std::uint64_t{dbg::BTS::mask}, dbg::TR::mask | dbg::BTINT::mask})
    gt::gt_branch_kinds(control);
  GT_EQUAL(stored(), 0U);
  GT_CHECK(is_untouched(0));
  gt::gt_branch_kinds(trace_on);
  GT_CHECK(stored() != 0);
}

// One record leads from the faulting instruction to the first one of its handler; IRET's record leads back.
GT_TEST(Bts_RecordsExceptionsAndTheirReturn, gt::need_exact_counts) {
  set_up(capacity, no_threshold);
  gt::gt_branch_ud2(trace_on);
  GT_REQUIRE(stored() >= 2);
  GT_EQUAL(record(0).from, address(gt::gt_branch_ud2_at));
  GT_EQUAL(record(0).to, gt::vector_stub(x86::vector::UD));
  const BtsRecord last = record(stored() - 1);
  GT_EQUAL(last.to, address(gt::gt_branch_ud2_behind));
  GT_EQUAL(*reinterpret_cast<const std::uint8_t*>(last.from), 0x48U);  // IRETQ is 48 CF
  GT_EQUAL(*reinterpret_cast<const std::uint8_t*>(last.from + 1), 0xCFU);
  // Between them the path has no gap: each branch is at or after the target of the one before.
  for (std::uint64_t i = 1; i < stored(); ++i)
    GT_CHECK(record(i).from >= record(i - 1).to && record(i).from - record(i - 1).to < 4096);
}

GT_TEST(Bts_RecordsInterrupts, gt::need_exact_counts) {
  set_up(capacity, 2);
  pmu::catch_pmi_by_nmi();
  gt::gt_branch_loop(with_interrupt, 20);
  GT_REQUIRE(pmu::pmi_count() == 1);
  unsigned entries = 0;
  for (std::uint64_t i = 0; i < stored(); ++i)
    if (record(i).to == gt::vector_stub(x86::vector::NMI)) {
      GT_EQUAL(record(i).from, pmu::pmi(0).rip);
      GT_EQUAL(i, 2U);
      ++entries;
    }
  GT_EQUAL(entries, 1U);
}

// Rule B2: the interrupt follows the record that reaches the threshold. Bit 62 belongs to PEBS and stays clear.
GT_TEST(Bts_ThresholdRaisesAnInterrupt, gt::need_exact_counts) {
  set_up(capacity, 5);
  pmu::catch_pmi_by_nmi();
  gt::gt_branch_loop(with_interrupt | dbg::BTS_OFF_USR::mask, 5);  // four branches
  GT_EQUAL(stored(), 4U);
  GT_EQUAL(pmu::pmi_count(), 0U);
  gt::gt_branch_loop(with_interrupt, 2);
  GT_EQUAL(pmu::pmi_count(), 1U);
  GT_EQUAL(pmu::pmi(0).rip, address(gt::gt_branch_loop_head));
  GT_EQUAL(pmu::pmi(0).status, 0U);
  GT_CHECK(stored() > 5);
}

// Rule B3.
GT_TEST(Bts_IsCircularWithoutInterrupt, gt::need_exact_counts) {
  set_up(4, no_threshold);
  pmu::catch_pmi_by_nmi();
  gt::gt_branch_kinds(trace_on);  // nine branches into room for four
  const auto known = gt::branch_kinds();
  GT_EQUAL(stored(), 1U);
  GT_EQUAL(record(0).from, known.at(8).from);
  for (unsigned i = 1; i < 4; ++i) GT_EQUAL(record(i).from, known.at(4 + i).from);
  GT_CHECK(is_untouched(4));
  GT_EQUAL(pmu::pmi_count(), 0U);
}

// Rule B2: nothing is stored past the absolute maximum, and nothing signals that.
GT_TEST(Bts_FullBufferKeepsWhatItHas, gt::need_exact_counts) {
  set_up(4, no_threshold);
  pmu::catch_pmi_by_nmi();
  gt::gt_branch_kinds(with_interrupt);
  GT_EQUAL(stored(), 4U);
  GT_EQUAL(record(3).from, gt::branch_kinds().at(3).from);
  GT_CHECK(is_untouched(4));
  GT_EQUAL(pmu::pmi_count(), 0U);
}

/// Thirty taken branches at CPL 3.
void loop_at_cpl3(void*) {
  std::uint64_t n = 31;
  asm volatile("1: dec %0\n jnz 1b" : "+r"(n)::"cc");
}

/// How many recorded branches are within loop_at_cpl3, enter CPL 3, and leave it.
struct ByLevel {
  unsigned in_loop, entries, exits;
};
ByLevel traced_at_cpl3(std::uint64_t filters) {
  set_up(capacity, no_threshold);
  gt::wrmsr(pmu::msr::IA32_DEBUGCTL, trace_on | filters);
  gt::run_at_cpl3(loop_at_cpl3, nullptr);
  gt::wrmsr(pmu::msr::IA32_DEBUGCTL, 0);
  ByLevel seen{};
  const std::uint64_t loop = reinterpret_cast<std::uint64_t>(&loop_at_cpl3);
  for (std::uint64_t i = 0; i < stored(); ++i) {
    const BtsRecord r = record(i);
    if (r.from - loop < 32 && r.to - loop < 32) ++seen.in_loop;
    if (r.from == address(gt::gt_user_done)) ++seen.exits;
    if (r.to == address(gt::gt_user_trampoline)) ++seen.entries;
  }
  return seen;
}

// Rule B4: a branch has the level of its source.
GT_TEST(Bts_FiltersByLevel, gt::need_exact_counts) {
  const ByLevel all = traced_at_cpl3(0);
  GT_EQUAL(all.in_loop, 30U);
  GT_EQUAL(all.entries, 1U);
  GT_EQUAL(all.exits, 1U);
  GT_CHECK(stored() > 33);
  const ByLevel user = traced_at_cpl3(dbg::BTS_OFF_OS::mask);
  GT_EQUAL(user.in_loop, 30U);
  GT_EQUAL(user.entries, 0U);
  GT_EQUAL(user.exits, 1U);
  GT_EQUAL(stored(), 33U);  // and the call of the function, its return
  const ByLevel kernel = traced_at_cpl3(dbg::BTS_OFF_USR::mask);
  GT_EQUAL(kernel.in_loop, 0U);
  GT_EQUAL(kernel.entries, 1U);
  GT_EQUAL(kernel.exits, 0U);
  GT_CHECK(stored() > 1);
  traced_at_cpl3(dbg::BTS_OFF_OS::mask | dbg::BTS_OFF_USR::mask);
  GT_EQUAL(stored(), 0U);
}

// Rules B6, F13.
GT_TEST(Bts_RecordsStraddlePages, gt::need_exact_counts) {
  set_up(100, no_threshold, base() + 4096 - 8);
  gt::gt_branch_kinds(trace_on);
  GT_EQUAL(stored(), 9U);
  const volatile std::uint64_t* const at = buffer.data() + 511;
  GT_EQUAL(at[0], gt::branch_kinds().at(0).from);
  GT_EQUAL(at[1], gt::branch_kinds().at(0).to);
  GT_EQUAL(at[3], gt::branch_kinds().at(1).from);
}

// Rules B6, F10: a record that cannot be stored whole is not stored, and the guest runs on.
GT_TEST(Bts_UnmappedBufferLosesRecordsOnly, gt::need_exact_counts) {
  constexpr std::uint64_t page = 4096;
  namespace paging = gt::paging;
  paging::map(paging::window, base(), paging::present | paging::writable);
  set_up(100, 0, paging::window + page - 2 * BtsRecord::size - 8);
  pmu::catch_pmi_by_nmi({.unmask = 1});
  gt::gt_branch_kinds(trace_on);
  GT_EQUAL(stored(), 2U);
  const volatile std::uint64_t* const end = buffer.data() + 511;
  GT_EQUAL(*end, poison);
  set_up(100, 0, paging::window + page);
  gt::gt_branch_kinds(with_interrupt);
  GT_EQUAL(stored(), 0U);
  GT_EQUAL(pmu::pmi_count(), 0U);
  paging::map(paging::window + page, base() + page, paging::present | paging::writable);
  gt::gt_branch_kinds(trace_on);
  GT_EQUAL(stored(), 9U);
  constexpr std::uint64_t used = paging::accessed | paging::dirty;
  GT_EQUAL(paging::entry(paging::window + page) & used, used);  // rule F12
}

// Rule F15: the branch that PEBS records has a BTS record too, both before the one interrupt of their thresholds.
GT_TEST(Bts_FollowsThePebsRecord, gt::need_exact_counts | gt::need_records) {
  set_up(capacity, 2);
  gt::pebs::area().threshold = gt::pebs::area().base;
  gt::pebs::set_reset(0, 1000);
  pmu::catch_pmi_by_nmi();
  pmu::program(0, pmu::select(pmu::conditional_branches, pmu::os), pmu::minus(1));
  gt::wrmsr(pmu::msr::IA32_PEBS_ENABLE, 1);
  pmu::start(1);
  gt::gt_branch_loop(with_interrupt, 3);  // the first branch overflows, the second one is recorded
  GT_EQUAL(gt::pebs::records_written(), 1U);
  GT_EQUAL(gt::pebs::record(0)[gt::pebs::Slot::rip], address(gt::gt_branch_loop_head));
  GT_EQUAL(pmu::pmi_count(), 1U);
  GT_EQUAL(pmu::pmi(0).status, pmu::status::OVF_DSBuffer::mask);
  GT_EQUAL(record(1).from, address(gt::gt_branch_loop_branch));
  GT_EQUAL(record(2).to, gt::vector_stub(x86::vector::NMI));
}

// Rules Z1 to Z4: the threshold of BTS freezes as the overflow of a counter does.
GT_TEST(Bts_ThresholdFreezes, gt::need_exact_counts) {
  set_up(capacity, 3);
  pmu::program(0, pmu::select(pmu::conditional_branches, pmu::os), 0);
  pmu::start(1);
  gt::gt_branch_loop(with_interrupt | dbg::FREEZE_PERFMON_ON_PMI::mask, 20);
  GT_EQUAL(pmu::counter(0), 3U);
  GT_EQUAL(stored(), 19U);  // the trace itself continues
  const bool streamlined = gt::cpu::has_streamlined_freeze();
  GT_EQUAL(gt::rdmsr(pmu::msr::IA32_PERF_GLOBAL_CTRL), streamlined ? 1U : 0U);
  GT_EQUAL(pmu::global_status(), streamlined ? pmu::status::CTR_FRZ::mask : 0U);
}

}  // namespace
