// What counts, to the last event. SDM 3B 18.2.1.1, 18.2.2, 18.2.1.2; rules C1, C2, C5, O1, O2, O8. The WRMSR that
// starts counting is not counted, the one that stops it is.
#include <utility>

#include "gt/asm.hpp"
#include "gt/cpu.hpp"
#include "gt/interrupts.hpp"
#include "gt/pmu.hpp"
#include "gt/streams.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

namespace pmu = gt::pmu;
using gt::MixedStream;
using gt::VectorStream;

constinit std::array<std::uint64_t, 8> data{};
std::uint64_t data_address() { return reinterpret_cast<std::uint64_t>(data.data()); }

using FourEvents = std::array<pmu::Event, 4>;
using FourCounts = std::array<std::uint64_t, 4>;

/// Runs a stream with four events on PMC0 to PMC3.
FourCounts count(void (*stream)(std::uint64_t, std::uint64_t), const FourEvents& events,
                 std::uint64_t control = pmu::os) {
  pmu::stop();
  for (unsigned i = 0; i < 4; ++i) pmu::program(i, pmu::select(events[i], control), 0);
  stream(0xF, data_address());
  return {pmu::counter(0), pmu::counter(1), pmu::counter(2), pmu::counter(3)};
}

GT_TEST(Counting_IsExactInAStreamOfLoads, gt::need_exact_counts) {
  const FourCounts n =
      count(gt::gt_load_stream, {pmu::instructions, gt::cpu::facts().loads, gt::cpu::facts().stores, pmu::branches});
  GT_EQUAL(n[0], gt::load_stream_instructions);
  GT_EQUAL(n[1], gt::load_stream_length);
  GT_EQUAL(n[2], 0U);
  GT_EQUAL(n[3], 0U);
}

GT_TEST(Counting_IsExactInAMixedStream, gt::need_exact_counts) {
  const FourCounts n =
      count(gt::gt_mixed_stream, {pmu::instructions, gt::cpu::facts().loads, gt::cpu::facts().stores, pmu::branches});
  GT_EQUAL(n[0], MixedStream::instructions);
  GT_EQUAL(n[1], MixedStream::loads);
  GT_EQUAL(n[2], MixedStream::stores);
  GT_EQUAL(n[3], MixedStream::branches);
}

GT_TEST(Counting_TellsBranchesApart, gt::need_exact_counts) {
  const gt::cpu::Facts& cpu = gt::cpu::facts();
  const FourCounts n =
      count(gt::gt_mixed_stream, {cpu.taken_branches, pmu::conditional_branches, pmu::near_calls, cpu.near_returns});
  if (gt::cpu::exists(cpu.taken_branches)) GT_EQUAL(n[0], MixedStream::taken);
  GT_EQUAL(n[1], MixedStream::conditional);
  GT_EQUAL(n[2], MixedStream::calls);
  if (gt::cpu::exists(cpu.near_returns)) GT_EQUAL(n[3], MixedStream::returns);
}

GT_TEST(Counting_IsExactInX87AndVectorCode, gt::need_exact_counts) {
  gt::write_cr4(gt::read_cr4() | x86::cr4::OSFXSR::mask);
  data = {3ULL | 4ULL << 32};
  const FourCounts n =
      count(gt::gt_vector_stream, {pmu::instructions, gt::cpu::facts().loads, gt::cpu::facts().stores, pmu::branches});
  GT_EQUAL(n[0], VectorStream::instructions);
  GT_EQUAL(n[1], VectorStream::loads);
  GT_EQUAL(n[2], VectorStream::stores);
  GT_EQUAL(n[3], 0U);
  constexpr std::uint64_t square = 14U * 14U, mxcsr = 0x1F80;
  GT_EQUAL(data[1], 7U);
  GT_EQUAL(data[2], square << 32 | square);
  GT_EQUAL(data[3], square << 32 | square);
  GT_EQUAL(data[4], mxcsr);
}

}  // namespace

// Starts PMC0, and stops it at gt_system_entry, where its SYSCALL leads. Returns RCX as SYSCALL set it. SDM 2B SYSCALL.
asm(R"(
  .pushsection .text
gt_system_stream:
  mov $0x38F, %ecx
  mov $1, %eax
  xor %edx, %edx
  wrmsr
  verw %di
  swapgs
  syscall
gt_system_back:
  ud2
gt_system_entry:
  mov %rcx, %r8
  mov $0x38F, %ecx
  xor %eax, %eax
  xor %edx, %edx
  wrmsr
  mov %r8, %rax
  ret
  .popsection
)");
extern "C" {
std::uint64_t gt_system_stream(std::uint64_t selector);
extern const char gt_system_back[];
extern const char gt_system_entry[];
}

