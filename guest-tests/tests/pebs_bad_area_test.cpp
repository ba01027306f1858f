// Wrong DS areas. Rules F1, F4, F7 to F10, F12; SDM 3B 17.4.9.2, 43.6.6. A record that cannot be
// written is dropped whole: nothing is stored, no fault reaches the guest, the status bit stays set, and the PMU works
// again once the area is right.
#include "gt/asm.hpp"
#include "gt/cpu.hpp"
#include "gt/paging.hpp"
#include "gt/sampling.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

namespace pmu = gt::pmu;
namespace pebs = gt::pebs;
namespace paging = gt::paging;

constexpr std::uint64_t hole = paging::window + 0x80000;  ///< Never mapped.

std::uint64_t physical_area() { return reinterpret_cast<std::uint64_t>(&pebs::area()); }
std::uint64_t physical_buffer() { return reinterpret_cast<std::uint64_t>(pebs::buffer()); }

/// Points the management area's PEBS half at `base`, with room for `records`.
void use_buffer(std::uint64_t base, unsigned records) {
  volatile pebs::ManagementArea& ds = pebs::area();
  ds.base = base;
  ds.index = base;
  ds.maximum = base + records * pebs::record_bytes();
  ds.threshold = ~0ULL;
}

bool overflowed() { return (pmu::global_status() & pmu::gp_bit(0)) != 0; }

/// Once the area is good again, records are written.
void check_recovery() {
  pebs::set_up(8, pebs::no_threshold);
  pmu::acknowledge(pmu::gp_bit(0));
  gt::start_sampling({});
  GT_CHECK(gt::sample_until([] { return pebs::records_written() >= 2; }));
}

/// Samples with the area as it is now: the counter must overflow, and the buffer stay untouched.
void check_dropped() {
  gt::start_sampling({});
  GT_REQUIRE(pmu::wait_until([] {
    gt::run_loop();
    return overflowed();
  }));
  gt::sample_for_a_while();
  GT_CHECK(overflowed());  // rule F4
  GT_EQUAL(pmu::global_status() & pmu::status::OVF_DSBuffer::mask, 0U);
  GT_CHECK(pebs::poisoned_from(0));
  check_recovery();
}

/// As check_dropped, and the index must not have moved.
void check_dropped_with_index(std::uint64_t index) {
  gt::start_sampling({});
  GT_REQUIRE(pmu::wait_until([] {
    gt::run_loop();
    return overflowed();
  }));
  gt::sample_for_a_while();
  GT_CHECK(overflowed());
  GT_EQUAL(pebs::area().index, index);
  GT_CHECK(pebs::poisoned_from(0));
  check_recovery();
}

GT_TEST(BadDsArea_Unmapped, gt::need_records) {
  pebs::set_up(8, pebs::no_threshold);
  gt::wrmsr(pmu::msr::IA32_DS_AREA, hole);
  check_dropped();
}

GT_TEST(BadDsArea_AtTheTopOfTheAddressSpace, gt::need_records) {
  pebs::set_up(8, pebs::no_threshold);
  gt::wrmsr(pmu::msr::IA32_DS_AREA, ~0x2FULL);  // the PEBS half lies beyond 2^64
  check_dropped();
}

// The second part of the area is in the next page, which is not mapped: the threshold cannot be read (F10).
GT_TEST(BadDsArea_CrossesIntoAHole, gt::need_records) {
  pebs::set_up(8, pebs::no_threshold);
  paging::map(paging::window, physical_area(), paging::writable);
  gt::wrmsr(pmu::msr::IA32_DS_AREA, paging::window + 4096 - 0x30);
  check_dropped();
}

GT_TEST(BadDsArea_IndexCannotBeWritten, gt::need_records) {
  pebs::set_up(8, pebs::no_threshold);
  paging::map(paging::window, physical_area(), 0);
  gt::wrmsr(pmu::msr::IA32_DS_AREA, paging::window);
  check_dropped_with_index(physical_buffer());
}

