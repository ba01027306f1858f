#pragma once
#include <cstdint>

#include "gt/asm.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/counter.hpp"
#include "vpmu/registers.hpp"

/// Programming the PMU the way an operating system does, and catching its interrupts.
namespace gt::pmu {

namespace msr = vpmu::msr;
namespace reg = vpmu::reg;
namespace status = vpmu::reg::global_status;

/// An event select without its control bits. Events that differ between processors are in gt/cpu.hpp.
struct Event {
  std::uint8_t code;
  std::uint8_t umask;
  std::uint8_t cmask{0};
  std::uint64_t inv{0};
};
inline constexpr Event cycles{0x3C, 0x00};
inline constexpr Event instructions{0xC0, 0x00};
inline constexpr Event precise_distribution{0xC0, 0x01};  ///< PDIR on PMC1 (rule D1).
inline constexpr Event branches{0xC4, 0x00};
inline constexpr Event precise_branches{0xC4, 0x04};
inline constexpr Event conditional_branches{0xC4, 0x01};
inline constexpr Event near_calls{0xC4, 0x02};

enum Control : std::uint64_t {
  usr = reg::perfevtsel::USR::mask,
  os = reg::perfevtsel::OS::mask,
  interrupt = reg::perfevtsel::INT::mask,
};

/// IA32_PERFEVTSELx with EN set; `control` is a sum of Control bits.
constexpr std::uint64_t select(Event event, std::uint64_t control) {
  namespace r = reg::perfevtsel;
  return r::EVENT::make(event.code) | r::UMASK::make(event.umask) | r::CMASK::make(event.cmask) |
         r::INV::make(event.inv) | r::EN::mask | control;
}

/// Width of all counters of these generations. SDM 3B 18.2.2.
inline constexpr std::uint64_t counter_mask = vpmu::low_bits(48);
/// The counter value `n` events before overflow.
constexpr std::uint64_t minus(std::uint64_t n) { return (~n + 1) & counter_mask; }

/// One four-bit field of IA32_FIXED_CTR_CTRL for fixed counter `n`. SDM 3B figure 18-7.
inline constexpr std::uint64_t fixed_os = 1, fixed_usr = 2, fixed_pmi = 8;
constexpr std::uint64_t fixed_control(unsigned n, std::uint64_t field) { return field << (4 * n); }
/// The bit of PMCi and of FIXED_CTRn in GLOBAL_CTRL and GLOBAL_STATUS.
constexpr std::uint64_t gp_bit(unsigned i) { return vpmu::bit(i); }
constexpr std::uint64_t fixed_bit(unsigned n) { return vpmu::bit(32 + n); }

/// CPUID.0AH. SDM 2A CPUID.
unsigned version();
unsigned gp_counters();
unsigned fixed_counters();

/// Writes a counter. Without full-width writes the value must be the sign extension of its bit 31 (SDM 3B 18.2.1.1), or
/// the test fails.
void write_counter(unsigned i, std::uint64_t value);
/// Writes the select and the counter. GLOBAL_CTRL must be off.
void program(unsigned counter, std::uint64_t event_select, std::uint64_t value);
inline void start(std::uint64_t global_ctrl) { wrmsr(msr::IA32_PERF_GLOBAL_CTRL, global_ctrl); }
inline void stop() { wrmsr(msr::IA32_PERF_GLOBAL_CTRL, 0); }
inline std::uint64_t global_status() { return rdmsr(msr::IA32_PERF_GLOBAL_STATUS); }
inline void acknowledge(std::uint64_t bits) { wrmsr(msr::IA32_PERF_GLOBAL_OVF_CTRL, bits); }
inline std::uint64_t counter(unsigned i) { return rdmsr(msr::IA32_PMC0 + i); }
inline std::uint64_t fixed(unsigned n) { return rdmsr(msr::IA32_FIXED_CTR0 + n); }

/// A period in cycles: short, but longer than the instructions that start the counter.
std::uint64_t short_period();

/// Turns all hardware prefetchers off while it lives, where the guest may: a hypervisor that passes its host's PMU on
/// need not have this MSR. Then each line that misses is asked for by a load, store or fetch.
class WithoutPrefetchers {
 public:
  WithoutPrefetchers() { (void)try_wrmsr(msr::MSR_MISC_FEATURE_CONTROL, reg::misc_feature_control::writable); }
  ~WithoutPrefetchers() { (void)try_wrmsr(msr::MSR_MISC_FEATURE_CONTROL, 0); }
  WithoutPrefetchers(const WithoutPrefetchers&) = delete;
  WithoutPrefetchers& operator=(const WithoutPrefetchers&) = delete;
};

/// A timeout, in TSC ticks, that is longer than any reasonable counting source needs.
inline constexpr std::uint64_t patience = 1ULL << 34;
/// Runs `step` until it returns true; false if `ticks` of the TSC pass before.
template <class Step>
bool wait_until(Step step, std::uint64_t ticks = patience) {
  const std::uint64_t begin = rdtsc();
  while (!step())
    if (rdtsc() - begin > ticks) return false;
  return true;
}

/// What one run of the PMI handler saw, in the order in which it looked.
struct PmiRecord {
  std::uint64_t vector, rip, rsp;
  std::uint64_t lvtpc;  ///< Before the handler touched it.
  std::uint64_t status;
  std::uint64_t global_ctrl;
  std::uint64_t tsc;
};

/// What the PMI handler does besides recording what it saw.
struct PmiPolicy {
  std::uint64_t acknowledge{~0ULL};  ///< Status bits to clear, of those that are set.
  std::uint64_t stop{1};             ///< 1: GLOBAL_CTRL = 0.
  std::uint64_t unmask{0};           ///< 1: rewrites LVTPC without the mask at the end, as Linux does.
};

/// Delivers PMIs as NMIs, or by a fixed vector (RFLAGS.IF stays as it is), and records each.
void catch_pmi_by_nmi(PmiPolicy policy = {});
void catch_pmi_by_vector(std::uint8_t vector, PmiPolicy policy = {});
/// How often the handler has run, and its first 16 records.
std::uint32_t pmi_count();
const PmiRecord& pmi(unsigned i);
/// Waits until `n` PMIs have been taken.
bool wait_for_pmis(std::uint32_t n, std::uint64_t ticks = patience);

}  // namespace gt::pmu
