#include <array>
#include <cstring>

#include "scripted_guest.hpp"
#include "vpmu/pmu.hpp"
#include "vpmu/uncore.hpp"

// Random bytes as a script of everything an embedder may call, in any order and with any argument, on any generation,
// while the guest changes its DS area and which pages exist, and the uncore's clock runs beside it. The state stays one
// that restore() accepts, registers stay within their legal bits, reading changes nothing, every write is one that the
// area allows, every record is written or counted as dropped, and the uncore's clock overflows when it said it would.

namespace {

using namespace vpmu;
using fuzz::require;
using fuzz::ScriptedGuest;

std::uint64_t records_stored = 0;

bool same_state(const PmuState& a, const PmuState& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

MsrIndex take_index(fuzz::Input& input, const MsrSpans& spans) {
  const auto choice = input.take<std::uint8_t>();
  if (choice == 0xFF) return MsrIndex{input.take<std::uint32_t>()};
  const auto all = spans.all();
  const MsrSpan& span = all[choice % all.size()];
  return span.first + input.take<std::uint8_t>() % span.count;
}

/// An address in the guest's RAM, just outside it, or anywhere.
std::uint64_t take_address(fuzz::Input& input) {
  const auto near = input.take<std::uint16_t>();
  switch (near >> 13) {
    case 7: return input.take<std::uint64_t>();
    case 6: return ScriptedGuest::first_page + near % page_size - page_size;
    case 5: return ScriptedGuest::first_page + ScriptedGuest::ram_bytes + near % page_size - page_size / 2;
    default: return ScriptedGuest::first_page + near % ScriptedGuest::ram_bytes;
  }
}

/// A value of few bits, near a counter's end, an address, or any.
std::uint64_t take_value(fuzz::Input& input) {
  const auto form = input.take<std::uint8_t>();
  switch (form % 5) {
    case 0: return input.take<std::uint16_t>();
    case 1: return low_bits(48) - input.take<std::uint8_t>();
    case 2: return bit(input.take<std::uint8_t>() % 64) | bit(form / 4);
    case 3: return take_address(input);
    default: return input.take<std::uint64_t>();
  }
}

MsrStatus write_register(Pmu& pmu, MsrIndex index, std::uint64_t value) {
  const PmuState before = pmu.state();
  const MsrStatus status = pmu.wrmsr(index, value);
  require(status == MsrStatus::ok || same_state(before, pmu.state()), "a refused write changes nothing");
  return status;
}

void write_either(Pmu& pmu, Uncore& uncore, MsrIndex index, std::uint64_t value) {
  const MsrStatus status = write_register(pmu, index, value);
  const std::uint64_t held = uncore.rdmsr(index).value;
  const MsrStatus foreseen = uncore.check_wrmsr(index, value);
  require(status == MsrStatus::unknown || foreseen == MsrStatus::unknown, "no register is of both");
  if (foreseen == MsrStatus::unknown) return;
  require(uncore.wrmsr(index, value) == foreseen, "what a write does is foreseen");
  require(foreseen == MsrStatus::ok || uncore.rdmsr(index).value == held, "a refused write changes nothing");
}

/// The uncore's clock near its overflow, with interrupts and a freeze or without.
void start_clock(fuzz::Input& input, Uncore& uncore, const UncoreClock& clock) {
  const auto flags = input.take<std::uint16_t>();
  const auto cores = std::uint64_t{flags} & low_bits(clock.cores);
  (void)uncore.wrmsr(clock.counter, low_bits(clock.width) - input.take<std::uint16_t>());
  (void)uncore.wrmsr(clock.control, clock.enable | ((flags & 0x100) != 0 ? clock.interrupt : 0));
  (void)uncore.wrmsr(clock.global_ctrl,
                     clock.global_enable | cores << clock.cores_shift | ((flags & 0x200) != 0 ? clock.freeze : 0));
}

/// Lets time pass in the uncore: to an overflow and not before it, or for any time.
void run_uncore(fuzz::Input& input, Uncore& uncore, Pmu& pmu, ScriptedGuest& guest) {
  const auto due = uncore.until_overflow();
  const auto how = input.take<std::uint8_t>();
  if (how % 4 == 1) {
    start_clock(input, uncore, pmu.generation().uncore->clock);
  } else if (how % 4 == 0) {
    if (uncore.advance(take_value(input)) != 0) pmu.on_uncore_overflow(guest);
  } else if (due) {
    require(*due > 0 && uncore.advance(*due - 1) == 0, "an overflow does not come before it is due");
    require(uncore.advance(1) != 0, "an overflow comes when it is due");
    pmu.on_uncore_overflow(guest);
  }
}

/// One half of the DS area: a buffer of up to 255 quadwords.
void place_buffer(fuzz::Input& input, std::uint64_t half, ScriptedGuest& guest) {
  const std::uint64_t base = take_address(input);
  const std::uint64_t index = base + BtsRecord::size * (input.take<std::uint8_t>() % 4U);
  guest.poke(half, base);
  guest.poke(half + 8, index);
  guest.poke(half + 16, base + 8ULL * input.take<std::uint8_t>());
  guest.poke(half + 24, base + 8ULL * input.take<std::uint8_t>());
}

/// What a driver would do: events of the generation close to their overflow, PEBS and BTS on.
void start_session(fuzz::Input& input, Pmu& pmu, ScriptedGuest& guest) {
  constexpr std::array<std::uint64_t, 2> precise_cycles{0x1080'00C0, 0x1080'01C2};  // rule P18
  const auto events = pmu.generation().events;
  for (std::uint32_t i = 0; i < pmu.generation().pebs_counters; ++i) {
    const EventDesc& e = events[input.take<std::uint16_t>() % events.size()];
    const auto flags = input.take<std::uint8_t>();
    const std::uint64_t event =
        (flags & 2) != 0 ? precise_cycles[flags >> 2 & 1U] : std::uint64_t{e.umask} << 8 | e.code;
    write_register(pmu, msr::IA32_PERFEVTSEL0 + i, 0x43'0000 | (std::uint64_t{flags & 1U} << 20) | event);
    write_register(pmu, msr::IA32_PMC0 + i, 0xFFFF'FFFF - (flags >> 5));
  }
  write_register(pmu, msr::IA32_PEBS_ENABLE, input.take<std::uint8_t>() & 0xF);
  constexpr std::uint64_t tr_and_bts = 0xC0;
  write_register(pmu, msr::IA32_DEBUGCTL, (input.take<std::uint16_t>() & 0x7FC3) | tr_and_bts);
  write_register(pmu, msr::IA32_DS_AREA, take_address(input));
  place_buffer(input, pmu.state().ds_area, guest);
  place_buffer(input, pmu.state().ds_area + DsArea::pebs_offset, guest);
  write_register(pmu, msr::IA32_PERF_GLOBAL_CTRL, 0x7'0000'000F);
}

/// The guest stores into its DS area, or changes its pages.
void disturb_memory(fuzz::Input& input, const Pmu& pmu, ScriptedGuest& guest) {
  const auto what = input.take<std::uint8_t>();
  if (what < 0x20) {
    guest.missing = input.take<std::uint8_t>() & input.take<std::uint8_t>();
    guest.read_only = input.take<std::uint8_t>() & input.take<std::uint8_t>();
  } else if (what < 0x80) {
    guest.poke(pmu.state().ds_area + 8 * (what % 16U), take_address(input));
  } else {
    place_buffer(input, pmu.state().ds_area + ((what & 1) != 0 ? DsArea::pebs_offset : 0), guest);
  }
}

/// Whether a branch taken at `cpl` is one for BTS, by the manual's words.
bool is_traced(const Pmu& pmu, unsigned cpl) {
  const PmuState& s = pmu.state();
  constexpr std::uint64_t tr_and_bts = 0xC0;
  const bool off = (s.debugctl & bit(cpl == 0 ? 9 : 10)) != 0;
  return (s.debugctl & tr_and_bts) == tr_and_bts && !off && (s.misc_enable & bit(11)) == 0;
}

/// What the PMU says that it stored or dropped between two calls, against what the guest's memory saw.
void check_records(const PmuStatistics& before, const PmuStatistics& after, const ScriptedGuest& guest, bool traced) {
  const auto bts_dropped = [](const PmuStatistics& s) {
    return s.branches_dropped_full + s.branches_dropped_bounds + s.branches_dropped_fault;
  };
  const auto pebs_dropped = [](const PmuStatistics& s) {
    return s.records_dropped_full + s.records_dropped_bounds + s.records_dropped_fault;
  };
  const std::uint64_t branches =
      after.branches_stored - before.branches_stored + bts_dropped(after) - bts_dropped(before);
  require(branches == (traced ? 1 : 0), "each branch is stored or counted as dropped");
  require(after.records_written - before.records_written + pebs_dropped(after) - pebs_dropped(before) <= 1,
          "one assist for each instruction");
  require(guest.pebs_records == after.records_written && guest.bts_records == after.branches_stored,
          "what is counted as written was written");
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
  r.branch_offset = r.macro_fused ? 2 : 0;
  r.long_mode = (flags & 32) == 0;
  r.load.latency = input.take<std::uint8_t>();
  r.branch = {.kind = static_cast<BranchKind>((flags >> 8) % 8),
              .taken = (flags & 64) != 0,
              .mispredicted = (flags & 128) != 0};
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

void retire(fuzz::Input& input, Pmu& pmu, ScriptedGuest& guest) {
  guest.fail_writes = input.take<std::uint8_t>() == 0xFF;
  const Retirement r = take_retirement(input);
  const bool traced = r.branch.taken && r.branch.kind != BranchKind::none && is_traced(pmu, r.cpl);
  const PmuStatistics before = pmu.statistics();
  pmu.retire(r, guest);
  check_records(before, pmu.statistics(), guest, traced);
}

void deliver(fuzz::Input& input, Pmu& pmu, ScriptedGuest& guest) {
  const auto cpl = static_cast<std::uint8_t>(input.take<std::uint8_t>() & 3U);
  const GuestLinear from{input.take<std::uint16_t>()};
  const bool traced = is_traced(pmu, cpl);
  const PmuStatistics before = pmu.statistics();
  pmu.record_branch({.from = from, .to = from + 16, .cpl = cpl, .what = {.kind = BranchKind::far, .taken = true}},
                    guest);
  check_records(before, pmu.statistics(), guest, traced);
}

void step(fuzz::Input& input, Pmu& pmu, Uncore& uncore, const MsrSpans& spans, ScriptedGuest& guest) {
  const PmuState before = pmu.state();
  guest.begin_call();
  guest.fail_writes = false;
  switch (input.take<std::uint8_t>() % 16) {
    case 0:
    case 1:
    case 2: {
      const MsrIndex index = take_index(input, spans);
      write_either(pmu, uncore, index, take_value(input));
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
    case 6:
    case 7: break;
    case 8:
      if (input.take<std::uint8_t>() == 0) pmu.init();
      break;
    case 9: run_uncore(input, uncore, pmu, guest); break;
    case 10: start_session(input, pmu, guest); break;
    case 11: disturb_memory(input, pmu, guest); break;
    case 12: deliver(input, pmu, guest); break;
    case 13:
      pmu.halt(guest);
      require(!pmu.pmi_waits(), "no interrupt waits through a halt");
      break;
    default: retire(input, pmu, guest); break;
  }
}

/// A snapshot of any bytes is taken or refused, and a refusal changes nothing.
void restore_anything(fuzz::Input& input, Pmu& pmu) {
  PmuSnapshot snapshot = pmu.snapshot();
  const auto word = input.take<std::uint16_t>() % (sizeof snapshot / 8);
  const std::uint64_t value = take_value(input);
  std::memcpy(reinterpret_cast<unsigned char*>(&snapshot) + word * 8, &value, 8);
  const PmuState before = pmu.state();
  if (pmu.restore(snapshot) != RestoreStatus::ok)
    require(same_state(before, pmu.state()), "a refused snapshot changes nothing");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" std::uint64_t fuzz_work();

extern "C" std::uint64_t fuzz_work() { return records_stored; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input{data, size};
  const auto generations = all_generations();
  const GenerationDesc* const generation = generations[input.take<std::uint8_t>() % generations.size()];
  const auto flags = input.take<std::uint16_t>();
  const PmuConfig config{.generation = generation->generation,
                         .smt = (flags & 1) != 0,
                         .policies = {.skid_events = (flags >> 3) & 3U, .load_tag_interval = ((flags >> 6) & 3U) * 3U}};
  Pmu pmu{config};
  const MsrSpans spans = trap_ranges(pmu.generation());
  Uncore uncore{*pmu.generation().uncore};
  ScriptedGuest guest{pmu};
  std::uint64_t pmis = 0;
  if ((flags & 0x200) != 0) start_session(input, pmu, guest);
  for (unsigned k = 0; k < 400 && !input.empty(); ++k) {
    if (input.take<std::uint8_t>() == 0xFE) {
      restore_anything(input, pmu);
      const PmuStatistics& now = pmu.statistics();  // a restore starts new statistics
      pmis = guest.pmis - now.pmi_requests;
      guest.pebs_records = now.records_written;
      guest.bts_records = now.branches_stored;
    } else {
      const std::uint64_t stored = guest.pebs_records + guest.bts_records;
      step(input, pmu, uncore, spans, guest);
      records_stored += guest.pebs_records + guest.bts_records - stored;
    }
    Pmu copy{config};
    require(copy.restore(pmu.snapshot()) == RestoreStatus::ok, "a reachable state can be restored");
    require(guest.pmis == pmis + pmu.statistics().pmi_requests, "every interrupt is counted");
  }
  return 0;
}
