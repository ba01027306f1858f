#pragma once
#include <cstdint>

#include "gt/cpu.hpp"
#include "gt/pebs.hpp"
#include "gt/pmu.hpp"
#include "gt/streams.hpp"

/// One PEBS session on the marked loop, as most PEBS tests need it.
namespace gt {

/// A period of a few rounds of the marked loop for an exact source, and much longer than an exit to the VMM for an
/// estimating one.
std::uint64_t sampling_period();

struct Sampling {
  pmu::Event event{cpu::facts().precise_cycles};
  unsigned counter{0};
  std::uint64_t control{pmu::os};
  std::uint64_t period{sampling_period()};  ///< To the first overflow, and between overflows.
  std::uint64_t reload{0};                  ///< If not 0: the period after the first overflow.
};

/// The operands of the marked loop's load and store.
extern std::uint64_t loop_source, loop_target;

/// Programs the counter with PEBS and starts it; the DS area must be set up.
void start_sampling(const Sampling& sampling);
/// Runs the marked loop for a short time.
void run_loop();
/// Runs the marked loop until `done()`, and stops counting. False if the patience ends before.
template <class Done>
bool sample_until(Done done) {
  const bool met = pmu::wait_until([&done] {
    run_loop();
    return done();
  });
  pmu::stop();
  return met;
}

/// Runs the marked loop for so long that a counter with this period overflows many times.
void sample_for_a_while();

}  // namespace gt
