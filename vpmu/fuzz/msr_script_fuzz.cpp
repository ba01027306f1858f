#include <cstring>

#include "fuzz_input.hpp"
#include "vpmu/pmu.hpp"

// Random bytes as a script of everything an embedder may call, in any order and with any argument. The state stays one that
// restore() accepts, registers stay within their legal bits, and reading changes nothing.

namespace {

using namespace vpmu;
using fuzz::require;

/// A guest without memory: every record is dropped.
class EmptyGuest final : public GuestEnv {
 public:
  std::uint64_t pmis{};
  AccessResult read_linear(GuestLinear at, std::span<std::byte>) override { return AccessFault{.address = at}; }
  AccessResult write_linear(GuestLinear at, std::span<const std::byte>) override { return AccessFault{.address = at}; }
  AccessResult probe_linear(GuestLinear at, std::uint64_t, AccessKind) override { return AccessFault{.address = at}; }
  std::uint64_t tsc() override { return 0; }
  void request_pmi() override { ++pmis; }
  void inject_page_fault(const AccessFault&) override {}
};

bool same_state(const PmuState& a, const PmuState& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

MsrIndex take_index(fuzz::Input& input, const MsrSpans& spans) {
  const auto choice = input.take<std::uint8_t>();
  if (choice == 0xFF) return MsrIndex{input.take<std::uint32_t>()};
  const auto all = spans.all();
  const MsrSpan& span = all[choice % all.size()];
  return span.first + input.take<std::uint8_t>() % span.count;
}

/// A value of few bits, near a counter's end, or any.
std::uint64_t take_value(fuzz::Input& input) {
  const auto form = input.take<std::uint8_t>();
  switch (form % 4) {
    case 0: return input.take<std::uint16_t>();
    case 1: return low_bits(48) - input.take<std::uint8_t>();
    case 2: return bit(input.take<std::uint8_t>() % 64) | bit(form / 4);
    default: return input.take<std::uint64_t>();
  }
}

Retirement take_retirement(fuzz::Input& input) {
  const auto flags = input.take<std::uint16_t>();
  Retirement r;
  r.ip = GuestLinear{input.take<std::uint16_t>()};
  r.next_ip = r.ip + 2;
  r.cpl = flags & 3;
  r.has_load = (flags & 4) != 0;
  r.has_store = (flags & 8) != 0;
  r.macro_fused = (flags & 16) != 0;
  r.long_mode = (flags & 32) == 0;
  r.load.latency = input.take<std::uint8_t>();
  r.branch = {.kind = static_cast<BranchKind>((flags >> 8) % 8), .taken = (flags & 64) != 0, .mispredicted = (flags & 128) != 0};
  r.cycles = (flags & 0x800) != 0 ? take_value(input) : flags >> 12;
  r.uops = static_cast<std::uint16_t>(flags >> 9);
  return r;
}

void check_plan(const Pmu& pmu) {
  const CountPlan plan = pmu.plan();
  for (const PlanEntry& e : plan.active()) {
    require(e.distance != 0 && e.distance <= bit(48), "an overflow is 1 to 2^48 events away");
    require(!e.armed || e.precise, "only precise counters are armed");
  }
}

void step(fuzz::Input& input, Pmu& pmu, const MsrSpans& spans, EmptyGuest& guest) {
  const PmuState before = pmu.state();
  switch (input.take<std::uint8_t>() % 12) {
    case 0:
    case 1:
    case 2: {
      const MsrIndex index = take_index(input, spans);
      const std::uint64_t value = take_value(input);
      if (pmu.wrmsr(index, value) != MsrStatus::ok) require(same_state(before, pmu.state()), "a refused write changes nothing");
      break;
    }
    case 3:
      (void)pmu.rdmsr(take_index(input, spans));
      (void)pmu.rdpmc(input.take<std::uint32_t>(), input.take<std::uint8_t>() & 3, true);
      check_plan(pmu);
      require(same_state(before, pmu.state()), "reading changes nothing");
      break;
    case 4: {
      CountDeltas deltas;
      for (auto& delta : deltas.value) delta = take_value(input);
      pmu.settle(deltas, guest);
      break;
    }
    case 5: pmu.on_debug_exception(); break;
    case 6: pmu.enter_smm(); break;
    case 7: pmu.leave_smm(); break;
    case 8:
      if (input.take<std::uint8_t>() == 0) pmu.init();
      break;
    case 9: pmu.on_uncore_overflow(guest); break;
    default: pmu.retire(take_retirement(input), guest); break;
  }
}

/// A snapshot of any bytes is taken or refused, and a refusal changes nothing.
void restore_anything(fuzz::Input& input, Pmu& pmu) {
  PmuSnapshot snapshot = pmu.snapshot();
  const auto word = input.take<std::uint16_t>() % (sizeof snapshot / 8);
  const std::uint64_t value = take_value(input);
  std::memcpy(reinterpret_cast<unsigned char*>(&snapshot) + word * 8, &value, 8);
  const PmuState before = pmu.state();
  if (pmu.restore(snapshot) != RestoreStatus::ok) require(same_state(before, pmu.state()), "a refused snapshot changes nothing");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input{data, size};
  const auto flags = input.take<std::uint8_t>();
  const PmuConfig config{.smt = (flags & 1) != 0,
                         .policies = {.reload_scope = (flags & 2) != 0 ? ReloadScope::triggered : ReloadScope::overflowed,
                                      .assist_order = (flags & 4) != 0 ? AssistOrder::strict_defer : AssistOrder::same_boundary,
                                      .skid_events = (flags >> 3) & 3U,
                                      .macro_fusion = (flags & 32) != 0,
                                      .load_tag_interval = (flags >> 6) * 3U}};
  Pmu pmu{config};
  const MsrSpans spans = trap_ranges(pmu.generation());
  EmptyGuest guest;
  std::uint64_t pmis = 0;
  for (unsigned k = 0; k < 400 && !input.empty(); ++k) {
    if (input.take<std::uint8_t>() == 0xFE) {
      restore_anything(input, pmu);
      pmis = guest.pmis - pmu.statistics().pmi_requests;  // a restore starts new statistics
    } else {
      step(input, pmu, spans, guest);
    }
    Pmu copy{config};
    require(copy.restore(pmu.snapshot()) == RestoreStatus::ok, "a reachable state can be restored");
    require(guest.pmis == pmis + pmu.statistics().pmi_requests, "every interrupt is counted");
  }
  require(pmu.statistics().records_written == 0, "no memory, no record");
  return 0;
}
