// Tests that are wrong in known ways: the runner must say so. See runner/tests/run_test.cpp.
#include "gt/asm.hpp"
#include "gt/interrupts.hpp"
#include "gt/test.hpp"

namespace {

GT_TEST(Good_Passes) { GT_EQUAL(1U, 1U); }
GT_TEST(Good_Logs) {
  gt::log("a line for the reader");
  GT_CHECK(true);
}
GT_TEST(Good_Skips) { gt::skip("nothing to judge by"); }

GT_TEST(Broken_MakesNoCheck) {}
GT_TEST(Broken_ComparesUnequal) {
  GT_EQUAL(0x12U, 0x13U);
  GT_EQUAL(2U, 2U);
}
GT_TEST(Broken_RequiresAndStops) {
  GT_REQUIRE(1 > 2);
  GT_CHECK(false);  // not reached
}
GT_TEST(Broken_Faults) { *reinterpret_cast<volatile std::uint64_t*>(0x4000'0000'0000) = 1; }
GT_TEST(Broken_TripleFaults) {
  struct [[gnu::packed]] {
    std::uint16_t limit;
    std::uint64_t base;
  } none{};
  asm volatile("lidt %0\n ud2" ::"m"(none));
}
GT_TEST(Broken_NeverEnds) {
  for (;;) asm volatile("pause");
}
GT_TEST(Broken_SleepsForever) {
  gt::disable_interrupts();
  for (;;) gt::halt();
}
GT_TEST(Broken_SendsAnAddressOutsideRam) {
  GT_CHECK(true);
  gt::out32(gt::command_port, 0xF000'0000);
  gt::out32(gt::command_port, 0xF000'0000);
}
GT_TEST(Broken_SendsAnUnknownCommand) {
  static constinit gt::Message message{.command = static_cast<gt::Command>(77)};
  gt::out32(gt::command_port, static_cast<std::uint32_t>(reinterpret_cast<std::uint64_t>(&message)));
}
GT_TEST(Broken_ReportsWithoutEnd) {
  for (;;) GT_CHECK(false);
}
GT_TEST(Broken_SendsTextWithoutAnEnd) {
  static constinit gt::Message message{};
  message.command = gt::Command::fail;
  for (char& c : message.text) c = '\x1B';
  for (char& c : message.file) c = 'f';
  gt::out32(gt::command_port, static_cast<std::uint32_t>(reinterpret_cast<std::uint64_t>(&message)));
  GT_CHECK(true);
}
GT_TEST(Needs_ExactCounts, gt::need_exact_counts) { GT_CHECK(true); }

}  // namespace
