#include "perf/host_events.hpp"

#include <cpuid.h>
#include <linux/perf_event.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "model/model.hpp"
#include "vpmu/counts.hpp"

namespace vmm {
namespace {

using vpmu::Counts;
using Match = EventTranslation::Match;

struct EventRow {
  Counts counts;
  HostEvent event;
  std::string_view name;
};

constexpr HostEvent raw(std::uint64_t config) { return {PERF_TYPE_RAW, config}; }
/// The TSC's clock while not halted: only a fixed counter counts it, which has no code. The bus clock is a fraction of
/// it.
constexpr HostEvent reference_cycles{PERF_TYPE_HARDWARE, PERF_COUNT_HW_REF_CPU_CYCLES};

/// SDM 3B table 18-1.
constexpr std::array architectural_events{EventRow{Counts::cycles, raw(0x003C), "UnHalted Core Cycles"},
                                          EventRow{Counts::instructions, raw(0x00C0), "Instruction Retired"},
                                          EventRow{Counts::llc_references, raw(0x4F2E), "LLC Reference"},
                                          EventRow{Counts::llc_misses, raw(0x412E), "LLC Misses"},
                                          EventRow{Counts::branches, raw(0x00C4), "Branch Instruction Retired"},
                                          EventRow{Counts::mispredicts, raw(0x00C5), "Branch Misses Retired"},
                                          EventRow{Counts::ref_cycles, reference_cycles, "UnHalted Reference Cycles"},
                                          EventRow{Counts::bus_cycles, reference_cycles, "UnHalted Reference Cycles"}};

/// Of AMD's Processor Programming References. Branches there count exceptions and interrupts, too; reference cycles
/// have no event, so core cycles are counted instead.
constexpr std::array amd_events{EventRow{Counts::instructions, raw(0xC0), "ex_ret_instr"},
                                EventRow{Counts::uops_retired, raw(0xC1), "ex_ret_ops"},
                                EventRow{Counts::slots_retired, raw(0xC1), "ex_ret_ops"},
                                EventRow{Counts::branches, raw(0xC2), "ex_ret_brn"},
                                EventRow{Counts::mispredicts, raw(0xC3), "ex_ret_brn_misp"},
                                EventRow{Counts::branches_taken, raw(0xC4), "ex_ret_brn_tkn"},
                                EventRow{Counts::mispredicts_taken, raw(0xC5), "ex_ret_brn_tkn_misp"},
                                EventRow{Counts::branches_far, raw(0xC6), "ex_ret_brn_far"},
                                EventRow{Counts::branches_return, raw(0xC8), "ex_ret_near_ret"},
                                EventRow{Counts::mispredicts_return, raw(0xC9), "ex_ret_near_ret_mispred"},
                                EventRow{Counts::cycles, raw(0x76), "ls_not_halted_cyc"},
                                EventRow{Counts::ref_cycles, raw(0x76), "ls_not_halted_cyc"},
                                EventRow{Counts::bus_cycles, raw(0x76), "ls_not_halted_cyc"}};

template <std::size_t n>
const EventRow* find(const std::array<EventRow, n>& rows, Counts counts) {
  const auto found = std::ranges::find(rows, counts, &EventRow::counts);
  return found == rows.end() ? nullptr : &*found;
}

constexpr EventTranslation no_event(std::string_view why) { return {.match = Match::none, .about = why}; }

/// PERFEVTSEL as perf's raw config. Perf itself sets the bits that are left out, or no guest here uses them.
std::uint64_t raw_config(const vpmu::EventSpec& s) {
  return s.code | (std::uint64_t{s.umask} << 8) | (s.edge ? vpmu::bit(18) : 0) | (s.inv ? vpmu::bit(23) : 0) |
         (std::uint64_t{s.cmask} << 24);
}

/// The plain event of that meaning in a generation's table. Of several, the first whose PEBS ability is undisputed,
/// else the last: of Skylake's events of retired uops Intel lists only that one.
const vpmu::EventDesc* find_plain(const vpmu::GenerationDesc& generation, Counts counts) {
  if (counts == Counts::unmodelled) return nullptr;
  const vpmu::EventDesc* found = nullptr;
  for (const vpmu::EventDesc& e : generation.events) {
    const bool plain = e.code != 0 && e.cmask == 0 && !e.inv && !e.edge && !e.any && e.msr_index == 0;
    if (!plain || e.counts != counts || (e.counters & 0xF) != 0xF || e.pebs == vpmu::PebsAbility::only) continue;
    found = &e;
    if (e.pebs != vpmu::PebsAbility::disputed) break;
  }
  return found;
}

/// What counts the same accesses in the other unit, instructions or micro-operations; else `unmodelled`.
Counts in_the_other_unit(Counts counts) {
  constexpr std::array pairs{std::pair{Counts::loads, Counts::load_uops},
                             std::pair{Counts::stores, Counts::store_uops}};
  for (const auto& [instructions, uops] : pairs) {
    if (counts == instructions) return uops;
    if (counts == uops) return instructions;
  }
  return Counts::unmodelled;
}

/// The host's clock as the guest's bus clock.
EventTranslation bus_clock_of(const vpmu::GenerationDesc& guest, EventTranslation clock) {
  clock.of_tsc = guest.bus_clock;
  clock.about = "reference cycles, scaled to the bus clock,";
  return clock;
}

EventTranslation on_intel(const HostCpu& host, const vpmu::GenerationDesc& guest, const GuestEvent& wanted) {
  const bool is_clock = wanted.counts == Counts::ref_cycles;
  if (host.generation == guest.generation && !wanted.fixed && (!is_clock || wanted.per_cycle))
    return {.match = Match::same, .event = raw(raw_config(wanted.spec)), .about = "the guest's own code"};
  if (wanted.per_cycle) return no_event("a form with CMASK, INV or EDGE means what it does on its own model only");
  if (const EventRow* row = find(architectural_events, wanted.counts)) {
    const EventTranslation found{.match = Match::same, .event = row->event, .about = row->name};
    return wanted.counts == Counts::bus_cycles ? bus_clock_of(guest, found) : found;
  }
  if (host.generation) {
    const vpmu::GenerationDesc& own = vpmu::describe(*host.generation);
    // Another pipeline has other ports, queues and decoders.
    const Match match = vpmu::only_pipeline_tells(wanted.counts) ? Match::nearest : Match::same;
    if (const vpmu::EventDesc* e = find_plain(own, wanted.counts))
      return {.match = match, .event = raw(e->code | (std::uint64_t{e->umask} << 8)), .about = e->name};
    if (const vpmu::EventDesc* e = find_plain(own, in_the_other_unit(wanted.counts)))
      return {.match = Match::nearest, .event = raw(e->code | (std::uint64_t{e->umask} << 8)), .about = e->name};
  }
  return no_event("no architectural event");
}

EventTranslation on_amd(const vpmu::GenerationDesc& guest, const GuestEvent& wanted) {
  if (wanted.per_cycle) return no_event("a form with CMASK, INV or EDGE means what it does on its own model only");
  if (const EventRow* row = find(amd_events, wanted.counts)) {
    const EventTranslation found{.match = Match::nearest, .event = row->event, .about = row->name};
    return wanted.counts == Counts::bus_cycles ? bus_clock_of(guest, found) : found;
  }
  return no_event("no event of AMD's comes near");
}

}  // namespace

HostCpu host_cpu(std::string_view vendor, std::uint32_t signature) {
  if (vendor == "AuthenticAMD" || vendor == "HygonGenuine") return {.vendor = HostVendor::amd, .generation = {}};
  if (vendor != "GenuineIntel") return {};
  constexpr std::uint32_t family_and_model = 0x0FFF'0FF0;
  HostCpu cpu{.vendor = HostVendor::intel, .generation = {}};
  for (const MachineModel& m : all_machine_models())
    if (((m.signature ^ signature) & family_and_model) == 0) cpu.generation = m.generation;
  return cpu;
}

HostCpu this_host_cpu() {
  unsigned eax = 0;
  std::array<unsigned, 3> name{};  // EBX, EDX, ECX
  if (__get_cpuid(0, &eax, name.data(), &name[2], &name[1]) == 0) return {};
  std::array<char, sizeof name> vendor{};
  std::memcpy(vendor.data(), name.data(), sizeof name);
  unsigned signature = 0;
  __get_cpuid(1, &signature, name.data(), &name[2], &name[1]);
  return host_cpu({vendor.data(), vendor.size()}, signature);
}

EventTranslation translate(const HostCpu& host, const vpmu::GenerationDesc& guest, const GuestEvent& wanted) {
  if (wanted.counts == Counts::never) return no_event("cannot happen in a guest");
  if (wanted.counts == Counts::load_latency) return no_event("each load's latency decides");
  if (wanted.counts == Counts::frontend || wanted.counts == Counts::offcore || wanted.counts == Counts::offcore_1)
    return no_event("a second MSR selects what counts");
  if (wanted.spec.any) return no_event("counts both threads of a core");
  switch (host.vendor) {
    case HostVendor::intel: return on_intel(host, guest, wanted);
    case HostVendor::amd: return on_amd(guest, wanted);
    case HostVendor::other: break;
  }
  return no_event("the events of this host's CPU are not known");
}

}  // namespace vmm