// The page tables map the area to an address without RAM.
GT_TEST(BadDsArea_MapsNoMemory, gt::need_records) {
  pebs::set_up(8, pebs::no_threshold);
  paging::map(paging::window, 0xD000'0000, paging::writable);
  gt::wrmsr(pmu::msr::IA32_DS_AREA, paging::window);
  check_dropped();
}

GT_TEST(BadPebsBuffer_Unmapped, gt::need_records) {
  pebs::set_up(8, pebs::no_threshold);
  use_buffer(hole, 8);
  check_dropped_with_index(hole);
}

// The first part of the record could be written: a torn record must not appear (F10).
GT_TEST(BadPebsBuffer_CrossesIntoAHole, gt::need_records) {
  pebs::set_up(8, pebs::no_threshold);
  paging::map(paging::window, physical_buffer(), paging::writable);
  use_buffer(paging::window + 4096 - 0x60, 8);
  check_dropped_with_index(paging::window + 4096 - 0x60);
}

// Rule F12: read-only with CR0.WP = 1.
GT_TEST(BadPebsBuffer_ReadOnly, gt::need_records) {
  pebs::set_up(8, pebs::no_threshold);
  paging::map(paging::window, physical_buffer(), 0);
  use_buffer(paging::window, 8);
  check_dropped_with_index(paging::window);
}

// With CR0.WP = 0 the same page accepts the record: supervisor accesses then ignore R/W. SDM 3A 4.6.1.
GT_TEST(BadPebsBuffer_ReadOnlyDoesNotMatterWithoutWp, gt::need_records) {
  pebs::set_up(8, pebs::no_threshold);
  paging::map(paging::window, physical_buffer(), 0);
  use_buffer(paging::window, 8);
  gt::write_cr0(gt::read_cr0() & ~x86::cr0::WP::mask);
  gt::start_sampling({});
  GT_CHECK(gt::sample_until([] { return pebs::records_written() >= 1; }));
  GT_CHECK(!pebs::poisoned_from(0));
}

GT_TEST(BadPebsBuffer_NonCanonical, gt::need_records) {
  pebs::set_up(8, pebs::no_threshold);
  use_buffer(0x0000'8000'0000'0000, 8);
  check_dropped_with_index(0x0000'8000'0000'0000);
}

// A record that would start at a canonical address and end beyond the canonical range.
GT_TEST(BadPebsBuffer_RunsIntoTheNonCanonicalRange, gt::need_records) {
  pebs::set_up(8, pebs::no_threshold);
  use_buffer(0x0000'7FFF'FFFF'FFF0, 8);
  check_dropped_with_index(0x0000'7FFF'FFFF'FFF0);
}

GT_TEST(BadPebsBuffer_MapsNoMemory, gt::need_records) {
  pebs::set_up(8, pebs::no_threshold);
  paging::map(paging::window, 0xD000'0000, paging::writable);
  use_buffer(paging::window, 8);
  check_dropped_with_index(paging::window);
}

// The record starts in the last bytes of RAM.
GT_TEST(BadPebsBuffer_RunsOutOfMemory, gt::need_records) {
  pebs::set_up(8, pebs::no_threshold);
  use_buffer(gt::ram_bytes - 0x40, 8);
  check_dropped_with_index(gt::ram_bytes - 0x40);
}

// Rules F1, F7: bounds.
GT_TEST(BadPebsIndex_BeyondTheMaximum, gt::need_records) {
  pebs::set_up(8, pebs::no_threshold);
  const std::uint64_t index = pebs::area().maximum + pebs::record_bytes();
  pebs::area().index = index;
  check_dropped_with_index(index);
}
GT_TEST(BadPebsIndex_BelowTheBase, gt::need_records) {
  pebs::set_up(8, pebs::no_threshold);
  pebs::area().base = physical_buffer() + 2 * pebs::record_bytes();
  pebs::area().index = physical_buffer();
  check_dropped_with_index(physical_buffer());
}
GT_TEST(BadPebsIndex_BaseBeyondTheMaximum, gt::need_records) {
  pebs::set_up(8, pebs::no_threshold);
  pebs::area().maximum = physical_buffer() - 8;
  check_dropped_with_index(physical_buffer());
}
// Rule F8: index + size passes 2^64.
GT_TEST(BadPebsIndex_WrapsAround, gt::need_records) {
  pebs::set_up(8, pebs::no_threshold);
  pebs::area().base = 0;
  pebs::area().index = ~0x1FULL;
  pebs::area().maximum = ~0ULL;
  check_dropped_with_index(~0x1FULL);
}
// Rule F7: misaligned but in bounds is written where it points.
GT_TEST(BadPebsIndex_MisalignedIsWritten, gt::need_records) {
  pebs::set_up(8, pebs::no_threshold);
  use_buffer(physical_buffer() + 3, 8);
  gt::start_sampling({});
  GT_REQUIRE(gt::sample_until([] { return pebs::records_written() >= 1; }));
  const auto word = [](std::uint64_t offset) {
    return *reinterpret_cast<const volatile std::uint64_t*>(physical_buffer() + offset);
  };
  GT_EQUAL(word(3 + static_cast<unsigned>(pebs::Slot::status) * 8), pmu::gp_bit(0));
  GT_EQUAL(word(0) & 0xFF'FFFF, pebs::poison_word & 0xFF'FFFF);
  GT_EQUAL(pebs::area().index, physical_buffer() + 3 + pebs::records_written() * pebs::record_bytes());
}

}  // namespace
