#pragma once
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <optional>

#include "recording_env.hpp"
#include "select.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/pmu.hpp"

namespace vpmu::test {

/// IA32_PEBS_ENABLE: records of PMCi, and its loads' latency.
constexpr std::uint64_t both_enables(unsigned i) { return bit(i) | bit(32 + i); }

/// A PMU with a DS area, Skylake's unless said otherwise, and the instruction stream of the worked vectors: a1, a2, ...
/// each `mov eax,[rbx]`, two bytes long, with its own data address and loaded value.
class PebsSession {
 public:
  static constexpr GuestLinear ds_area{0xFFFF'8000'0001'0000};
  static constexpr GuestLinear buffer{0xFFFF'8000'0002'0000};
  static constexpr std::uint64_t buffer_bytes = 2 * page_size;
  static constexpr std::uint64_t size = record_size(PebsFormat::format3);  ///< Of Skylake's record.
  static constexpr std::uint64_t never = ~0ULL;                            ///< A threshold that no index reaches.
  static constexpr std::uint64_t all_counters = 0x7'0000'000F;

  RecordingEnv env;
  Pmu pmu;

  explicit PebsSession(const PmuConfig& config = {}) : pmu{config} {
    env.map(ds_area, page_size);
    env.map(buffer, buffer_bytes);
    set_ds({.absolute_maximum = buffer + buffer_bytes});
    write(msr::IA32_DS_AREA, ds_area.value());
    write(msr::IA32_PERF_GLOBAL_CTRL, all_counters);
  }
  explicit PebsSession(const PmuPolicies& policies) : PebsSession{PmuConfig{.policies = policies}} {}

  void write(MsrIndex index, std::uint64_t value) {
    ASSERT_EQ(pmu.wrmsr(index, value), MsrStatus::ok) << "MSR " << std::hex << index.value() << " = " << value;
  }
  [[nodiscard]] std::uint64_t read(MsrIndex index) const {
    const MsrReadResult result = pmu.rdmsr(index);
    EXPECT_EQ(result.status, MsrStatus::ok) << "MSR " << std::hex << index.value();
    return result.value;
  }

  /// The PEBS half of the DS area. SDM 3B figure 18-22.
  void set_ds(const DsArea& area) {
    const GuestLinear base = area.base.value() == 0 ? buffer : area.base;
    const GuestLinear index = area.index.value() == 0 ? base : area.index;
    const std::uint64_t threshold = area.interrupt_threshold.value() == 0 ? never : area.interrupt_threshold.value();
    env.poke(ds_area + 0x20, base.value());
    env.poke(ds_area + 0x28, index.value());
    env.poke(ds_area + 0x30, area.absolute_maximum.value());
    env.poke(ds_area + 0x38, threshold);
    for (unsigned i = 0; i < 4; ++i) env.poke(ds_area + 0x40 + 8 * i, area.counter_reset[i]);
  }
  void set_threshold(GuestLinear at) { env.poke(ds_area + 0x38, at.value()); }
  void set_index(GuestLinear at) { env.poke(ds_area + 0x28, at.value()); }
  void set_reset(unsigned i, std::uint64_t value) { env.poke(ds_area + 0x40 + 8 * i, value); }
  [[nodiscard]] GuestLinear index() const { return GuestLinear{env.peek(ds_area + 0x28)}; }

  /// Writes IA32_A_PMCi, or without full-width writes IA32_PMCi, which `value` must fit.
  void write_counter(unsigned i, std::uint64_t value) {
    const bool full = pmu.generation().features.full_width_write;
    write((full ? msr::IA32_A_PMC0 : msr::IA32_PMC0) + i, value);
    ASSERT_EQ(pmc(i), value);
  }
  /// PMCi = `s`, `period` events before its overflow; with the same reload value.
  void start(unsigned i, Select s, std::uint64_t period) {
    write(msr::IA32_PERFEVTSEL0 + i, s.raw());
    write_counter(i, minus(period));
    set_reset(i, minus(period));
  }
  /// The same with PEBS enabled.
  void start_pebs(unsigned i, Select s, std::uint64_t period) {
    start(i, s, period);
    write(msr::IA32_PEBS_ENABLE, read(msr::IA32_PEBS_ENABLE) | bit(i));
  }

  /// First byte of a_k, and what it loads.
  [[nodiscard]] static constexpr GuestLinear a(unsigned k) { return GuestLinear{0xFFFF'FFFF'8100'0000 + 2ULL * k}; }
  [[nodiscard]] static constexpr GuestLinear data_of(unsigned k) {
    return GuestLinear{0xFFFF'8880'0000'0000 + 8ULL * k};
  }
  [[nodiscard]] static constexpr std::uint64_t loaded_by(unsigned k) { return 0xAAAA'0000 + k; }

  /// a_k as a retirement, to be changed before it is retired.
  [[nodiscard]] Retirement load(unsigned k) {
    registers_ = {};
    registers_[Slot::rflags] = 0x246;
    registers_[Slot::rax] = loaded_by(k);
    registers_[Slot::rbx] = data_of(k).value();
    registers_[Slot::r15] = 0x1515'1515'1515'1515;
    return {.ip = a(k),
            .next_ip = a(k + 1),
            .has_load = true,
            .load = {.address = data_of(k), .level = HitLevel::l1, .latency = 4},
            .cycles = 1,
            .ref_cycles = 1,
            .registers = &registers_};
  }
  /// a_k as a store instead.
  [[nodiscard]] Retirement store(unsigned k) {
    Retirement r = load(k);
    r.has_load = false;
    r.has_store = true;
    r.store = {.address = data_of(k), .level = HitLevel::l1};
    return r;
  }
  /// a_k as an instruction without memory operand.
  [[nodiscard]] Retirement plain(unsigned k) {
    Retirement r = load(k);
    r.has_load = false;
    return r;
  }
  void retire(const Retirement& r) { pmu.retire(r, env); }
  /// Retires the loads a_first ... a_last.
  void run(unsigned first, unsigned last) {
    for (unsigned k = first; k <= last; ++k) retire(load(k));
  }

  [[nodiscard]] PebsFormat format() const { return static_cast<PebsFormat>(pmu.generation().pebs_format); }
  [[nodiscard]] std::uint64_t record_bytes() const { return record_size(format()); }
  [[nodiscard]] std::uint64_t records() const { return (index().value() - buffer.value()) / record_bytes(); }
  /// The n-th record of the buffer, from 0.
  [[nodiscard]] PebsRecord record(unsigned n) const {
    std::array<std::byte, max_record_size> bytes{};
    for (unsigned i = 0; i < record_bytes() / 8; ++i) {
      const std::uint64_t word = env.peek(buffer + n * record_bytes() + 8 * i);
      std::memcpy(bytes.data() + 8 * i, &word, 8);
    }
    return decode(format(), bytes).value();
  }
  [[nodiscard]] std::uint64_t eventing_ip(unsigned n) const { return record(n)[Slot::eventing_ip]; }
  [[nodiscard]] std::uint64_t applicable(unsigned n) const { return record(n)[Slot::status]; }

  [[nodiscard]] std::uint64_t status() const { return read(msr::IA32_PERF_GLOBAL_STATUS); }
  [[nodiscard]] std::uint64_t pmc(unsigned i) const { return read(msr::IA32_PMC0 + i); }
  [[nodiscard]] std::uint64_t fixed(unsigned n) const { return read(msr::IA32_FIXED_CTR0 + n); }
  [[nodiscard]] const PmuStatistics& statistics() const { return pmu.statistics(); }

 private:
  PebsRegisters registers_;
};

inline constexpr std::uint64_t ovf_buffer = reg::global_status::OVF_DSBuffer::mask;
inline constexpr std::uint64_t ctr_frz = reg::global_status::CTR_FRZ::mask;
inline constexpr std::uint64_t lbr_frz = reg::global_status::LBR_FRZ::mask;
inline constexpr std::uint64_t freeze_counters = reg::debugctl::FREEZE_PERFMON_ON_PMI::mask;
inline constexpr std::uint64_t freeze_lbrs = reg::debugctl::FREEZE_LBRS_ON_PMI::mask;

}  // namespace vpmu::test
