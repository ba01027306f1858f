// The guest's own debugging works while the PMU is in use: a virtual PMU may borrow debug registers and #GP, but the
// guest must not notice. SDM 3B 17.2 (debug registers), 17.3.1 (#DB).
#include <array>

#include "gt/asm.hpp"
#include "gt/interrupts.hpp"
#include "gt/pmu.hpp"
#include "gt/streams.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

namespace pmu = gt::pmu;

struct Seen {
  volatile std::uint32_t count;
  volatile std::uint64_t dr6, rip;
};
constinit Seen debug_exceptions{};
constinit volatile std::uint64_t watched = 0;

/// Starts using the PMU, reads a counter once, and counts #DB from now on.
void set_up() {
  pmu::stop();
  pmu::program(0, pmu::select(pmu::instructions, pmu::os), 77);
  GT_EQUAL(gt::try_rdpmc(0).value, 77U);
  gt::on_vector(x86::vector::DB, [](gt::InterruptFrame& frame) {
    debug_exceptions.count = debug_exceptions.count + 1;
    debug_exceptions.dr6 = gt::read_dr6();
    debug_exceptions.rip = frame.rip;
    gt::write_dr6(0);
    frame.rflags = (frame.rflags | x86::rflags::RF::mask) & ~x86::rflags::TF::mask;
  });
  gt::write_dr6(0);
}

/// A VMM may notice a written debug register only at the next exit, since KVM does not report the write. This makes an
/// exit.
void let_the_host_look() { gt::rdmsr(pmu::msr::IA32_PERF_GLOBAL_CTRL); }

/// Runs to a breakpoint of its own, with a PMU register access between setting it and running; returns its address.
std::uint64_t run_to_a_label() {
  std::uint64_t at = 0;
  asm volatile("lea 1f(%%rip), %0\n mov %0, %%dr0\n mov %1, %%dr7\n rdmsr\n 1: nop\n"
               : "=&r"(at)
               : "r"(x86::dr7::fixed | x86::dr7::L0::mask), "c"(pmu::msr::IA32_PERF_GLOBAL_CTRL.value())
               : "rax", "rdx", "memory");
  gt::write_dr7(x86::dr7::fixed);
  return at;
}

GT_TEST(GuestDebugging_ExecutionBreakpointFires) {
  set_up();
  for (std::uint32_t n = 1; n <= 3; ++n) {
    const std::uint64_t at = run_to_a_label();
    GT_EQUAL(debug_exceptions.count, n);
    GT_EQUAL(debug_exceptions.rip, at);
    GT_EQUAL(debug_exceptions.dr6 & (x86::dr6::B::mask | x86::dr6::BS::mask), x86::dr6::B::make(1));
    GT_EQUAL(gt::try_rdpmc(0).value, 77U);
  }
}

// As on hardware, a breakpoint is in force from the instruction after MOV DR on, without an exit in between.
GT_TEST(GuestDebugging_BreakpointIsInForceAtOnce) {
  set_up();
  asm volatile(
      "lea 1f(%%rip), %%rax\n mov %%rax, %%dr0\n mov %0, %%dr7\n 1: nop\n" ::"r"(x86::dr7::fixed | x86::dr7::L0::mask)
      : "rax", "memory");
  GT_EQUAL(debug_exceptions.count, 1U);
  gt::write_dr7(x86::dr7::fixed);
}

GT_TEST(GuestDebugging_DataBreakpointFires) {
  set_up();
  gt::write_dr0(reinterpret_cast<std::uint64_t>(&watched));
  gt::write_dr7(x86::dr7::fixed | x86::dr7::L0::mask | x86::dr7::RW0::make(1) | x86::dr7::LEN0::make(2));
  let_the_host_look();
  for (std::uint32_t n = 1; n <= 3; ++n) {
    watched = n;
    GT_EQUAL(debug_exceptions.count, n);
    GT_EQUAL(debug_exceptions.dr6 & (x86::dr6::B::mask | x86::dr6::BS::mask), x86::dr6::B::make(1));
    GT_EQUAL(gt::try_rdpmc(0).value, 77U);
    GT_EQUAL(debug_exceptions.count, n);
  }
  gt::write_dr7(x86::dr7::fixed);
}

