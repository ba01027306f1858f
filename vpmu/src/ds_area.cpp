#include <array>
#include <cstring>

#include "ds_access.hpp"
#include "store_outcome.hpp"

namespace vpmu {
namespace {

// The area is read once into a local and never trusted again. The threshold is touched first: hardware's first access,
// so that an injected fault shows the address that software expects (rule F10).
AccessResult read_ds_area(GuestEnv& env, GuestLinear ds, DsArea& area) {
  if (auto fault = env.probe_linear(ds + DsArea::threshold_offset, 8, AccessKind::read)) return fault;
  std::array<std::byte, DsArea::pebs_bytes> raw{};
  if (auto fault = env.read_linear(ds + DsArea::pebs_offset, raw)) return fault;
  area = DsArea::decode(raw);
  return {};
}

}  // namespace

// Steps 2 to 5 of an assist: every page is probed before the first byte is stored, so that a record is never torn
// (rules F1, F10).
Pmu::StoreOutcome Pmu::store_record(CounterSet triggers, CounterSet served, PebsRecord record, GuestEnv& env) {
  const GuestLinear ds{state_.ds_area};
  const auto format = static_cast<PebsFormat>(desc_.pebs_format);
  const std::uint64_t size = record_size(format);
  const auto dropped = [&](DropReason reason, const AccessFault& fault) {
    drop_record(triggers, reason, fault);
    return StoreOutcome{.full = reason == DropReason::buffer_full};
  };

  if (!addressable(ds + DsArea::pebs_offset, DsArea::pebs_bytes)) return dropped(DropReason::bad_bounds, {});
  DsArea area;
  if (auto fault = read_ds_area(env, ds, area)) return dropped(DropReason::fault, *fault);
  if (!area.has_room(size) || !addressable(area.index, size))
    return dropped(no_room_reason(area.base, area.index, area.absolute_maximum, size), {});
  if (auto fault = env.probe_linear(area.index, size, AccessKind::write)) return dropped(DropReason::fault, *fault);
  if (auto fault = env.probe_linear(ds + DsArea::index_offset, 8, AccessKind::write))
    return dropped(DropReason::fault, *fault);

  record[Slot::status] = record_status(served);
  record[Slot::tsc] = env.tsc();  // rule P9
  std::array<std::byte, max_record_size> bytes{};
  encode(format, record, bytes);
  if (auto fault = env.write_linear(area.index, std::span{bytes}.first(size)))
    return dropped(DropReason::fault, *fault);
  const GuestLinear next = area.index + size;
  const std::uint64_t next_word = next.value();
  std::array<std::byte, 8> index{};
  std::memcpy(index.data(), &next_word, index.size());
  if (auto fault = env.write_linear(ds + DsArea::index_offset, index)) return dropped(DropReason::fault, *fault);

  ++statistics_.records_written;
  trace(RecordWritten{.counters = served, .at = area.index, .record = &record});
  return {.ok = true,
          .threshold_reached = next >= area.interrupt_threshold,
          .full = !fits(area.base, next, area.absolute_maximum, size),
          .area = area};
}

void Pmu::drop_record(CounterSet triggers, DropReason reason, const AccessFault& fault) {
  switch (reason) {
    case DropReason::buffer_full: ++statistics_.records_dropped_full; break;
    case DropReason::bad_bounds: ++statistics_.records_dropped_bounds; break;
    case DropReason::fault: ++statistics_.records_dropped_fault; break;
  }
  trace(RecordDropped{.counters = triggers, .reason = reason, .fault = fault});
}

}  // namespace vpmu
