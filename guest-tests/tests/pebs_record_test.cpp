// PEBS records byte by byte. SDM 3B 18.8.1.1 (format 1), 18.11.3.1 (format 2), 18.13.1.1 (format 3);
// rules P3, P4, P6, P7, P8, P9, P23, S3, T4.
// Each move of the marked loop leaves its own number in EBX, which shows whether a record's registers belong to its IP.
#include "gt/asm.hpp"
#include "gt/cpu.hpp"
#include "gt/interrupts.hpp"
#include "gt/paging.hpp"
#include "gt/sampling.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

namespace pmu = gt::pmu;
namespace pebs = gt::pebs;
using gt::MarkedLoop;
using gt::Sampling;
using pebs::PebsRecord;
using pebs::Slot;

constexpr unsigned records_wanted = 6;
/// RFLAGS in the marked loop: CF is set before it, the rest follows from DEC's result, which is RDI. SDM 2A DEC.
std::uint64_t flags_of(std::uint64_t rdi) {
  constexpr std::uint64_t fixed = 2, cf = 1, pf = 4, af = 16, zf = 64;
  const auto low = static_cast<unsigned>(rdi & 0xFF);
  const bool even_parity = (__builtin_popcount(low) & 1) == 0;
  return fixed | cf | (even_parity ? pf : 0) | ((rdi & 0xF) == 0xF ? af : 0) | (rdi == 0 ? zf : 0);
}

/// Checks the loop's registers after the instruction at `offset`.
void check_registers(const PebsRecord& r, std::uint64_t offset) {
  const std::uint64_t mark =
      offset < MarkedLoop::decrement_offset ? offset / MarkedLoop::mark_bytes : MarkedLoop::marks - 1;
  GT_EQUAL(r[Slot::rbx], mark);
  GT_EQUAL(r[Slot::rflags], flags_of(r[Slot::rdi]));
  GT_EQUAL(r[Slot::rax], gt::loop_source);
  GT_EQUAL(r[Slot::rcx], 0x0C0C'0C0CU);
  GT_EQUAL(r[Slot::rsi], reinterpret_cast<std::uint64_t>(&gt::loop_source));
  GT_EQUAL(r[Slot::rdx], reinterpret_cast<std::uint64_t>(&gt::loop_target));
  GT_EQUAL(r[Slot::rbp], gt::marked_loop_constants[0]);
  for (unsigned i = 0; i < 8; ++i)
    GT_EQUAL(r.value[static_cast<unsigned>(Slot::r8) + i], gt::marked_loop_constants[1 + i]);
  GT_CHECK(r[Slot::rsp] % 8 == 0 && r[Slot::rsp] != 0);
}

struct Expected {
  unsigned counter;
  /// Offset that the eventing instruction must have; `anywhere` for any of the loop.
  std::uint64_t offset;
  std::uint64_t data_address;
  std::uint64_t from, to;  ///< TSC before and after.
};
constexpr std::uint64_t anywhere = ~0ULL;
/// As data address: that of the eventing instruction's own access, 0 without one.
constexpr std::uint64_t of_its_access = ~0ULL;

std::uint64_t address_at(std::uint64_t offset) {
  if (offset == MarkedLoop::load_offset) return reinterpret_cast<std::uint64_t>(&gt::loop_source);
  return offset == MarkedLoop::store_offset ? reinterpret_cast<std::uint64_t>(&gt::loop_target) : 0;
}

void check_record(const PebsRecord& r, const Expected& e) {
  const std::uint64_t offset = pebs::eventing_ip(r) - MarkedLoop::head();
  if (!GT_CHECK(offset < MarkedLoop::end_offset && MarkedLoop::length_at(offset) != 0)) return;
  if (e.offset != anywhere) GT_EQUAL(offset, e.offset);
  // RIP is the next instruction to run (rule P3): the head after the taken branch, the end of the loop after its last.
  const std::uint64_t next = MarkedLoop::head() + offset + MarkedLoop::length_at(offset);
  const bool taken = offset == MarkedLoop::branch_offset && r[Slot::rdi] != 0;
  GT_EQUAL(r[Slot::rip], taken ? MarkedLoop::head() : next);
  check_registers(r, offset);
  GT_EQUAL(r[Slot::status], pmu::gp_bit(e.counter));  // rules P7, P8
  const std::uint64_t address = e.data_address == of_its_access ? address_at(offset) : e.data_address;
  GT_EQUAL(r[Slot::data_address], gt::cpu::facts().data_la ? address : 0);
  GT_EQUAL(r[Slot::latency], 0U);
  GT_EQUAL(r[Slot::tx_abort_info], 0U);  // rule T4
  if (gt::cpu::has_record_tsc()) GT_CHECK(r[Slot::tsc] >= e.from && r[Slot::tsc] <= e.to);
}

/// Takes some records and checks every field of each, and that nothing else was written.
void check_session(const Sampling& sampling, std::uint64_t offset, std::uint64_t data_address) {
  pebs::set_up(64, pebs::no_threshold);
  const std::uint64_t from = gt::rdtsc();
  gt::start_sampling(sampling);
  // Counting covers code outside the loop too, so stop as soon as there are enough records.
  GT_REQUIRE(gt::sample_until([] { return pebs::records_written() >= records_wanted; }));
  const std::uint64_t to = gt::rdtsc();
  const std::uint64_t n = pebs::records_written();
  GT_CHECK(n >= records_wanted && n < 64);
  GT_EQUAL(pebs::area().index, pebs::area().base + n * pebs::record_bytes());
  GT_CHECK(pebs::poisoned_from(n * pebs::record_bytes()));
  std::uint64_t last_tsc = from;
  unsigned in_loop = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    const PebsRecord r = pebs::record(i);
    if (gt::cpu::has_record_tsc()) {
      GT_CHECK(r[Slot::tsc] >= last_tsc);
      last_tsc = r[Slot::tsc];
    }
    if (pebs::eventing_ip(r) - MarkedLoop::head() >= MarkedLoop::end_offset) continue;
    ++in_loop;
    check_record(r,
                 {.counter = sampling.counter, .offset = offset, .data_address = data_address, .from = from, .to = to});
  }
  GT_CHECK(in_loop > 0);
  GT_EQUAL(gt::pmu::global_status() & pmu::status::OVF_DSBuffer::mask, 0U);
}

