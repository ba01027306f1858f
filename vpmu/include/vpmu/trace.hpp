#pragma once
#include <cstdint>
#include <variant>

#include "vpmu/address.hpp"
#include "vpmu/bts.hpp"
#include "vpmu/counter.hpp"
#include "vpmu/env.hpp"
#include "vpmu/msr.hpp"
#include "vpmu/pebs.hpp"

namespace vpmu {

/// A WRMSR was carried out.
struct MsrWritten {
  MsrIndex index;
  std::uint64_t value{};
};
/// A counter wrapped to 0 (rule O1).
struct Overflowed {
  CounterId counter;
  bool armed_pebs{};
};
/// A PEBS record was stored.
struct RecordWritten {
  CounterSet counters;         ///< The triggers it stands for.
  GuestLinear at;              ///< Where in the guest's buffer.
  const PebsRecord* record{};  ///< Valid during the call.
};

/// Why a PEBS or BTS record was not stored.
enum class DropReason : std::uint8_t {
  buffer_full,  ///< index + size > absolute maximum (rule F2).
  bad_bounds,   ///< index below base, or an address that wraps or is not canonical (rules F7, F8).
  fault,        ///< A page of the DS area or buffer cannot be accessed (rule F10).
};
/// A PEBS record was not stored.
struct RecordDropped {
  CounterSet counters;
  DropReason reason{};
  AccessFault fault;  ///< Meaningful with DropReason::fault.
};

/// A BTS record was stored.
struct BranchStored {
  GuestLinear at;  ///< Where in the guest's buffer.
  BtsRecord record;
};
/// A BTS record was not stored.
struct BranchDropped {
  DropReason reason{};
  AccessFault fault;  ///< Meaningful with DropReason::fault.
};

/// Why a PMI was asked for.
enum class PmiCause : std::uint8_t { overflow, threshold, bts_threshold };
/// A cause of a PMI. Causes of one boundary join into one request (rule V5).
struct PmiRequested {
  PmiCause cause{};
};

/// One thing that the PMU does.
using TraceEvent =
    std::variant<MsrWritten, Overflowed, RecordWritten, RecordDropped, BranchStored, BranchDropped, PmiRequested>;

/// Receives what the PMU does, as it does it. Must not call back into the PMU.
class TraceSink {
 public:
  /// Called as it happens; pointers in the event are valid during the call.
  virtual void on(const TraceEvent& event) = 0;

 protected:
  ~TraceSink() = default;
};

/// What the PMU has done since construction or restore; never reset by the guest. Nothing is lost silently: what is
/// dropped is counted here.
struct PmuStatistics {
  std::uint64_t overflows{};
  std::uint64_t records_written{};
  std::uint64_t records_dropped_full{};
  std::uint64_t records_dropped_bounds{};
  std::uint64_t records_dropped_fault{};
  std::uint64_t branches_stored{};  ///< BTS records.
  std::uint64_t branches_dropped_full{};
  std::uint64_t branches_dropped_bounds{};
  std::uint64_t branches_dropped_fault{};
  std::uint64_t pmi_requests{};
  /// How often a source delivered events of an armed counter without their instruction; the record is then for a later
  /// one.
  std::uint64_t late_triggers{};
  std::uint64_t msr_writes{};
  std::uint64_t msr_faults{};
};

}  // namespace vpmu