namespace {

// Instructions that a source may leave to the processor below it: each counts as one, and has its effect.
GT_TEST(Counting_IsExactInSystemInstructions, gt::need_exact_counts) {
  constexpr gt::MsrIndex efer{0xC000'0080}, star{0xC000'0081}, lstar{0xC000'0082}, fmask{0xC000'0084};
  constexpr gt::MsrIndex gs_base{0xC000'0101}, kernel_gs_base{0xC000'0102};
  constexpr std::uint64_t kernel_code = 0x08, kernel_data = 0x10;
  gt::wrmsr(efer, gt::rdmsr(efer) | 1);
  gt::wrmsr(star, kernel_code << 32);
  gt::wrmsr(lstar, reinterpret_cast<std::uint64_t>(gt_system_entry));
  gt::wrmsr(fmask, 0);
  gt::wrmsr(gs_base, 0x1111'0000);
  gt::wrmsr(kernel_gs_base, 0x2222'0000);
  pmu::stop();
  pmu::program(0, pmu::select(pmu::instructions, pmu::os), 0);
  const std::uint64_t back = gt_system_stream(kernel_data);
  GT_EQUAL(pmu::counter(0), 8U);  // VERW, SWAPGS, SYSCALL, MOV, MOV, XOR, XOR, WRMSR
  GT_EQUAL(back, reinterpret_cast<std::uint64_t>(gt_system_back));
  GT_EQUAL(gt::rdmsr(gs_base), 0x2222'0000U);
  GT_EQUAL(gt::rdmsr(kernel_gs_base), 0x1111'0000U);
}

GT_TEST(Counting_IsTheSameEachTime, gt::need_exact_counts) {
  for (unsigned round = 0; round < 3; ++round) {
    const FourCounts n =
        count(gt::gt_mixed_stream, {pmu::instructions, pmu::branches, gt::cpu::facts().loads, gt::cpu::facts().stores});
    GT_EQUAL(n[0], MixedStream::instructions);
    GT_EQUAL(n[1], MixedStream::branches);
  }
}

// Fixed counter 0 counts what INST_RETIRED.ANY_P counts. SDM 3B table 18-2.
GT_TEST(Counting_FixedCounterAgrees, gt::need_exact_counts) {
  pmu::stop();
  gt::wrmsr(pmu::msr::IA32_FIXED_CTR0, 0);
  gt::wrmsr(pmu::msr::IA32_FIXED_CTR_CTRL, pmu::fixed_control(0, pmu::fixed_os));
  gt::gt_mixed_stream(pmu::fixed_bit(0), data_address());
  GT_EQUAL(pmu::fixed(0), MixedStream::instructions);
}

// Rules C1, C2: the privilege level must match.
GT_TEST(Counting_UserOnlyCountersIgnoreCpl0, gt::need_exact_counts) {
  const FourCounts n =
      count(gt::gt_mixed_stream, {pmu::instructions, gt::cpu::facts().loads, gt::cpu::facts().stores, pmu::branches},
            pmu::usr);
  for (const std::uint64_t value : n) GT_EQUAL(value, 0U);
}

/// Instructions at CPL 3 while `function` runs there.
std::uint64_t user_instructions(void (*function)(void*)) {
  pmu::stop();
  pmu::program(0, pmu::select(pmu::instructions, pmu::usr), 0);
  pmu::start(pmu::gp_bit(0));
  gt::run_at_cpl3(function, nullptr);
  pmu::stop();
  return pmu::counter(0);
}

GT_TEST(Counting_UserOnlyCountersSeeCpl3Alone, gt::need_exact_counts) {
  const std::uint64_t shorter = user_instructions([](void*) { asm volatile(".rept 5\n nop\n .endr"); });
  const std::uint64_t longer = user_instructions([](void*) { asm volatile(".rept 25\n nop\n .endr"); });
  GT_CHECK(shorter >= 5 && shorter < 15);
  GT_EQUAL(longer - shorter, 20U);
}

// Rule C5: a repeated string instruction retires once.
GT_TEST(Counting_RepeatedStringIsOneInstruction, gt::need_exact_counts) {
  pmu::stop();
  pmu::program(0, pmu::select(pmu::instructions, pmu::os), 0);
  void* to = data.data();
  std::uint64_t left = sizeof data;
  // Counted: MOV, XOR, REP STOSB, XOR, XOR, MOV, WRMSR.
  asm volatile(
      "wrmsr\n mov %[n], %%rcx\n xor %%eax, %%eax\n rep stosb\n"
      "xor %%eax, %%eax\n xor %%edx, %%edx\n mov $0x38F, %%ecx\n wrmsr"
      : "+D"(to), [n] "+r"(left)
      : "a"(1), "d"(0), "c"(0x38F)
      : "memory");
  GT_EQUAL(pmu::counter(0), 7U);
}

GT_TEST(Counting_NeedsBothEnables, gt::need_exact_counts) {
  pmu::stop();
  pmu::program(0, pmu::select(pmu::instructions, pmu::os) & ~pmu::reg::perfevtsel::EN::mask, 0);
  pmu::program(1, pmu::select(pmu::instructions, pmu::os), 0);
  pmu::program(2, pmu::select(pmu::instructions, pmu::os), 0);
  gt::gt_load_stream(pmu::gp_bit(0) | pmu::gp_bit(1), data_address());
  GT_EQUAL(pmu::counter(0), 0U);
  GT_EQUAL(pmu::counter(1), gt::load_stream_instructions);
  GT_EQUAL(pmu::counter(2), 0U);
}

// A fault that the VMM injects, for an MSR of the PMU, and one that the processor raises itself: the handler's
// instructions count alike.
GT_TEST(Counting_SeesTheHandlersOfAllFaults, gt::need_exact_counts) {
  constexpr std::array faulting{std::pair{pmu::msr::IA32_PERF_GLOBAL_CTRL, ~std::uint64_t{0}},
                                std::pair{vpmu::MsrIndex{0xC000'0080}, ~std::uint64_t{0}}};
  std::array<std::uint64_t, 2> counted{};
  for (unsigned i = 0; i < faulting.size(); ++i) {
    pmu::stop();
    pmu::program(0, pmu::select(pmu::instructions, pmu::os), 0);
    pmu::start(pmu::gp_bit(0));
    const gt::Outcome outcome = gt::try_wrmsr(faulting[i].first, faulting[i].second);
    pmu::stop();
    GT_EQUAL(outcome.vector, 13U);
    counted[i] = pmu::counter(0);
  }
  GT_CHECK(counted[0] > 40);
  GT_EQUAL(counted[0], counted[1]);
}

// Rules O1, O2: the step from all ones to 0, and the status bit with it.
GT_TEST(Counting_OverflowIsTheStepToZero, gt::need_exact_counts) {
  pmu::stop();
  pmu::program(0, pmu::select(gt::cpu::facts().loads, pmu::os), pmu::minus(gt::load_stream_length + 1));
  pmu::program(1, pmu::select(gt::cpu::facts().loads, pmu::os), pmu::minus(gt::load_stream_length));
  pmu::program(2, pmu::select(gt::cpu::facts().loads, pmu::os), pmu::minus(gt::load_stream_length - 5));
  gt::gt_load_stream(0x7, data_address());
  GT_EQUAL(pmu::counter(0), pmu::counter_mask);
  GT_EQUAL(pmu::counter(1), 0U);
  GT_EQUAL(pmu::counter(2), 5U);
  GT_EQUAL(pmu::global_status(), pmu::gp_bit(1) | pmu::gp_bit(2));
}

// Rule O8: a write from a high to a low value is no overflow.
GT_TEST(Counting_WritesDoNotOverflow) {
  pmu::stop();
  pmu::program(0, pmu::select(pmu::instructions, pmu::os | pmu::interrupt), pmu::counter_mask);
  pmu::write_counter(0, 0);
  GT_EQUAL(pmu::global_status(), 0U);
  GT_EQUAL(pmu::counter(0), 0U);
}

GT_TEST(Counting_MovesAndStops, gt::need_counts) {
  pmu::stop();
  pmu::program(0, pmu::select(pmu::instructions, pmu::os), 0);
  pmu::start(pmu::gp_bit(0));
  GT_CHECK(pmu::wait_until([] { return pmu::counter(0) > 100; }));
  pmu::stop();
  const std::uint64_t stopped = pmu::counter(0);
  pmu::wait_until([] { return false; }, 1ULL << 22);
  GT_EQUAL(pmu::counter(0), stopped);
}

}  // namespace
