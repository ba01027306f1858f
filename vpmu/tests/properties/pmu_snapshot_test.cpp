#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstring>
#include <ostream>
#include <vector>

#include "pebs_session.hpp"

// Random sessions: whatever the guest and its instructions do, the state stays one that WRMSR could have made, and a
// PMU restored from a snapshot behaves exactly as the original.

namespace vpmu::test {
namespace {

struct Operation {
  enum class Kind : std::uint8_t {
    write = 0,
    load = 1,
    store = 2,
    branch = 3,
    other_level = 4,
    settle = 5,
    debug_exception = 6,
    last = debug_exception
  };
  Kind kind{};
  unsigned choice{};
  std::uint64_t value{};
};
std::ostream& operator<<(std::ostream& out, const Operation& o) {
  return out << "{kind " << unsigned(o.kind) << ", choice " << o.choice << ", value " << std::hex << o.value << std::dec
             << "}";
}

/// Writes that keep a session going, and some that do not.
struct Setting {
  MsrIndex index;
  std::uint64_t value;
};
constexpr Setting settings[] = {
    {msr::IA32_PERFEVTSEL0, loads.raw()},
    {msr::IA32_PERFEVTSEL0, with_interrupt(loads).raw()},
    {msr::IA32_PERFEVTSEL0 + 1, precise_distribution.raw()},
    {msr::IA32_PERFEVTSEL0 + 1, with_interrupt(stores).raw()},
    {msr::IA32_PERFEVTSEL0 + 2, cycles_p.raw()},
    {msr::IA32_PERFEVTSEL0 + 2, Select{.event = 0xC2, .umask = 0x02, .cmask = 2, .edge = true}.raw()},
    {msr::IA32_PERFEVTSEL0 + 3, load_latency.raw()},
    {msr::IA32_A_PMC0, minus(2)},
    {msr::IA32_A_PMC0 + 1, minus(3)},
    {msr::IA32_A_PMC0 + 2, minus(5)},
    {msr::IA32_A_PMC0 + 3, minus(1)},
    {msr::IA32_PEBS_ENABLE, 0xF'0000'000F},
    {msr::IA32_PEBS_ENABLE, 0x5},
    {msr::IA32_FIXED_CTR_CTRL, 0xBBB},
    {msr::IA32_FIXED_CTR0 + 1, minus(9)},
    {msr::IA32_PERF_GLOBAL_CTRL, PebsSession::all_counters},
    {msr::IA32_PERF_GLOBAL_OVF_CTRL, 0xEC00'0007'0000'000F},
    {msr::IA32_PERF_GLOBAL_STATUS_SET, bit(33)},
    {msr::IA32_DEBUGCTL, 0x5801},
    {msr::IA32_DEBUGCTL, 0x1},
    {msr::MSR_LBR_SELECT, 0x3C4},
    {msr::IA32_DS_AREA, PebsSession::ds_area.value()},
    {msr::IA32_DS_AREA, 0},
};

rc::Gen<Operation> any_operation() {
  return rc::gen::exec([] {
    using Kind = Operation::Kind;
    const Kind kind = *rc::gen::weightedElement<Kind>({{6, Kind::write},
                                                       {8, Kind::load},
                                                       {4, Kind::store},
                                                       {3, Kind::branch},
                                                       {2, Kind::other_level},
                                                       {2, Kind::settle},
                                                       {1, Kind::debug_exception}});
    return Operation{kind, *rc::gen::inRange(0U, unsigned{std::size(settings)}),
                     *rc::gen::inRange<std::uint64_t>(0, 12)};
  });
}

void apply(PebsSession& s, const Operation& o, unsigned k) {
  using Kind = Operation::Kind;
  Retirement r = o.kind == Kind::store ? s.store(k) : s.load(k);
  r.cycles = o.value % 4;
  switch (o.kind) {
    case Kind::write: s.write(settings[o.choice].index, settings[o.choice].value); return;
    case Kind::load:
      r.load.latency = static_cast<std::uint16_t>(o.value * 10);
      r.branch_offset = o.value == 3 ? 2 : 0;
      break;
    case Kind::store: break;
    case Kind::branch:
      r.branch = {
          .kind = static_cast<BranchKind>(1 + o.choice % 7), .taken = o.value != 0, .mispredicted = o.value > 6};
      break;
    case Kind::other_level: r.cpl = 3; break;
    case Kind::settle: {
      CountDeltas deltas;
      for (auto& delta : deltas.value) delta = o.value;
      s.pmu.settle(deltas, s.env);
      return;
    }
    case Kind::debug_exception: s.pmu.on_debug_exception(); return;
  }
  s.retire(r);
}

PmuConfig any_config() {
  PmuConfig config;
  config.seed = *rc::gen::inRange<std::uint64_t>(0, 4);
  config.policies = {.skid_events = *rc::gen::inRange(0U, 3U), .load_tag_interval = *rc::gen::inRange(0U, 4U)};
  return config;
}

void start(PebsSession& s) {
  s.set_ds({.absolute_maximum = PebsSession::buffer + 12 * PebsSession::size,
            .interrupt_threshold = PebsSession::buffer + 3 * PebsSession::size,
            .counter_reset = {minus(2), minus(3), minus(4), minus(1)}});
  s.write(msr::IA32_PEBS_ENABLE, 0x8'0000'000F);
  s.write(msr::MSR_PEBS_LD_LAT_THRESHOLD, 20);
}

bool same(const PmuSnapshot& a, const PmuSnapshot& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

RC_GTEST_PROP(SessionProperty, RestoredPmuGoesOnExactlyAsTheOriginal, ()) {
  const PmuConfig config = any_config();
  const auto before = *rc::gen::container<std::vector<Operation>>(any_operation());
  const auto after = *rc::gen::container<std::vector<Operation>>(any_operation());
  PebsSession original{config};
  start(original);
  unsigned k = 0;
  for (const Operation& o : before) apply(original, o, ++k);

  PebsSession copy{config};
  copy.env = original.env;
  RC_ASSERT(copy.pmu.restore(original.pmu.snapshot()) == RestoreStatus::ok);
  RC_ASSERT(same(copy.pmu.snapshot(), original.pmu.snapshot()));
  for (const Operation& o : after) {
    ++k;
    apply(original, o, k);
    apply(copy, o, k);
  }
  RC_CLASSIFY(original.statistics().records_written > 0, "records");
  RC_ASSERT(same(copy.pmu.snapshot(), original.pmu.snapshot()));
  RC_ASSERT(copy.env.log == original.env.log);
}

RC_GTEST_PROP(SessionProperty, StateStaysWhatAGuestCouldSee, ()) {
  const PmuConfig config = any_config();
  const auto script = *rc::gen::container<std::vector<Operation>>(any_operation());
  PebsSession s{config};
  start(s);
  unsigned k = 0;
  for (const Operation& o : script) {
    apply(s, o, ++k);
    RC_ASSERT((s.status() & ~0xEC00'0007'0000'000FULL) == 0U);
    for (unsigned i = 0; i < 4; ++i) RC_ASSERT(s.pmc(i) < bit(48));
    const std::uint64_t index = s.index().value();
    RC_ASSERT(index >= PebsSession::buffer.value() && index <= (PebsSession::buffer + 12 * PebsSession::size).value());
    RC_ASSERT((index - PebsSession::buffer.value()) % PebsSession::size == 0U);
    RC_ASSERT(s.records() == s.statistics().records_written);
    RC_ASSERT(s.env.pmis == s.statistics().pmi_requests);
    Pmu other{config};
    RC_ASSERT(other.restore(s.pmu.snapshot()) == RestoreStatus::ok);
  }
}

}  // namespace
}  // namespace vpmu::test
