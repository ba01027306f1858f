#include "gt/second_cpu.hpp"

#include <cstddef>

#include "gt/apic.hpp"
#include "gt/asm.hpp"
#include "gt/interrupts.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"

extern "C" {
extern const unsigned char gt_startup_begin[], gt_startup_end[], gt_startup_cr3[];
[[noreturn]] void gt_second_main();
}

namespace gt {
namespace {

/// Free RAM below 1 MiB; the SIPI's vector is its page number. second_cpu.S has the same address.
constexpr std::uint64_t startup_page = 0x50000;
using Function = void (*)();
constinit volatile Function started_with = nullptr;
constinit volatile bool has_come = false;

}  // namespace

void start_second_cpu(void (*function)()) {
  started_with = function;
  auto* const page = reinterpret_cast<volatile unsigned char*>(startup_page);
  for (std::ptrdiff_t i = 0; i < gt_startup_end - gt_startup_begin; ++i) page[i] = gt_startup_begin[i];
  *reinterpret_cast<volatile std::uint32_t*>(startup_page +
                                             static_cast<std::uint64_t>(gt_startup_cr3 - gt_startup_begin)) =
      static_cast<std::uint32_t>(read_cr3());
  apic::send(second_cpu_id, apic::command::init);
  apic::send(second_cpu_id, apic::command::startup | (startup_page >> 12));
  if (!pmu::wait_until([] { return has_come; })) abort_test(__FILE_NAME__, __LINE__, "the second CPU does not start");
}

}  // namespace gt

void gt_second_main() {
  gt::share_interrupts();
  gt::apic::enable();
  gt::has_come = true;
  gt::started_with();
  for (;;) {
    gt::disable_interrupts();
    gt::halt();
  }
}