GT_TEST(GuestDebugging_SingleStepFires) {
  set_up();
  std::uint64_t after = 0;
  asm volatile("pushfq\n orq $0x100, (%%rsp)\n popfq\n nop\n 1: lea 1b(%%rip), %0\n" : "=r"(after)::"memory", "cc");
  GT_EQUAL(debug_exceptions.count, 1U);
  GT_EQUAL(debug_exceptions.rip, after);
  GT_EQUAL(debug_exceptions.dr6 & (x86::dr6::B::mask | x86::dr6::BS::mask), x86::dr6::BS::mask);
}

GT_TEST(GuestDebugging_RegistersReadBackWhatWasWritten) {
  set_up();
  gt::write_dr0(0x1234'5678);
  gt::write_dr7(x86::dr7::fixed | x86::dr7::L0::mask);
  GT_EQUAL(gt::try_rdpmc(0).value, 77U);
  GT_EQUAL(gt::read_dr0(), 0x1234'5678U);
  GT_EQUAL(gt::read_dr7(), x86::dr7::fixed | x86::dr7::L0::mask);
  gt::write_dr7(x86::dr7::fixed);
  GT_EQUAL(gt::read_dr7(), x86::dr7::fixed);
}

// RDPMC must still work when the guest uses all four breakpoints.
GT_TEST(GuestDebugging_RdpmcWorksWithAllBreakpointsInUse) {
  set_up();
  constexpr std::uint64_t all_local = 0x55;
  asm volatile("mov %0, %%dr0\n mov %0, %%dr1\n mov %0, %%dr2\n mov %0, %%dr3\n" ::"r"(0x3000'0000ULL));
  gt::write_dr7(x86::dr7::fixed | all_local);
  pmu::program(0, pmu::select(pmu::instructions, pmu::os), 78);
  GT_EQUAL(gt::try_rdpmc(0).value, 78U);
  GT_EQUAL(gt::read_dr7(), x86::dr7::fixed | all_local);
  GT_EQUAL(debug_exceptions.count, 0U);
  gt::write_dr7(x86::dr7::fixed);
}

// #GP of other causes reaches the guest's handler, with its error code, and RDPMC still works.
GT_TEST(GuestDebugging_GeneralProtectionIsDelivered) {
  set_up();
  for (unsigned round = 0; round < 3; ++round) {
    GT_EQUAL(gt::try_load(0x8000'0000'0000'0000UL).vector, x86::vector::GP);
    const gt::Outcome msr = gt::try_wrmsr(pmu::msr::IA32_PERF_GLOBAL_STATUS, 0);
    GT_EQUAL(msr.vector, x86::vector::GP);
    GT_EQUAL(msr.error_code, 0U);
    gt::arm_guard();
    asm volatile("1: mov %w0, %%es\n2:\n" GT_GUARD("1b", "2b")::"r"(0x60) : "memory");
    GT_EQUAL(gt::guard_outcome(0).vector, x86::vector::GP);
    GT_EQUAL(gt::guard_outcome(0).error_code, 0x60U);  // the selector, beyond the GDT's limit
    GT_EQUAL(gt::try_rdpmc(0).value, 77U);
  }
}

/// DR7 for breakpoint `i`, with its R/W and LEN fields.
constexpr std::uint64_t dr7_for(unsigned i, std::uint64_t access, std::uint64_t length) {
  return x86::dr7::fixed | 1ULL << (2 * i) | access << (16 + 4 * i) | length << (18 + 4 * i);
}

void write_address(unsigned i, std::uint64_t at) {
  if (i == 0) asm volatile("mov %0, %%dr0" ::"r"(at));
  if (i == 1) asm volatile("mov %0, %%dr1" ::"r"(at));
  if (i == 2) asm volatile("mov %0, %%dr2" ::"r"(at));
  if (i == 3) asm volatile("mov %0, %%dr3" ::"r"(at));
}

// SDM 3B 17.2.4: writes, and loads and stores; of 1, 2, 4 and 8 bytes; each of the registers. All of it while a counter
// counts.
GT_TEST(GuestDebugging_EachRegisterWatchesWhileCounting) {
  set_up();
  pmu::start(pmu::gp_bit(0));
  alignas(8) static constinit volatile std::uint64_t word = 0;
  auto* const byte = reinterpret_cast<volatile std::uint8_t*>(&word);
  constexpr std::uint64_t on_write = 1, on_access = 3;
  struct Row {
    unsigned offset;
    std::uint64_t length;  // the LEN field
    unsigned inside, outside;
  };
  constexpr std::array<Row, 4> rows{Row{5, 0, 5, 4}, Row{2, 1, 3, 4}, Row{4, 3, 7, 3}, Row{0, 2, 6, 8}};
  alignas(8) static constinit volatile std::uint8_t beyond = 0;
  for (unsigned i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    for (const std::uint64_t access : {on_write, on_access}) {
      write_address(i, reinterpret_cast<std::uint64_t>(byte) + row.offset);
      gt::write_dr7(dr7_for(i, access, row.length));
      let_the_host_look();
      debug_exceptions.count = 0;
      for (std::uint32_t n = 1; n <= 5; ++n) {
        (row.outside < 8 ? byte + row.outside : &beyond)[0] = 1;
        GT_EQUAL(debug_exceptions.count, access == on_access ? 2 * (n - 1) : n - 1);
        byte[row.inside] = static_cast<std::uint8_t>(n);
        GT_EQUAL(debug_exceptions.dr6 & (x86::dr6::B::mask | x86::dr6::BS::mask), std::uint64_t{1} << i);
        (void)byte[row.inside];
        GT_EQUAL(debug_exceptions.count, access == on_access ? 2 * n : n);
      }
      gt::write_dr7(x86::dr7::fixed);
    }
  }
  if (gt::exact_counts()) GT_CHECK(pmu::counter(0) > 77 + 500);
  pmu::stop();
}

// Code that hits no breakpoint is counted exactly, although one is set.
GT_TEST(GuestDebugging_CodeBesideABreakpointIsCounted, gt::need_exact_counts) {
  set_up();
  gt::write_dr0(reinterpret_cast<std::uint64_t>(&watched));
  gt::write_dr7(dr7_for(0, 1, 2));
  constexpr std::uint64_t rounds = 300;
  pmu::write_counter(0, 0);
  gt::gt_counted_loop(pmu::gp_bit(0), rounds);
  const std::uint64_t with_breakpoint = pmu::counter(0);
  gt::write_dr7(x86::dr7::fixed);
  pmu::write_counter(0, 0);
  gt::gt_counted_loop(pmu::gp_bit(0), rounds);
  GT_CHECK(with_breakpoint > rounds * gt::counted_loop_length);
  GT_EQUAL(with_breakpoint, pmu::counter(0));
  GT_EQUAL(debug_exceptions.count, 0U);
}

// A guest's breakpoint on its own #GP handler is delivered to the guest.
GT_TEST(GuestDebugging_BreakpointOnTheGpHandlerFires) {
  set_up();
  struct [[gnu::packed]] {
    std::uint16_t limit;
    std::uint64_t base;
  } idtr{};
  asm volatile("sidt %0" : "=m"(idtr));
  const auto* const gate = reinterpret_cast<const std::uint64_t*>(idtr.base + x86::vector::GP * 16);
  const std::uint64_t handler = (gate[0] & 0xFFFF) | (gate[0] >> 48 << 16) | (gate[1] << 32);
  gt::write_dr0(handler);
  gt::write_dr7(x86::dr7::fixed | x86::dr7::L0::mask);
  let_the_host_look();
  GT_EQUAL(gt::try_load(0x8000'0000'0000'0000UL).vector, x86::vector::GP);
  gt::write_dr7(x86::dr7::fixed);
  GT_EQUAL(debug_exceptions.count, 1U);
  GT_EQUAL(debug_exceptions.rip, handler);
}

}  // namespace
