#include "gt/pmu.hpp"

#include <array>

#include "gt/apic.hpp"
#include "gt/cpu.hpp"
#include "gt/interrupts.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace gt::pmu {
namespace {

constinit PmiPolicy policy{};
constinit std::array<PmiRecord, 16> records{};
constinit volatile std::uint32_t count = 0;
constinit std::uint32_t delivery = 0;  ///< LVTPC without its mask.

void take_pmi(InterruptFrame& frame) {
  const std::uint64_t seen = global_status();
  const std::uint32_t n = count;
  if (n < records.size())
    records[n] = {.vector = frame.vector,
                  .rip = frame.rip,
                  .rsp = frame.rsp,
                  .lvtpc = apic::read(apic::lvtpc_offset),
                  .status = seen,
                  .global_ctrl = rdmsr(msr::IA32_PERF_GLOBAL_CTRL),
                  .tsc = rdtsc()};
  if (policy.stop != 0) stop();
  if ((seen & policy.acknowledge) != 0) acknowledge(seen & policy.acknowledge);
  if (frame.vector != x86::vector::NMI) apic::end_of_interrupt();
  if (policy.unmask != 0) apic::write(apic::lvtpc_offset, delivery);
  count = n + 1;
}

void direct_pmi(std::uint64_t vector, std::uint32_t lvtpc, PmiPolicy new_policy) {
  policy = new_policy;
  delivery = lvtpc;
  on_vector(vector, take_pmi);
  apic::write(apic::lvtpc_offset, lvtpc);
}

}  // namespace

unsigned version() { return cpuid(0xA).eax & 0xFF; }
unsigned gp_counters() { return cpuid(0xA).eax >> 8 & 0xFF; }
unsigned fixed_counters() { return cpuid(0xA).edx & 0x1F; }

std::uint64_t short_period() { return exact_counts() ? 150 : 20'000; }

void write_counter(unsigned i, std::uint64_t value) {
  if (cpu::has_full_width_writes()) {
    wrmsr(msr::IA32_A_PMC0 + i, value);
    return;
  }
  const auto extended = static_cast<std::uint64_t>(static_cast<std::int32_t>(value)) & counter_mask;
  if (extended != value) abort_test(__FILE_NAME__, __LINE__, "this counter cannot be given that value");
  wrmsr(msr::IA32_PMC0 + i, value & vpmu::low_bits(32));
}

void program(unsigned counter, std::uint64_t event_select, std::uint64_t value) {
  wrmsr(msr::IA32_PERFEVTSEL0 + counter, event_select);
  write_counter(counter, value);
}

void catch_pmi_by_nmi(PmiPolicy new_policy) { direct_pmi(x86::vector::NMI, apic::lvtpc::nmi, new_policy); }
void catch_pmi_by_vector(std::uint8_t vector, PmiPolicy new_policy) { direct_pmi(vector, vector, new_policy); }

std::uint32_t pmi_count() { return count; }
const PmiRecord& pmi(unsigned i) { return records[i % records.size()]; }

bool wait_for_pmis(std::uint32_t n, std::uint64_t ticks) {
  return wait_until([n] { return pmi_count() >= n; }, ticks);
}

}  // namespace gt::pmu