GT_TEST(PebsRecord_OfCycles, gt::need_records) {
  check_session({.event = gt::cpu::facts().precise_cycles, .counter = 0}, anywhere, 0);
}
GT_TEST(PebsRecord_OfPreciseDistribution, gt::need_records) {
  if (!gt::cpu::facts().pdir) gt::skip("this processor has no precise distribution");
  check_session({.event = pmu::precise_distribution, .counter = 1}, anywhere, 0);
}
GT_TEST(PebsRecord_OfBranches, gt::need_records | gt::need_all_events) {
  check_session({.event = pmu::precise_branches, .counter = 2}, MarkedLoop::branch_offset, 0);
}
GT_TEST(PebsRecord_OfLoads, gt::need_records | gt::need_all_events) {
  check_session({.event = gt::cpu::facts().loads, .counter = 3}, MarkedLoop::load_offset,
                reinterpret_cast<std::uint64_t>(&gt::loop_source));
}
GT_TEST(PebsRecord_OfStores, gt::need_records | gt::need_all_events) {
  check_session({.event = gt::cpu::facts().stores, .counter = 0}, MarkedLoop::store_offset,
                reinterpret_cast<std::uint64_t>(&gt::loop_target));
}

// Rule P24: events of which the documents disagree whether they may be precise.
GT_TEST(PebsRecord_OfArchitecturalBranches, gt::need_records | gt::need_all_events) {
  check_session({.event = pmu::branches, .counter = 2}, MarkedLoop::branch_offset, 0);
}
GT_TEST(PebsRecord_OfAllUopsOfSkylake, gt::need_records | gt::need_all_events) {
  if (gt::cpu::facts().microarchitecture != gt::cpu::Microarchitecture::skylake)
    gt::skip("other processors' lists have the event");
  check_session({.event = {0xC2, 0x01}, .counter = 1}, anywhere, of_its_access);  // SDM 3B table 18-57
}

// Rule P19: an event that cannot be precise arms and never triggers; the status bit shows the overflow.
GT_TEST(PebsRecord_NeverComesFromAnImpreciseEvent, gt::need_records) {
  pebs::set_up(64, pebs::no_threshold);
  gt::start_sampling({.event = pmu::cycles, .counter = 0});
  GT_CHECK(gt::sample_until([] { return (pmu::global_status() & pmu::gp_bit(0)) != 0; }));
  pmu::start(pmu::gp_bit(0));
  gt::sample_for_a_while();
  GT_EQUAL(pebs::records_written(), 0U);
  GT_CHECK(pebs::poisoned_from(0));
}

// Without PEBS_ENABLE the same event only counts.
GT_TEST(PebsRecord_NeedsPebsEnable, gt::need_records) {
  pebs::set_up(64, pebs::no_threshold);
  pmu::stop();
  pmu::program(0, pmu::select(gt::cpu::facts().precise_cycles, pmu::os), pmu::minus(gt::sampling_period()));
  pmu::start(pmu::gp_bit(0));
  GT_CHECK(gt::sample_until([] { return (pmu::global_status() & pmu::gp_bit(0)) != 0; }));
  pmu::start(pmu::gp_bit(0));
  gt::sample_for_a_while();
  GT_EQUAL(pebs::records_written(), 0U);
  GT_CHECK(pebs::poisoned_from(0));
}

