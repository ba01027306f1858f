#include "vpmu/bts.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "boundary.hpp"
#include "ds_access.hpp"
#include "vpmu/registers.hpp"

namespace vpmu {
namespace {

namespace dbg = reg::debugctl;

static_assert(std::endian::native == std::endian::little, "records are copied as they lie in memory");

// Far branches, interrupts and exceptions are not predicted (rule B5).
BtsRecord record_of(const TakenBranch& branch) {
  const bool predicted = branch.what.kind != BranchKind::far && !branch.what.mispredicted;
  return {.from = branch.from.value(), .to = branch.to.value(), .flags = BtsRecord::PREDICTED::make(predicted ? 1 : 0)};
}

// Rule B3: where no further record fits, the next one goes to the base.
GuestLinear circular_place(const BtsArea& area) {
  const bool at_end = !area.has_room(area.index) && area.base <= area.index && area.index <= area.absolute_maximum;
  return at_end ? area.base : area.index;
}

}  // namespace

std::array<std::byte, BtsRecord::size> BtsRecord::encode() const {
  return std::bit_cast<std::array<std::byte, size>>(std::array{from, to, flags});
}

BtsArea BtsArea::decode(std::span<const std::byte, bytes> in) {
  std::array<std::uint64_t, bytes / 8> word{};
  std::memcpy(word.data(), in.data(), in.size());
  return {.base = GuestLinear{word[0]},
          .index = GuestLinear{word[1]},
          .absolute_maximum = GuestLinear{word[2]},
          .interrupt_threshold = GuestLinear{word[3]}};
}

bool BtsArea::has_room(GuestLinear at) const { return fits(base, at, absolute_maximum, BtsRecord::size); }

// Rule B1: both bits. With both levels filtered out there is nothing to record.
bool Pmu::stores_branches() const {
  const std::uint64_t control = state_.debugctl;
  const bool some_level = !dbg::BTS_OFF_OS::test(control) || !dbg::BTS_OFF_USR::test(control);
  return dbg::TR::test(control) && dbg::BTS::test(control) && some_level &&
         !reg::misc_enable::BTS_UNAVAILABLE::test(state_.misc_enable);
}

bool Pmu::stores_branches_at(unsigned cpl) const {
  return cpl == 0 ? !dbg::BTS_OFF_OS::test(state_.debugctl) : !dbg::BTS_OFF_USR::test(state_.debugctl);
}

// Like a PEBS assist: reads the area once, and probes every page before it stores the first byte, so that no record is
// torn. Returns the page fault that dropped the record, if any.
void Pmu::store_branch(const TakenBranch& branch, Boundary& b, GuestEnv& env) {
  if (!stores_branches() || !stores_branches_at(branch.cpl)) return;
  const GuestLinear ds{state_.ds_area};
  if (!addressable(ds, BtsArea::bytes)) return drop_branch(DropReason::bad_bounds, {});
  std::array<std::byte, BtsArea::bytes> raw{};
  if (auto fault = env.read_linear(ds, raw)) return drop_branch(DropReason::fault, *fault);
  const BtsArea area = BtsArea::decode(raw);

  const bool circular = !dbg::BTINT::test(state_.debugctl);
  const GuestLinear at = circular ? circular_place(area) : area.index;
  if (!area.has_room(at) || !addressable(at, BtsRecord::size))
    return drop_branch(no_room_reason(area.base, at, area.absolute_maximum, BtsRecord::size), {});
  if (auto fault = env.probe_linear(at, BtsRecord::size, AccessKind::write))
    return drop_branch(DropReason::fault, *fault);
  if (auto fault = env.probe_linear(ds + BtsArea::index_offset, 8, AccessKind::write))
    return drop_branch(DropReason::fault, *fault);

  const BtsRecord record = record_of(branch);
  if (auto fault = env.write_linear(at, record.encode())) return drop_branch(DropReason::fault, *fault);
  const GuestLinear behind = at + BtsRecord::size;
  const std::uint64_t next = (circular && !area.has_room(behind) ? area.base : behind).value();
  if (auto fault = env.write_linear(ds + BtsArea::index_offset, std::bit_cast<std::array<std::byte, 8>>(next)))
    return drop_branch(DropReason::fault, *fault);

  ++statistics_.branches_stored;
  trace(BranchStored{.at = at, .record = record});
  if (circular || behind < area.interrupt_threshold) return;
  post_pmi(PmiCause::bts_threshold);  // rule B2
  b.pmi = true;
}

// From the area's fields alone. Leaves room for one more record, so that the index does not wrap to the base, and keeps
// the index below the threshold (rules B2, B3).
std::optional<Pmu::BranchRoom> Pmu::branch_room(GuestEnv& env) const {
  constexpr std::uint64_t max = 4096;
  const GuestLinear ds{state_.ds_area};
  std::array<std::byte, BtsArea::bytes> raw{};
  if (!addressable(ds, BtsArea::bytes) || env.read_linear(ds, raw)) return std::nullopt;
  const BtsArea area = BtsArea::decode(raw);
  const bool circular = !dbg::BTINT::test(state_.debugctl);
  const GuestLinear at = circular ? circular_place(area) : area.index;
  if (!area.has_room(at)) return std::nullopt;
  std::uint64_t records = std::min((area.absolute_maximum.value() - at.value()) / BtsRecord::size - 1, max);
  if (!circular) {
    if (area.interrupt_threshold <= at) return std::nullopt;
    records = std::min(records, (area.interrupt_threshold.value() - at.value() - 1) / BtsRecord::size);
  }
  if (records == 0 || !addressable(at, records * BtsRecord::size)) return std::nullopt;
  return BranchRoom{.at = at, .records = records};
}

std::uint64_t Pmu::branches_storable(unsigned cpl, GuestEnv& env) const {
  if (!stores_branches() || !stores_branches_at(cpl)) return ~0ULL;
  if (cpl == 0) return 0;
  const auto room = branch_room(env);
  if (!room || env.probe_linear(room->at, room->records * BtsRecord::size, AccessKind::write) ||
      env.probe_linear(GuestLinear{state_.ds_area} + BtsArea::index_offset, 8, AccessKind::write))
    return 0;
  return room->records;
}

// Same effect as store_branch() for each branch, and falls back to it if there is less room than the source was told.
// The index is written last: if another vCPU unmaps a page meanwhile, all records are lost, and each is counted as
// dropped.
void Pmu::store_branches(const BranchRun& run, GuestEnv& env) {
  if (run.branches.empty() || !stores_branches() || !stores_branches_at(run.branches.front().branch.cpl)) return;
  statistics_.branches_dropped_full += run.missing;
  const auto room = branch_room(env);
  if (!room || room->records < run.branches.size()) {
    Boundary b;
    for (const PassedBranch& passed : run.branches) store_branch(passed.branch, b, env);
    return request_pmis(b, env);
  }
  constexpr std::size_t at_once = 64;
  std::array<BtsRecord, at_once> records{};
  static_assert(sizeof records == at_once * BtsRecord::size, "they lie in memory as they are encoded");
  GuestLinear at = room->at;
  const auto lose_all = [&](const AccessFault& fault) {
    for (std::size_t n = 0; n < run.branches.size(); ++n) (void)drop_branch(DropReason::fault, fault);
  };
  for (std::size_t done = 0; done < run.branches.size();) {
    const std::size_t count = std::min(at_once, run.branches.size() - done);
    for (std::size_t n = 0; n < count; ++n) records[n] = record_of(run.branches[done + n].branch);
    if (auto fault = env.write_linear(at, std::as_bytes(std::span{records}.first(count)))) return lose_all(*fault);
    at = at + count * BtsRecord::size;
    done += count;
  }
  const GuestLinear index = GuestLinear{state_.ds_area} + BtsArea::index_offset;
  if (auto fault = env.write_linear(index, std::bit_cast<std::array<std::byte, 8>>(at.value())))
    return lose_all(*fault);
  statistics_.branches_stored += run.branches.size();
  if (trace_ == nullptr) return;
  for (std::size_t n = 0; n < run.branches.size(); ++n)
    trace(BranchStored{.at = room->at + n * BtsRecord::size, .record = record_of(run.branches[n].branch)});
}

void Pmu::drop_branch(DropReason reason, const AccessFault& fault) {
  switch (reason) {
    case DropReason::buffer_full: ++statistics_.branches_dropped_full; break;
    case DropReason::bad_bounds: ++statistics_.branches_dropped_bounds; break;
    case DropReason::fault: ++statistics_.branches_dropped_fault; break;
  }
  trace(BranchDropped{.reason = reason, .fault = fault});
}

}  // namespace vpmu
