// The test kernel's own abilities, without any PMU: if one of these fails, no other result means much.
#include "gt/apic.hpp"
#include "gt/asm.hpp"
#include "gt/interrupts.hpp"
#include "gt/paging.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

alignas(4096) constinit std::array<std::uint64_t, 512> some_page{};

GT_TEST(Framework_CatchesFaultsOfGuardedInstructions) {
  GT_EQUAL(gt::try_ud2().vector, x86::vector::UD);
  const gt::Outcome load = gt::try_load(0x4000'0000'0000);
  GT_EQUAL(load.vector, x86::vector::PF);
  GT_EQUAL(load.cr2, 0x4000'0000'0000U);
  GT_EQUAL(gt::try_store(0x8000'0000'0000'0000, 1).vector, x86::vector::GP);
  GT_CHECK(gt::try_load(reinterpret_cast<std::uint64_t>(&some_page)).ok());
}

GT_TEST(Framework_ShapesPagesOfTheWindow) {
  const auto physical = reinterpret_cast<std::uint64_t>(some_page.data());
  GT_EQUAL(gt::try_load(gt::paging::window).vector, x86::vector::PF);
  gt::paging::map(gt::paging::window, physical, 0);
  GT_CHECK(gt::try_load(gt::paging::window).ok());
  const gt::Outcome store = gt::try_store(gt::paging::window, 1);
  GT_EQUAL(store.vector, x86::vector::PF);
  GT_EQUAL(store.error_code, 3U);  // protection violation, write
  gt::paging::map(gt::paging::window, physical, gt::paging::writable);
  GT_CHECK(gt::try_store(gt::paging::window, 0x1234).ok());
  GT_EQUAL(some_page[0], 0x1234U);
  GT_EQUAL(gt::paging::entry(gt::paging::window) & gt::paging::dirty, gt::paging::dirty);
}

GT_TEST(Framework_RunsCodeAtCpl3) {
  std::uint64_t cs = 0;
  gt::run_at_cpl3([](void* out) { asm volatile("mov %%cs, %0" : "=r"(*static_cast<std::uint64_t*>(out))); }, &cs);
  GT_EQUAL(cs & 3, 3U);
  std::uint64_t vector = 0;
  gt::run_at_cpl3([](void* out) { *static_cast<std::uint64_t*>(out) = gt::try_rdmsr(vpmu::MsrIndex{0x10}).vector; },
                  &vector);
  GT_EQUAL(vector, x86::vector::GP);  // RDMSR needs CPL 0
}

GT_TEST(Framework_ReachesTheLocalApic) {
  gt::apic::write(gt::apic::lvtpc_offset, 0x10042);
  GT_EQUAL(gt::apic::read(gt::apic::lvtpc_offset), 0x10042U);
}

}  // namespace
