#pragma once
#include <cstdint>
#include <optional>

#include "vpmu/counter.hpp"
#include "vpmu/env.hpp"
#include "vpmu/generation.hpp"
#include "vpmu/msr.hpp"
#include "vpmu/order.hpp"
#include "vpmu/pebs.hpp"
#include "vpmu/plan.hpp"
#include "vpmu/retirement.hpp"
#include "vpmu/snapshot.hpp"
#include "vpmu/trace.hpp"

/// A virtual CPU's PMU as a pure library: Pmu and Uncore, what feeds them and what they ask of the world around them.
namespace vpmu {

/// The choices that the manual leaves open. The defaults are the documented ones.
struct PmuPolicies {
  std::uint32_t skid_events{0};        ///< Events that pass between overflow and arming (rule P2).
  std::uint32_t load_tag_interval{1};  ///< Mean number of loads per tagged load; 1 tags all (rule L11).
};

/// Upper limits for a guest that gets less than the generation's PMU. The hypervisor must report the same in CPUID.0AH.
/// A field's default sets no limit.
struct PmuLimits {
  std::uint8_t version{0xFF};         ///< CPUID.0AH:EAX[7:0]; 0 leaves no counter.
  std::uint8_t gp_counters{0xFF};     ///< CPUID.0AH:EAX[15:8].
  std::uint8_t fixed_counters{0xFF};  ///< CPUID.0AH:EDX[4:0].
  /// IA32_PERF_CAPABILITIES: one that may_tell_capabilities() allows. FW_WRITE may be more than the generation has.
  std::optional<std::uint64_t> perf_capabilities{};
  bool operator==(const PmuLimits&) const = default;
};

/// How to build a PMU.
struct PmuConfig {
  Generation generation{Generation::skylake};
  bool smt{true};  ///< With SMT siblings in the topology a logical processor has half the counters.
  std::optional<std::uint64_t> misc_enable;  ///< Reset value of IA32_MISC_ENABLE; empty = the generation's.
  std::uint64_t seed{1};                     ///< Of the load tagging generator; same seed, same samples.
  PmuPolicies policies{};
  PmuLimits limits{};
  TraceSink* trace{};  ///< May be null. Must outlive the PMU.
};

struct MsrRow;

/// The result of Pmu::find(), for several calls about one MSR. Empty: the PMU does not know the MSR. A value; valid for
/// the PMU that returned it, and for any other of the same PmuConfig.
class FoundMsr {
 public:
  FoundMsr() = default;
  /// Whether the PMU handles the MSR; an access may still raise #GP.
  [[nodiscard]] bool is_known() const { return row_ != nullptr; }

 private:
  friend class Pmu;
  FoundMsr(const MsrRow& row, std::uint32_t i) : row_{&row}, i_{i} {}
  const MsrRow* row_{};
  std::uint32_t i_{};  ///< Addresses after the row's first one.
};

/// The core PMU of one logical processor: registers, counting rules, PEBS, LBR, BTS. It is given its surroundings on
/// each call and does nothing on its own: no clock, no threads, no allocation after construction, no exceptions.
///
/// An embedder routes RDMSR, WRMSR and RDPMC here, counts what plan() asks for, and reports it: in bulk by settle(), or
/// instruction by instruction by retire(). Before each register access it must settle() what has been counted so far.
class Pmu {
 public:
  /// Starts as after power-up. Allocates nothing, never fails.
  explicit Pmu(const PmuConfig& config);

  /// Looks an MSR up once for several of the calls below. No side effects. Cost: a binary search among 25 kinds; the
  /// overloads that take an index pay it on each call.
  [[nodiscard]] FoundMsr find(MsrIndex index) const;

  /// Guest RDMSR. No side effects (rule: status has no read side effect).
  [[nodiscard]] MsrReadResult rdmsr(const FoundMsr& msr) const;
  [[nodiscard]] MsrReadResult rdmsr(MsrIndex index) const { return rdmsr(find(index)); }  ///< The same, looked up.

  /// Guest WRMSR. Legality first, then the effect. After ok, take_replan() says whether plan() changed.
  MsrStatus wrmsr(const FoundMsr& msr, std::uint64_t value);
  MsrStatus wrmsr(MsrIndex index, std::uint64_t value) { return wrmsr(find(index), value); }  ///< The same, looked up.

  /// What wrmsr() would return; changes nothing. For an embedder that counts instructions: a WRMSR that faults does not
  /// retire.
  [[nodiscard]] MsrStatus check_wrmsr(const FoundMsr& msr, std::uint64_t value) const;
  [[nodiscard]] MsrStatus check_wrmsr(MsrIndex index, std::uint64_t value) const {
    return check_wrmsr(find(index), value);
  }  ///< The same, looked up.

