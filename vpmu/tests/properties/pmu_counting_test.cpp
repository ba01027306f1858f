#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <ostream>
#include <vector>

#include "pebs_session.hpp"

// Rule C4 against a model that lists every cycle, with its events and the privilege level to which its end is
// attributed.

namespace vpmu::test {
namespace {

struct Instruction {
  std::uint64_t cycles{};
  std::uint16_t uops{};
  std::uint8_t cpl{};
};
std::ostream& operator<<(std::ostream& out, const Instruction& i) {
  return out << "{cycles " << i.cycles << ", uops " << i.uops << ", cpl " << unsigned{i.cpl} << "}";
}

bool counts_at(const Select& s, std::uint8_t cpl) { return cpl == 0 ? s.os : s.usr; }

/// Counts as the manual says, the slow way.
std::uint64_t naive_count(const Select& s, const std::vector<Instruction>& stream) {
  struct Cycle {
    std::uint64_t events{};
    bool ended{};
    bool counted_level{};  ///< The end was attributed to a level that counts.
  };
  std::vector<Cycle> cycles(1);
  std::uint64_t events = 0;
  for (const Instruction& i : stream) {
    for (std::uint64_t n = 0; n < i.cycles; ++n) {
      cycles.back().ended = true;
      cycles.back().counted_level = counts_at(s, i.cpl);
      cycles.emplace_back();
    }
    if (!counts_at(s, i.cpl)) continue;
    cycles.back().events += i.uops;
    events += i.uops;
  }
  if (s.cmask == 0 && !s.edge) return events;

  const std::uint64_t threshold = s.cmask == 0 ? 1 : s.cmask;
  const bool inverted = s.inv && s.cmask != 0;
  std::uint64_t count = 0;
  bool before = false;
  for (const Cycle& c : cycles) {
    const bool holds = inverted ? c.ended && c.counted_level && c.events < threshold : c.events >= threshold;
    if (holds && !(s.edge && before)) ++count;
    before = holds;
  }
  return count;
}

rc::Gen<Instruction> any_instruction() {
  return rc::gen::construct<Instruction>(rc::gen::weightedElement<std::uint64_t>({{4, 0}, {4, 1}, {1, 2}, {1, 5}}),
                                         rc::gen::inRange<std::uint16_t>(0, 5),
                                         rc::gen::weightedElement<std::uint8_t>({{3, 0}, {3, 3}}));
}
rc::Gen<Select> any_form() {
  return rc::gen::exec([] {
    Select s{.event = 0xC2, .umask = 0x02};
    s.cmask = *rc::gen::inRange<std::uint8_t>(0, 8);
    s.inv = *rc::gen::arbitrary<bool>();
    s.edge = *rc::gen::arbitrary<bool>();
    s.usr = *rc::gen::weightedElement<bool>({{4, true}, {1, false}});
    s.os = *rc::gen::weightedElement<bool>({{2, true}, {1, false}});
    return s;
  });
}

RC_GTEST_PROP(CounterMaskProperty, AgreesWithCountingEveryCycle, ()) {
  const Select form = *any_form();
  const auto stream = *rc::gen::container<std::vector<Instruction>>(any_instruction());
  PebsSession s;
  s.write(msr::IA32_PERFEVTSEL0, form.raw());
  for (const Instruction& i : stream) s.retire({.cpl = i.cpl, .uops = i.uops, .cycles = i.cycles});
  RC_CLASSIFY(s.pmc(0) > 0, "counted something");
  RC_ASSERT(s.pmc(0) == naive_count(form, stream));
}

// Rules C1, C2: without mask and edge a counter is the sum of the events at its levels, however they are delivered.
RC_GTEST_PROP(CountingProperty, BulkAndSingleDeliveryAgree, ()) {
  const auto stream = *rc::gen::container<std::vector<Instruction>>(any_instruction());
  Select form{.event = 0xC2, .umask = 0x02};
  form.os = *rc::gen::arbitrary<bool>();
  const auto start = *rc::gen::inRange<std::uint64_t>(1, 40);
  PebsSession single;
  PebsSession bulk;
  for (PebsSession* s : {&single, &bulk}) s->start(0, form, start);
  CountDeltas total;
  for (const Instruction& i : stream) {
    single.retire({.cpl = i.cpl, .uops = i.uops, .cycles = i.cycles});
    if (counts_at(form, i.cpl)) total[CounterId::gp(0)] += i.uops;
  }
  bulk.pmu.settle(total, bulk.env);
  RC_ASSERT(single.pmc(0) == bulk.pmc(0));
  RC_ASSERT(single.status() == bulk.status());
}

// Rule P1 for any period and any mix of instructions: record k is for event k * (P + 1).
RC_GTEST_PROP(PebsPeriodProperty, RecordKIsForEventKTimesPeriodPlusOne, ()) {
  const auto period = *rc::gen::inRange(1U, 12U);
  const auto kinds = *rc::gen::container<std::vector<bool>>(rc::gen::arbitrary<bool>());
  PebsSession s;
  s.start_pebs(0, loads, period);
  std::vector<std::uint64_t> expected;
  unsigned events = 0;
  for (unsigned k = 0; k < kinds.size(); ++k) {
    s.retire(kinds[k] ? s.load(k) : s.plain(k));
    events += kinds[k] ? 1 : 0;
    if (kinds[k] && events % (period + 1) == 0) expected.push_back(PebsSession::a(k).value());
  }
  RC_CLASSIFY(expected.size() > 1, "several records");
  RC_ASSERT(s.records() == expected.size());
  for (unsigned n = 0; n < expected.size(); ++n) RC_ASSERT(s.eventing_ip(n) == expected[n]);
}

}  // namespace
}  // namespace vpmu::test
