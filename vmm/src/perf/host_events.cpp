#include "perf/host_events.hpp"

#include <cpuid.h>
#include <linux/perf_event.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "model/model.hpp"

namespace vmm {
namespace {

using vpmu::Counts;
using Match = EventTranslation::Match;

struct Row {
  Counts counts;
  HostEvent event;
  std::string_view name;
};

constexpr HostEvent raw(std::uint64_t config) { return {PERF_TYPE_RAW, config}; }
/// The TSC's clock while not halted: only a fixed counter counts it, which has no code. CPUID.15H tells guests from
/// Skylake on that their crystal clock runs at the TSC's rate, so this event counts that clock, too; the bus clock of
/// older models is a fraction of it.
constexpr HostEvent reference_cycles{PERF_TYPE_HARDWARE, PERF_COUNT_HW_REF_CPU_CYCLES};

/// SDM 3B table 18-1.
constexpr std::array architectural{Row{Counts::cycles, raw(0x003C), "UnHalted Core Cycles"},
                                   Row{Counts::instructions, raw(0x00C0), "Instruction Retired"},
                                   Row{Counts::llc_references, raw(0x4F2E), "LLC Reference"},
                                   Row{Counts::llc_misses, raw(0x412E), "LLC Misses"},
                                   Row{Counts::branches, raw(0x00C4), "Branch Instruction Retired"},
                                   Row{Counts::mispredicts, raw(0x00C5), "Branch Misses Retired"},
                                   Row{Counts::ref_cycles, reference_cycles, "UnHalted Reference Cycles"},
                                   Row{Counts::bus_cycles, reference_cycles, "UnHalted Reference Cycles"}};

/// Of AMD's Processor Programming References. Branches there count exceptions and interrupts, too; reference cycles
/// have no event, so core cycles are counted instead.
constexpr std::array amd_events{Row{Counts::instructions, raw(0xC0), "ex_ret_instr"},
                                Row{Counts::uops_retired, raw(0xC1), "ex_ret_ops"},
                                Row{Counts::branches, raw(0xC2), "ex_ret_brn"},
                                Row{Counts::mispredicts, raw(0xC3), "ex_ret_brn_misp"},
                                Row{Counts::branches_taken, raw(0xC4), "ex_ret_brn_tkn"},
                                Row{Counts::mispredicts_taken, raw(0xC5), "ex_ret_brn_tkn_misp"},
                                Row{Counts::branches_far, raw(0xC6), "ex_ret_brn_far"},
                                Row{Counts::branches_return, raw(0xC8), "ex_ret_near_ret"},
                                Row{Counts::mispredicts_return, raw(0xC9), "ex_ret_near_ret_mispred"},
                                Row{Counts::cycles, raw(0x76), "ls_not_halted_cyc"},
                                Row{Counts::ref_cycles, raw(0x76), "ls_not_halted_cyc"},
                                Row{Counts::bus_cycles, raw(0x76), "ls_not_halted_cyc"}};

template <std::size_t n>
const Row* find(const std::array<Row, n>& rows, Counts counts) {
  const auto found = std::ranges::find(rows, counts, &Row::counts);
  return found == rows.end() ? nullptr : &*found;
}

constexpr EventTranslation none(std::string_view why) { return {.match = Match::none, .about = why}; }

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

/// The host's clock as the guest's bus clock.
EventTranslation bus_clock_of(const vpmu::GenerationDesc& guest, EventTranslation clock) {
  clock.of_tsc_khz = guest.bus_clock_khz;
  if (clock.of_tsc_khz != 0) clock.about = "reference cycles, scaled to the bus clock,";
  return clock;
}

EventTranslation on_intel(const HostCpu& host, const vpmu::GenerationDesc& guest, const GuestEvent& wanted) {
  const bool is_clock =
      wanted.counts == Counts::ref_cycles || (wanted.counts == Counts::bus_cycles && guest.bus_clock_khz == 0);
  if (host.generation == guest.generation && !wanted.fixed && (!is_clock || wanted.per_cycle))
    return {.match = Match::same, .event = raw(raw_config(wanted.spec)), .about = "the guest's own code"};
  if (wanted.per_cycle) return none("a form with CMASK, INV or EDGE means what it does on its own model only");
  if (const Row* row = find(architectural, wanted.counts)) {
    const EventTranslation found{.match = Match::same, .event = row->event, .about = row->name};
    return wanted.counts == Counts::bus_cycles ? bus_clock_of(guest, found) : found;
  }
  if (host.generation)
    if (const vpmu::EventDesc* e = find_plain(vpmu::describe(*host.generation), wanted.counts))
      return {.match = Match::same, .event = raw(e->code | (std::uint64_t{e->umask} << 8)), .about = e->name};
  return none("no architectural event");
}

EventTranslation on_amd(const vpmu::GenerationDesc& guest, const GuestEvent& wanted) {
  if (wanted.per_cycle) return none("a form with CMASK, INV or EDGE means what it does on its own model only");
  if (const Row* row = find(amd_events, wanted.counts)) {
    const EventTranslation found{.match = Match::nearest, .event = row->event, .about = row->name};
    return wanted.counts == Counts::bus_cycles ? bus_clock_of(guest, found) : found;
  }
  return none("no event of AMD's comes near");
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
  if (wanted.counts == Counts::never) return none("cannot happen in a guest");
  if (wanted.counts == Counts::load_latency) return none("each load's latency decides");
  if (wanted.counts == Counts::frontend || wanted.counts == Counts::offcore || wanted.counts == Counts::offcore_1)
    return none("a second MSR selects what counts");
  if (wanted.spec.any) return none("counts both threads of a core");
  switch (host.vendor) {
    case HostVendor::intel: return on_intel(host, guest, wanted);
    case HostVendor::amd: return on_amd(guest, wanted);
    case HostVendor::other: break;
  }
  return none("the events of this host's CPU are not known");
}

}  // namespace vmm
