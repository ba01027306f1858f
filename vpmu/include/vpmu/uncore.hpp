#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "vpmu/msr.hpp"
#include "vpmu/offcore.hpp"

namespace vpmu {

/// What a write to an uncore MSR does.
enum class UncoreWrite : std::uint8_t {
  keeps,   ///< It is stored.
  clears,  ///< Each set bit clears that bit of the global status; the MSR reads 0.
  faults,  ///< #GP: read only.
};

/// `count` consecutive MSRs of one kind.
struct UncoreMsr {
  MsrIndex first;
  std::uint32_t count;
  std::string_view name;  ///< SDM name of the first, or of the boxes.
  std::uint64_t legal;    ///< Bits that WRMSR may set; any other raises #GP.
  UncoreWrite write{UncoreWrite::keeps};
  std::uint64_t transient{};  ///< Legal bits that are commands: they read 0.
  std::uint64_t starts{};     ///< Of an event select: the bit that enables its counter.
  std::uint64_t reset{};
};

/// The counter of uncore clock cycles, and the global registers above it. Each mask is of the register that its comment
/// names, 0 where there is no such bit.
struct UncoreClock {
  MsrIndex counter, control, global_ctrl, global_status;
  unsigned width;                ///< Bits of the counter.
  std::uint64_t enable;          ///< control: counts.
  std::uint64_t interrupt;       ///< control: an overflow asks for a PMI.
  std::uint64_t global_enable;   ///< global_ctrl: counts; without the bit it always does.
  std::uint64_t global_enables;  ///< global_ctrl: the enables of all counters, which a freeze clears.
  std::uint64_t freeze;          ///< global_ctrl: a PMI freezes.
  unsigned cores_shift;          ///< global_ctrl: where the bit of core 0 is.
  unsigned cores;                ///< global_ctrl: how many cores have a bit.
  std::uint64_t overflowed;      ///< global_status: the counter has overflowed.
  std::uint64_t changed;         ///< global_status: set with every overflow.
  std::uint64_t pmi;             ///< global_status: set with every PMI.
  unsigned ticks_per_5_tsc;      ///< Its rate: ticks per five TSC ticks.
};

/// What a core's requests came to in the last level cache: for each slice, by offcore_cell(). A request for a line that
/// no L2 of the core had; answered by memory: the slice lacked it.
struct LlcCounts {
  static constexpr unsigned max_slices = 5;  ///< Of a client.
  std::array<std::array<std::uint64_t, offcore_cell_count>, max_slices> slices{};
};

/// The boxes of a client's last level cache, one for each slice, and its arbiter for memory: each has two selects and
/// two counters. SDM 3B 18.9.6.
struct UncoreCaches {
  MsrIndex select{0}, counter{0};                  ///< The first of slice 0.
  std::uint32_t stride{};                          ///< From a slice's registers to the next one's.
  unsigned slices{};                               ///< 0: these boxes are not modelled.
  MsrIndex arbiter_select{0}, arbiter_counter{0};  ///< The first of the arbiter.
  unsigned width{};                                ///< Bits of a counter.
};

/// The performance monitoring MSRs of a generation's uncore, as data. See src/generations/uncore.hpp.
struct UncoreDesc {
  std::span<const UncoreMsr> msrs;
  UncoreClock clock;
  UncoreCaches caches{};
};

/// Cores by number, a bit each.
using CoreSet = std::uint64_t;

/// The uncore PMU of one package. SDM 3B 18.8.2, 18.9.6. Its clock counts, and on clients
/// the look-ups and misses of the last level cache; its other counters keep what is written to them.
/// unserved_selects() tells how often a guest enabled one of these. Like Pmu it
/// does nothing on its own and allocates nothing; some 6 KB, which may be copied.
class Uncore {
 public:
  static constexpr std::size_t max_msrs = 704;  ///< Of any generation.

  /// As after power-up.
  explicit Uncore(const UncoreDesc& desc);

  /// Guest RDMSR; legality is checked first. `unknown`: not of this uncore.
  [[nodiscard]] MsrReadResult rdmsr(MsrIndex index) const;
  /// Guest WRMSR, in the same way; on any status but ok nothing has changed.
  MsrStatus wrmsr(MsrIndex index, std::uint64_t value);
  /// What wrmsr() would return; changes nothing.
  [[nodiscard]] MsrStatus check_wrmsr(MsrIndex index, std::uint64_t value) const;

  /// Tells that `tsc_ticks` TSC ticks have passed since the last call. Returns the cores whose
  /// Pmu::on_uncore_overflow() is now due, if any.
  [[nodiscard]] CoreSet advance(std::uint64_t tsc_ticks);
  /// TSC ticks, at least 1, until advance() will return a core; empty: never, with the registers as they are.
  [[nodiscard]] std::optional<std::uint64_t> until_overflow() const;

  /// Whether a counter counts what count() tells.
  [[nodiscard]] bool wants_caches() const;
  /// Tells what the last level cache did since the last call. An overflow of these counters asks for no PMI.
  void count(const LlcCounts& passed);

  /// How often a guest enabled a general counter that does not count. Approximate on servers: in some registers of
  /// their boxes the enable bit means something else.
  [[nodiscard]] std::uint64_t unserved_selects() const { return unserved_selects_; }

 private:
  struct Place {
    const UncoreMsr* row;
    std::size_t at;  ///< In values_.
  };
  [[nodiscard]] std::optional<Place> find(MsrIndex index) const;
  [[nodiscard]] std::uint64_t& value_of(MsrIndex index) { return values_[find(index)->at]; }
  [[nodiscard]] std::uint64_t value_of(MsrIndex index) const { return values_[find(index)->at]; }
  [[nodiscard]] bool counts() const;
  [[nodiscard]] bool is_served(MsrIndex select, std::uint64_t value) const;
  [[nodiscard]] CoreSet overflow();

  const UncoreDesc* desc_;
  std::array<std::uint64_t, max_msrs> values_{};  ///< In the order of desc_->msrs.
  std::uint64_t fifths_{};                        ///< Fifths of a tick since the last whole one.
  std::uint64_t unserved_selects_{};
};

}  // namespace vpmu
