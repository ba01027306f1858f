#include "vpmu/uncore.hpp"

#include <algorithm>
#include <initializer_list>

#include "vpmu/bits.hpp"

namespace vpmu {
namespace {

constexpr unsigned fifths_per_tick = 5;

/// The status of WRMSR of `value` to an MSR of `row`; null: the MSR is unknown.
MsrStatus judge(const UncoreMsr* row, std::uint64_t value) {
  if (row == nullptr) return MsrStatus::unknown;
  const bool illegal = row->write == UncoreWrite::faults || (value & ~row->legal) != 0;
  return illegal ? MsrStatus::gp : MsrStatus::ok;
}

constexpr unsigned counters_of_box = 2;

/// A select of a client's box. SDM 3B figure 18-34.
struct BoxEvent {
  explicit BoxEvent(std::uint64_t select)
      : code{select & 0xFF},
        umask{select >> 8 & 0xFF},
        enabled{(select & bit(22)) != 0},
        plain{(select & (bit(18) | bit(23) | 0x1F00'0000)) == 0} {}
  [[nodiscard]] bool has(std::uint64_t bits) const { return (umask & bits) == bits; }
  std::uint64_t code, umask;
  bool enabled;
  bool plain;  ///< Without EDGE, INV and a threshold, which these counters do not apply.
};

using Cells = std::array<std::uint64_t, offcore_cell_count>;

std::uint64_t cells_of(const Cells& cells, bool reads, bool writes, std::initializer_list<OffcoreSupplier> suppliers) {
  std::uint64_t n = 0;
  for (const OffcoreSupplier supplier : suppliers) {
    if (writes) n += cells[offcore_cell(OffcoreRequest::demand_rfo, supplier)];
    if (!reads) continue;
    for (const auto read :
         {OffcoreRequest::demand_data_read, OffcoreRequest::demand_code_read, OffcoreRequest::prefetch_data_read})
      n += cells[offcore_cell(read, supplier)];
  }
  return n;
}

/// CBO_CACHE_LOOKUP: the upper half of the umask says which requests, the lower one the line's state: M 1, E 2, S 4, I
/// 8 (a miss). Here no line of the cache is in M: what a core has changed, it has itself. XSNP_RESPONSE: another core
/// had the line unmodified, or modified. SDM 3C table 19-17.
constexpr std::uint64_t cache_lookup = 0x34, snoop_response = 0x22;
std::uint64_t in_slice(const BoxEvent& e, const Cells& cells) {
  using enum OffcoreSupplier;
  std::uint64_t n = 0;
  if (e.code == cache_lookup) {
    const bool any = e.has(0x80), reads = any || e.has(0x10), writes = any || e.has(0x20);
    if ((e.umask & 0x6) != 0) n += cells_of(cells, reads, writes, {l3, l3_shared, l3_modified});
    if (e.has(0x8)) n += cells_of(cells, reads, writes, {local_dram});
  }
  if (e.code == snoop_response && e.has(0x40)) {
    if (e.has(0x4)) n += cells_of(cells, true, true, {l3_shared});
    if (e.has(0x8)) n += cells_of(cells, true, true, {l3_modified});
  }
  return n;
}
bool is_of_slice(const BoxEvent& e) { return e.code == cache_lookup || (e.code == snoop_response && e.has(0x40)); }

/// TRK_REQUESTS: all that goes to memory; or reads of data.
constexpr std::uint64_t requests_to_memory = 0x81;
bool is_of_arbiter(const BoxEvent& e) { return e.code == requests_to_memory && (e.umask & 0x3) != 0; }
std::uint64_t to_memory(const BoxEvent& e, const Cells& cells) {
  if (!is_of_arbiter(e)) return 0;
  if (e.has(0x1)) return cells_of(cells, true, true, {OffcoreSupplier::local_dram});
  return cells[offcore_cell(OffcoreRequest::demand_data_read, OffcoreSupplier::local_dram)] +
         cells[offcore_cell(OffcoreRequest::prefetch_data_read, OffcoreSupplier::local_dram)];
}

}  // namespace

Uncore::Uncore(const UncoreDesc& desc) : desc_{&desc} {
  auto* at = values_.begin();
  for (const UncoreMsr& row : desc.msrs) at = std::fill_n(at, row.count, row.reset);
}

std::optional<Uncore::Place> Uncore::find(MsrIndex index) const {
  std::size_t at = 0;
  for (const UncoreMsr& row : desc_->msrs) {
    const std::uint32_t i = index.value() - row.first.value();
    if (i < row.count) return Place{.row = &row, .at = at + i};
    at += row.count;
  }
  return std::nullopt;
}

MsrReadResult Uncore::rdmsr(MsrIndex index) const {
  const auto place = find(index);
  if (!place) return {};
  return {.status = MsrStatus::ok, .value = values_[place->at]};
}

MsrStatus Uncore::check_wrmsr(MsrIndex index, std::uint64_t value) const {
  const auto place = find(index);
  return judge(place ? place->row : nullptr, value);
}

MsrStatus Uncore::wrmsr(MsrIndex index, std::uint64_t value) {
  const auto place = find(index);
  const MsrStatus status = judge(place ? place->row : nullptr, value);
  if (status != MsrStatus::ok) return status;
  if (place->row->write == UncoreWrite::clears)
    value_of(desc_->clock.global_status) &= ~value;
  else
    values_[place->at] = value & ~place->row->transient;
  if ((value & place->row->starts) != 0 && !is_served(index, value)) ++unserved_selects_;
  return MsrStatus::ok;
}

bool Uncore::counts() const {
  const UncoreClock& c = desc_->clock;
  return (value_of(c.control) & c.enable) != 0 && (value_of(c.global_ctrl) & c.global_enable) == c.global_enable;
}

CoreSet Uncore::advance(std::uint64_t tsc_ticks) {
  if (!counts()) return 0;
  const UncoreClock& c = desc_->clock;
  __extension__ using wide = unsigned __int128;
  const wide passed = wide{tsc_ticks} * c.ticks_per_5_tsc + fifths_;
  fifths_ = static_cast<std::uint64_t>(passed % fifths_per_tick);
  const wide sum = value_of(c.counter) + passed / fifths_per_tick;
  value_of(c.counter) = static_cast<std::uint64_t>(sum) & low_bits(c.width);
  return (sum >> c.width) != 0 ? overflow() : 0;
}

// SDM 3B 18.8.2.1, 18.9.6: the status, the freeze, and the cores that global_ctrl names.
CoreSet Uncore::overflow() {
  const UncoreClock& c = desc_->clock;
  const bool interrupts = (value_of(c.control) & c.interrupt) != 0;
  value_of(c.global_status) |= c.overflowed | c.changed | (interrupts ? c.pmi : 0);
  if (!interrupts) return 0;
  std::uint64_t& global = value_of(c.global_ctrl);
  const CoreSet cores = (global >> c.cores_shift) & low_bits(c.cores);
  if ((global & c.freeze) != 0) {
    global &= ~c.global_enables;
    value_of(c.counter) = 0;  // hardware stops at the overflow itself; this call may come later
  }
  return cores;
}

std::optional<std::uint64_t> Uncore::until_overflow() const {
  if (!counts()) return std::nullopt;
  const UncoreClock& c = desc_->clock;
  const std::uint64_t cores = (value_of(c.global_ctrl) >> c.cores_shift) & low_bits(c.cores);
  if ((value_of(c.control) & c.interrupt) == 0 || cores == 0) return std::nullopt;
  __extension__ using wide = unsigned __int128;
  const wide fifths = (wide{low_bits(c.width)} + 1 - value_of(c.counter)) * fifths_per_tick - fifths_;
  return static_cast<std::uint64_t>((fifths + c.ticks_per_5_tsc - 1) / c.ticks_per_5_tsc);
}

bool Uncore::is_served(MsrIndex select, std::uint64_t value) const {
  const UncoreCaches& c = desc_->caches;
  const BoxEvent event{value};
  if (!event.plain || c.slices == 0) return false;
  if (select.value() - c.arbiter_select.value() < counters_of_box) return is_of_arbiter(event);
  const std::uint32_t at = select.value() - c.select.value();
  return at / c.stride < c.slices && at % c.stride < counters_of_box && is_of_slice(event);
}

bool Uncore::wants_caches() const {
  const UncoreCaches& c = desc_->caches;
  if (c.slices == 0 || (value_of(desc_->clock.global_ctrl) & desc_->clock.global_enable) == 0) return false;
  const auto counts = [this](MsrIndex select) {
    return BoxEvent{value_of(select)}.enabled && is_served(select, value_of(select));
  };
  for (unsigned i = 0; i < counters_of_box; ++i) {
    if (counts(c.arbiter_select + i)) return true;
    for (unsigned slice = 0; slice < c.slices; ++slice)
      if (counts(c.select + slice * c.stride + i)) return true;
  }
  return false;
}

void Uncore::count(const LlcCounts& passed) {
  if (!wants_caches()) return;
  const UncoreCaches& c = desc_->caches;
  const auto add = [&](MsrIndex select, MsrIndex counter, auto events, const Cells& cells) {
    const BoxEvent event{value_of(select)};
    if (!event.enabled || !event.plain) return;
    value_of(counter) = (value_of(counter) + events(event, cells)) & low_bits(c.width);
  };
  Cells all{};
  for (const Cells& slice : passed.slices)
    for (unsigned cell = 0; cell < all.size(); ++cell) all[cell] += slice[cell];
  for (unsigned i = 0; i < counters_of_box; ++i) {
    for (unsigned slice = 0; slice < c.slices; ++slice)
      add(c.select + slice * c.stride + i, c.counter + slice * c.stride + i, in_slice, passed.slices[slice]);
    add(c.arbiter_select + i, c.arbiter_counter + i, to_memory, all);
  }
}

}  // namespace vpmu
