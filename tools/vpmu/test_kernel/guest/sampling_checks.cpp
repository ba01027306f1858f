#include <array>

#include "test_kernel/guest/checks.hpp"
#include "test_kernel/guest/known.hpp"
#include "test_kernel/guest/recorded.hpp"
#include "test_kernel/guest/system_files.hpp"

namespace vmm::tool::checker {
namespace {

constexpr unsigned frames_rounds = 10'000;
constexpr std::uint64_t precise_distribution = 0x01C0;  // INST_RETIRED.PREC_DIST
// What `perf record` requests. If samples need the time, kernels before PEBS format 3 take one record at a time, and
// only then can they find in the LBR the instruction before the record's.
constexpr std::uint64_t single_sample = PERF_SAMPLE_IP | PERF_SAMPLE_TIME;

void run_loop(int event) {
  std::array<std::uint64_t, 2> memory{};
  vpmu_known_loop(event, usual_loop.rounds, memory.data());
}

void check_period(Report& report) {
  unsigned long interrupts = 0;
  const Recorded recorded =
      record(sampled(hardware_event(PERF_COUNT_HW_INSTRUCTIONS, Counts::user), loop_period, 0, PERF_SAMPLE_IP),
             [&interrupts](int event) {
               const unsigned long before = counter_interrupts();
               run_loop(event);
               interrupts = counter_interrupts() - before;
             });
  const std::uint64_t expected = usual_loop.instructions() / loop_period;
  check_samples(report, "sample.period", recorded, expected, "each in the loop", [](const Sample& sample, std::size_t) {
    return KnownLoop::has(sample.ip) ? std::string{} : "at " + hexadecimal(sample.ip);
  });
  report.equal("sample.interrupts", expected, interrupts);
}

/// Where the sample is instead of at the right instruction of the loop; empty if it is right.
std::string compare(const Sample& sample, std::uint64_t number) {
  const std::uint64_t right = usual_loop.address(number);
  return sample.ip == right ? std::string{} : "at " + hexadecimal(sample.ip) + ", not " + hexadecimal(right);
}

/// If the processor lacks this precise_ip, checks that the kernel refused it, and returns true.
bool check_refused(const Processor& processor, unsigned precise, std::string_view name, const Recorded& recorded,
                   Report& report) {
  if (precise <= processor.precise) return false;
  const bool refused = says_unsupported(recorded.refused);
  report.check(name, refused, "refused", refused ? "refused" : "not refused " + recorded.failure);
  return true;
}

/// SDM 3B 18.8.1.1: the record is of the first instruction after the overflow. With precise_ip 1 the sample has the
/// address after that instruction, with 2 its own address.
void check_precise(const Processor& processor, unsigned precise, std::string_view name, Report& report) {
  const Recorded recorded = record(
      sampled(hardware_event(PERF_COUNT_HW_INSTRUCTIONS, Counts::user), loop_period, precise, single_sample), run_loop);
  if (check_refused(processor, precise, name, recorded, report)) return;
  const std::uint64_t behind = precise == 1 ? 1 : 0;
  check_samples(report, name, recorded, usual_loop.instructions() / (loop_period + 1),
                precise == 1 ? "each after its instruction" : "each at its instruction",
                [behind](const Sample& sample, std::size_t number) {
                  return compare(sample, loop_period + number * (loop_period + 1) + behind);
                });
}

/// SDM 3B 18.9.4.4: with precise distribution the record is of the very instruction that overflows the counter.
void check_distribution(const Processor& processor, Report& report) {
  const Recorded recorded =
      record(sampled(raw_event(precise_distribution, Counts::user), loop_period, 3, single_sample), run_loop);
  if (check_refused(processor, 3, "precise.3", recorded, report)) return;
  check_samples(
      report, "precise.3", recorded, usual_loop.instructions() / loop_period, "each at its instruction",
      [](const Sample& sample, std::size_t number) { return compare(sample, (number + 1) * loop_period - 1); });
}

/// Samples that need nothing but the record fill the buffer without an interrupt for each: here without any.
void check_batch(const Processor& processor, Report& report) {
  unsigned long interrupts = 0;
  const Recorded recorded =
      record(sampled(hardware_event(PERF_COUNT_HW_INSTRUCTIONS, Counts::user), loop_period, 1, PERF_SAMPLE_IP),
             [&interrupts](int event) {
               const unsigned long before = counter_interrupts();
               run_loop(event);
               interrupts = counter_interrupts() - before;
             });
  if (check_refused(processor, 1, "precise.batch", recorded, report)) return;
  check_samples(report, "precise.batch", recorded, usual_loop.instructions() / (loop_period + 1),
                "each after its instruction, without an interrupt",
                [interrupts](const Sample& sample, std::size_t number) {
                  if (interrupts > 0) return decimal(interrupts) + " interrupts";
                  return compare(sample, loop_period + number * (loop_period + 1) + 1);
                });
}

/// The callers of each sample, by frame pointers, from where the interrupt arrived.
void check_callers(Report& report) {
  const Recorded recorded = record(sampled(hardware_event(PERF_COUNT_HW_INSTRUCTIONS, Counts::user), loop_period, 0,
                                           PERF_SAMPLE_IP | PERF_SAMPLE_CALLCHAIN),
                                   [](int event) { vpmu_known_frames(event, frames_rounds); });
  // A call and two instructions that make a frame, two per iteration, two that end the frame, and four after that.
  constexpr std::size_t expected = (3 + 2 * std::size_t{frames_rounds} + 2 + 4) / loop_period;
  check_samples(report, "sample.callers", recorded, expected, "with its caller", [](const Sample& sample, std::size_t) {
    if (sample.callers.size() < 3) return decimal(sample.callers.size()) + " entries of a call chain";
    if (sample.callers[0] != PERF_CONTEXT_USER || sample.callers[1] != sample.ip)
      return "a call chain that begins with " + hexadecimal(sample.callers[0]) + ", " + hexadecimal(sample.callers[1]);
    const std::uint64_t right = address_of(vpmu_known_frame_return);
    if (sample.callers[2] == right) return std::string{};
    return "a caller at " + hexadecimal(sample.callers[2]) + ", not " + hexadecimal(right);
  });
}

}  // namespace

std::uint64_t KnownLoop::address(std::uint64_t number) const {
  const std::array inside{address_of(vpmu_known_load), address_of(vpmu_known_load) + 3, address_of(vpmu_known_load) + 6,
                          address_of(vpmu_known_store), address_of(vpmu_known_jump)};
  if (number == 0) return address_of(vpmu_known_first);
  if (number > std::uint64_t{instructions_of_round} * rounds) return 0;
  return inside[(number - 1) % instructions_of_round];
}

void check_sampling(const Processor& processor, Report& report) {
  check_period(report);
  check_callers(report);
  check_precise(processor, 1, "precise.1", report);
  check_precise(processor, 2, "precise.2", report);
  check_distribution(processor, report);
  check_batch(processor, report);
}

}  // namespace vmm::tool::checker