  /// Guest RDPMC: bit 30 of ECX selects the fixed counters. Empty = #GP(0): no such counter, or CPL > 0 with CR4.PCE =
  /// 0. SDM 2B RDPMC.
  [[nodiscard]] std::optional<std::uint64_t> rdpmc(std::uint32_t ecx, unsigned cpl, bool cr4_pce) const;

  /// What to count from now on. Valid until the next call of a non-const member.
  [[nodiscard]] CountPlan plan() const;

  /// Whether plan() may have changed since the last call of take_replan().
  bool take_replan();
  /// What take_replan() would say. Cost: none.
  [[nodiscard]] bool needs_replan() const { return replan_; }

  /// Events that happened without their instructions being known: adds them, with overflow, status, arming, freeze and
  /// PMI.
  void settle(const CountDeltas& deltas, GuestEnv& env);

  /// One retired instruction: counts it, then serves what is due at its boundary in the manual's order. Call at the
  /// boundary, before the next instruction runs and before interrupts are delivered.
  void retire(const Retirement& retired, GuestEnv& env);

  /// The delivery of an interrupt or exception, or a branch where the source does not retire instruction by
  /// instruction: for the LBR and BTS alone (rules Z5, B1).
  void record_branch(const TakenBranch& branch, GuestEnv& env);
  /// Taken branches that passed in bulk at one privilege level, for the LBR and BTS (rules Z5, B1). Where BTS stores
  /// branches of that level, none may be missing, and there may be at most branches_storable().
  void record_branches(const BranchRun& run, GuestEnv& env);
  /// How many taken branches at the level the next record_branches() may have: that many BTS records fit into the
  /// guest's buffer without a fault and without a PMI. Report any further branch by retire(). ~0 where BTS stores none
  /// of that level; 0 at CPL 0, where code may read the area. Cost: reads the area, and probes the pages of the
  /// records.
  [[nodiscard]] std::uint64_t branches_storable(unsigned cpl, GuestEnv& env) const;

  /// #DB is being delivered: DEBUGCTL.LBR and BTF are cleared (rule Z11).
  void on_debug_exception();
  /// An uncore counter overflowed and is routed to this core: GLOBAL_STATUS bit 61 (rule Q7) and a PMI when
  /// DEBUGCTL[13] is set.
  void on_uncore_overflow(GuestEnv& env);

  /// Whether the interrupt of a counter with PEBS waits for its record (rule Q5a).
  [[nodiscard]] bool pmi_waits() const { return state_.pmi_after_assist != 0; }
  /// The processor has halted. Nothing retires until an event wakes it, so an interrupt that waits for its record comes
  /// now (rule Q5a). Cost: none if none waits.
  void halt(GuestEnv& env);

  /// Power-up or RESET: every register to its reset value.
  void reset();
  /// INIT: counters and selects are kept, DEBUGCTL and PEBS_ENABLE are cleared. SDM 3A table 9-1, rule F14.
  void init();

  /// All state, to be restored into a PMU of the same configuration. About 1300 bytes are copied.
  [[nodiscard]] PmuSnapshot snapshot() const;
  /// Takes over a snapshot, and starts new statistics; on any status but ok nothing has changed.
  RestoreStatus restore(const PmuSnapshot& from);

  // What the PMU is, has done, and holds. References live as long as the PMU.

  /// The generation, less what PmuConfig::limits takes away.
  [[nodiscard]] const GenerationDesc& generation() const { return desc_; }
  /// How many general-purpose counters there are: CPUID.0AH:EAX[15:8].
  [[nodiscard]] unsigned gp_counters() const { return gp_counters_; }
  /// IA32_PERF_CAPABILITIES.
  [[nodiscard]] std::uint64_t perf_capabilities() const { return perf_capabilities_; }
  /// What it has done since construction or restore().
  [[nodiscard]] const PmuStatistics& statistics() const { return statistics_; }
  /// What it holds: snapshot() copies it.
  [[nodiscard]] const PmuState& state() const { return state_; }
  /// The counters that count now: enabled by their select and GLOBAL_CTRL, and not frozen.
  [[nodiscard]] CounterSet enabled() const;
  /// The counters that their event select or fixed control enables, whatever GLOBAL_CTRL says: those that software has
  /// set up, running or stopped.
  [[nodiscard]] CounterSet selected() const;

 private:
  friend struct MsrTable;
  friend struct MsrEffects;

  struct Boundary;
  struct StoreOutcome;

  // snapshot.cpp
  [[nodiscard]] bool could_be_mine(const PmuState& s) const;