// Rule P21: records are written at any CPL, with supervisor access: the user need not have access to the area.
GT_TEST(PebsRecord_AtCpl3GoesToSupervisorPages, gt::need_records) {
  pebs::set_up(64, pebs::no_threshold);
  const auto area_page = reinterpret_cast<std::uint64_t>(&pebs::area());
  const auto buffer = reinterpret_cast<std::uint64_t>(pebs::buffer());
  const std::uint64_t linear_area = gt::paging::window, linear_buffer = gt::paging::window + 0x10000;
  gt::paging::map(linear_area, area_page, gt::paging::writable);
  for (std::uint64_t at = 0; at < pebs::buffer_bytes; at += 4096)
    gt::paging::map(linear_buffer + at, buffer + at, gt::paging::writable);
  volatile pebs::ManagementArea& ds = pebs::area();
  ds.base = linear_buffer;
  ds.index = linear_buffer;
  ds.maximum = linear_buffer + 64 * pebs::record_bytes();
  ds.threshold = ~0ULL;
  gt::wrmsr(pmu::msr::IA32_DS_AREA, linear_area);

  gt::start_sampling({.event = gt::cpu::facts().precise_cycles, .counter = 0, .control = pmu::usr});
  GT_REQUIRE(pmu::wait_until([] {
    gt::run_at_cpl3([](void*) { gt::run_loop(); }, nullptr);
    return pebs::records_written() >= records_wanted;
  }));
  pmu::stop();
  std::uint64_t blocked = 0;
  gt::run_at_cpl3([](void* out) { *static_cast<std::uint64_t*>(out) = gt::try_load(gt::paging::window).vector; },
                  &blocked);
  GT_EQUAL(blocked, x86::vector::PF);
  for (std::uint64_t i = 0; i < pebs::records_written(); ++i) {
    const std::uint64_t offset = pebs::eventing_ip(pebs::record(i)) - MarkedLoop::head();
    if (offset < MarkedLoop::end_offset) check_registers(pebs::record(i), offset);
  }
  // Rule F12: the processor's writes set accessed and dirty.
  constexpr std::uint64_t used = gt::paging::accessed | gt::paging::dirty;
  GT_EQUAL(gt::paging::entry(linear_area) & used, used);
  GT_EQUAL(gt::paging::entry(linear_buffer) & used, used);
  GT_EQUAL(gt::paging::entry(linear_buffer + 0x8000) & used, 0U);
}

constexpr std::uint64_t far_page = 5 * 4096;
constexpr std::uint64_t bytes_in_first_page = 0x50;
constexpr std::uint64_t crossing = gt::paging::window + 4096 - bytes_in_first_page;

std::uint64_t crossing_word(Slot slot) {
  return *reinterpret_cast<const volatile std::uint64_t*>(crossing + static_cast<unsigned>(slot) * 8);
}

/// Takes one record, of the loop's load, at `crossing`. False if an estimating source took another instruction: try
/// again.
bool take_crossing_record() {
  for (unsigned attempt = 0; attempt < 20; ++attempt) {
    pebs::area().index = crossing;
    pmu::acknowledge(pmu::gp_bit(0));
    gt::start_sampling({.event = gt::cpu::facts().loads, .counter = 0});
    if (!gt::sample_until([] { return pebs::area().index != crossing; })) return false;
    if (crossing_word(Slot::rip) == MarkedLoop::head() + MarkedLoop::store_offset) return true;
  }
  return false;
}

// Rule F13: a record that straddles two pages which are not neighbours in physical memory.
GT_TEST(PebsRecord_CrossesPages, gt::need_records | gt::need_all_events) {
  pebs::set_up(64, pebs::no_threshold);
  const auto buffer = reinterpret_cast<std::uint64_t>(pebs::buffer());
  gt::paging::map(gt::paging::window, buffer + far_page, gt::paging::writable);
  gt::paging::map(gt::paging::window + 4096, buffer, gt::paging::writable);
  pebs::area().base = crossing;
  pebs::area().maximum = crossing + pebs::record_bytes();
  pebs::area().threshold = ~0ULL;
  GT_REQUIRE(take_crossing_record());
  GT_EQUAL(pebs::area().index, crossing + pebs::record_bytes());
  GT_EQUAL(crossing_word(Slot::rbp), gt::marked_loop_constants[0]);
  GT_EQUAL(crossing_word(Slot::r15), gt::marked_loop_constants[8]);
  GT_EQUAL(crossing_word(Slot::data_address),
           gt::cpu::facts().data_la ? reinterpret_cast<std::uint64_t>(&gt::loop_source) : 0);
  GT_EQUAL(*reinterpret_cast<const volatile std::uint64_t*>(crossing + pebs::record_bytes()), pebs::poison_word);
  GT_CHECK(pebs::poisoned_from(far_page + 4096));
}

}  // namespace
