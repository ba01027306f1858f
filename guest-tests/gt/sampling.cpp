#include "gt/sampling.hpp"

#include "gt/test.hpp"

namespace gt {

alignas(64) constinit std::uint64_t loop_source = 0x5EED'5EED'0000'0001, loop_target = 0;

std::uint64_t sampling_period() { return exact_counts() ? 37 : 5'000'000; }

void run_loop() {
  // Long enough that an estimating source takes nearly all its samples in the loop. An exact source may single-step
  // each instruction: a few more iterations than a period has events, or the code around the loop could be in step with
  // the samples and take them all.
  gt_marked_loop(exact_counts() ? 64 : 5000, &loop_source, &loop_target);
}

void start_sampling(const Sampling& s) {
  pmu::stop();
  run_loop();  // the first access to a page costs a virtual machine more than a period
  pebs::set_reset(s.counter, s.reload != 0 ? s.reload : s.period);
  pmu::program(s.counter, pmu::select(s.event, s.control), pmu::minus(s.period));
  wrmsr(pmu::msr::IA32_PEBS_ENABLE, pmu::gp_bit(s.counter));
  pmu::start(pmu::gp_bit(s.counter));
}

void sample_for_a_while() {
  constexpr std::uint64_t ticks = 1ULL << 22;
  if (exact_counts()) {
    for (unsigned i = 0; i < 8; ++i) run_loop();
  } else {
    pmu::wait_until(
        [] {
          run_loop();
          return false;
        },
        ticks);
  }
  pmu::stop();
}

}  // namespace gt