  // counting.cpp
  [[nodiscard]] bool counts_at(CounterId c, unsigned cpl) const;
  [[nodiscard]] std::uint64_t counter_value(CounterId c) const;
  void set_counter(CounterId c, std::uint64_t value);
  [[nodiscard]] std::uint64_t occurrences(CounterId c, const Retirement& r, bool tagged) const;
  [[nodiscard]] bool is_countable(CounterId c) const;
  [[nodiscard]] bool counts_every_cycle(CounterId c) const;
  [[nodiscard]] std::uint64_t increment_of(CounterId c, const Retirement& r, bool tagged);
  [[nodiscard]] std::uint64_t triggering(CounterId c, const Retirement& r, std::uint64_t counted) const;
  void pass_cycles(CounterId c, std::uint64_t cycles);
  [[nodiscard]] CycleCondition cycle_condition(CounterId c) const;
  void set_cycle_condition(CounterId c, const CycleCondition& is);
  [[nodiscard]] bool load_latency_enabled(CounterId c) const;
  [[nodiscard]] bool is_precise_store(CounterId c) const;
  [[nodiscard]] bool precise_store_enabled(CounterId c) const;
  [[nodiscard]] bool take_load_tag(const Retirement& r);
  [[nodiscard]] bool load_latency_runs() const;
  [[nodiscard]] bool has_own_memory_fields(CounterId c) const;
  [[nodiscard]] bool tags_all_loads() const { return config_.policies.load_tag_interval <= 1; }
  [[nodiscard]] bool selected_frontend(const FrontendOutcome& f) const;
  [[nodiscard]] OffcoreFilter selected_offcore(Counts counts) const;
  [[nodiscard]] std::uint64_t fixed_control(CounterId c) const;
  void decode_event(unsigned gp);

  // overflow.cpp
  [[nodiscard]] bool add(CounterId c, std::uint64_t n);
  void overflow(CounterId c, Boundary& b);
  void freeze();
  void post_pmi(PmiCause cause);
  [[nodiscard]] bool interrupt_enabled(CounterId c) const;
  [[nodiscard]] bool pebs_enabled(CounterId c) const;
  [[nodiscard]] bool is_pdir(CounterId c) const;
  [[nodiscard]] const EventClass& class_of(CounterId c) const;
  void clear_arming(CounterId c);

  // service.cpp
  [[nodiscard]] bool is_trigger(CounterId c, std::uint64_t events);
  [[nodiscard]] bool late_without_instruction(CounterId c, std::uint64_t events);
  void serve(Boundary& b, const Retirement* r, GuestEnv& env);
  void end_waits(Boundary& b);
  void post_waiting(Boundary& b, CounterSet over);
  void request_pmis(const Boundary& b, GuestEnv& env);
  void assist(Boundary& b, const Retirement& r, GuestEnv& env);

  // ds_area.cpp
  [[nodiscard]] StoreOutcome store_record(CounterSet triggers, CounterSet served, PebsRecord record, GuestEnv& env);
  void drop_record(CounterSet triggers, DropReason reason, const AccessFault& fault);

  // lbr.cpp
  [[nodiscard]] bool records_branches() const;
  void push_branch(const TakenBranch& taken);
  [[nodiscard]] LbrFilter lbr_filter() const;

  // bts.cpp
  [[nodiscard]] bool stores_branches() const;
  [[nodiscard]] bool stores_branches_at(unsigned cpl) const;
  struct BranchRoom {
    GuestLinear at;
    std::uint64_t records;
  };
  [[nodiscard]] std::optional<BranchRoom> branch_room(GuestEnv& env) const;
  void store_branches(const BranchRun& run, GuestEnv& env);
  void store_branch(const TakenBranch& branch, Boundary& b, GuestEnv& env);
  void drop_branch(DropReason reason, const AccessFault& fault);

  // pebs_record.cpp
  [[nodiscard]] PebsRecord compose(CounterSet triggers, const Retirement& r) const;
  [[nodiscard]] std::uint64_t record_status(CounterSet served) const;
  void keep_tagged_load(const MemAccess& load);
  [[nodiscard]] GuestLinear trigger_of(CounterSet triggers, const Retirement& r) const;
  void compose_tagged_load(PebsRecord& record) const;
  void compose_memory(PebsRecord& record, CounterSet triggers, const Retirement& r) const;

  void trace(const TraceEvent& event) const {
    if (trace_ != nullptr) trace_->on(event);
  }

  GenerationDesc desc_;
  PmuConfig config_;
  std::uint64_t perf_capabilities_;
  unsigned gp_counters_;
  PmuState state_{};
  /// Decoded selects, kept beside the raw registers so that counting does not decode; the fixed counters' classes never
  /// change.
  std::array<EventSpec, max_gp_counters> spec_{};
  std::array<EventClass, max_counters> class_{};
  bool replan_{true};
  PmuStatistics statistics_{};
  TraceSink* trace_{};
};

}  // namespace vpmu
