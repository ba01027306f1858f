#include "stat/kernel_events.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <vector>

#include "sources/delivery.hpp"
#include "support/letters.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/counts.hpp"

namespace vmm::tool {
namespace {

using vpmu::Generation;

/// The bits of MSR_OFFCORE_RSP_0 that Linux sets: requests, and who answers them.
namespace offcore {
constexpr std::uint64_t reads = 0x1, writes = 0x2;
// Nehalem and Westmere: stores include write-backs. SDM 3B tables 18-26, 18-27.
constexpr std::uint64_t old_writes = 0xA, old_prefetches = 0x30, old_hit = 0x700, old_miss = 0xF000, old_node = 0x7000,
                        old_remote = 0x2000;
// Sandy and Ivy Bridge: loads and stores include prefetches into the L3. SDM 3B tables 18-36 to 18-38.
constexpr std::uint64_t snb_reads = 0x81, snb_writes = 0x102, snb_prefetches = 0x30, any_response = 0x10000;
constexpr std::uint64_t snb_snoops = 0x1F'8000'0000, snb_remote = 0x7F80'0000 | snb_snoops,
                        snb_node = 0x40'0000 | snb_remote, snb_miss = snb_node | 0x20'0000'0000;
// Haswell, Broadwell, Skylake.
constexpr std::uint64_t dram_snoops = 0x1F'8000'0000, any_snoop = dram_snoops | 0x20'0000'0000, remote = 0x3800'0000;
constexpr std::uint64_t hsw_local = 0x40'0000, bdw_local = 0x400'0000;
constexpr std::uint64_t skl_snoops = dram_snoops | 0x4000'0000, skl_any = any_snoop | 0x4000'0000;
}  // namespace offcore

using Events = std::vector<KernelEvent>;

/// Those that all of these CPUs have. SDM 3B table 18-1. Code 0: the fixed counter of reference cycles.
constexpr std::array everywhere{
    KernelEvent{"instructions", 0xC0, 0x00},        KernelEvent{"cycles", 0x3C, 0x00},
    KernelEvent{"cpu-cycles", 0x3C, 0x00},          KernelEvent{"ref-cycles", 0x00, 0x03},
    KernelEvent{"bus-cycles", 0x3C, 0x01},          KernelEvent{"branches", 0xC4, 0x00},
    KernelEvent{"branch-instructions", 0xC4, 0x00}, KernelEvent{"branch-misses", 0xC5, 0x00},
    KernelEvent{"cache-references", 0x2E, 0x4F},    KernelEvent{"cache-misses", 0x2E, 0x41},
    KernelEvent{"branch-loads", 0xC4, 0x00}};

constexpr KernelEvent response(std::string_view name, std::uint64_t requests, std::uint64_t answers) {
  return {.name = name, .code = 0xB7, .umask = 0x01, .offcore = requests | answers};
}

constexpr KernelEvent front_stalls{
    .name = "stalled-cycles-frontend", .code = 0x0E, .umask = 0x01, .cmask = 1, .inv = true};
constexpr KernelEvent back_stalls(std::uint8_t ports) {
  return {.name = "stalled-cycles-backend", .code = 0xB1, .umask = ports, .cmask = 1, .inv = true};
}

/// Who answers requests: anybody, memory, any memory, that of another package.
struct Answers {
  std::uint64_t any, miss, node, remote;
};

void add_loads(Events& to, std::uint64_t requests, const Answers& by) {
  to.insert(to.end(), {response("LLC-loads", requests, by.any), response("LLC-load-misses", requests, by.miss),
                       response("node-loads", requests, by.node), response("node-load-misses", requests, by.remote)});
}
void add_stores(Events& to, std::uint64_t requests, const Answers& by) {
  to.insert(to.end(), {response("LLC-stores", requests, by.any), response("LLC-store-misses", requests, by.miss),
                       response("node-stores", requests, by.node), response("node-store-misses", requests, by.remote)});
}
void add_prefetches(Events& to, std::uint64_t requests, const Answers& by) {
  to.push_back(response("LLC-prefetches", requests, by.any));
  to.push_back(response("LLC-prefetch-misses", requests, by.miss));
  to.push_back(response("node-prefetches", requests, by.node));
  to.push_back(response("node-prefetch-misses", requests, by.remote));
}

Events nehalem() {
  Events events{{"L1-dcache-loads", 0x0B, 0x01},
                {"L1-dcache-load-misses", 0x51, 0x01},
                {"L1-dcache-stores", 0x0B, 0x02},
                {"L1-dcache-store-misses", 0x51, 0x02},
                {"L1-dcache-prefetches", 0x4E, 0x01},
                {"L1-dcache-prefetch-misses", 0x4E, 0x02},
                {"L1-icache-loads", 0x80, 0x03},
                {"L1-icache-load-misses", 0x80, 0x02},
                {"dTLB-loads", 0x40, 0x0F},
                {"dTLB-load-misses", 0x08, 0x01},
                {"dTLB-stores", 0x41, 0x0F},
                {"dTLB-store-misses", 0x0C, 0x01},
                {"iTLB-loads", 0xC0, 0x01},
                {"iTLB-load-misses", 0xC8, 0x20},
                {"branch-load-misses", 0xE8, 0x03},
                {"mem-loads", 0x0B, 0x10},
                front_stalls,
                back_stalls(0x3F)};
  using namespace offcore;
  constexpr Answers by{.any = old_hit | old_miss, .miss = old_miss, .node = old_node, .remote = old_remote};
  add_loads(events, reads, by);
  add_stores(events, old_writes, by);
  add_prefetches(events, old_prefetches, by);
  return events;
}

void replace(Events& in, KernelEvent by) {
  const auto old = std::ranges::find(in, by.name, &KernelEvent::name);
  if (old != in.end())
    *old = by;
  else
    in.push_back(by);
}

Events westmere() {
  Events events = nehalem();
  replace(events, {"dTLB-loads", 0x0B, 0x01});
  replace(events, {"dTLB-stores", 0x0B, 0x02});
  replace(events, {"iTLB-load-misses", 0x85, 0x01});
  return events;
}

constexpr std::array topdown{
    KernelEvent{"topdown-total-slots", 0x3C, 0x00}, KernelEvent{"topdown-slots-issued", 0x0E, 0x01},
    KernelEvent{"topdown-slots-retired", 0xC2, 0x02}, KernelEvent{"topdown-fetch-bubbles", 0x9C, 0x01},
    KernelEvent{"topdown-recovery-bubbles", 0x0D, 0x03, 1}};

/// Haswell's, without off-core responses: most of those of Sandy Bridge and Skylake are the same.
Events haswell_without_responses() {
  return {{"L1-dcache-loads", 0xD0, 0x81},    {"L1-dcache-load-misses", 0x51, 0x01},
          {"L1-dcache-stores", 0xD0, 0x82},   {"L1-icache-load-misses", 0x80, 0x02},
          {"dTLB-loads", 0xD0, 0x81},         {"dTLB-load-misses", 0x08, 0x01},
          {"dTLB-stores", 0xD0, 0x82},        {"dTLB-store-misses", 0x49, 0x01},
          {"iTLB-loads", 0x85, 0x60},         {"iTLB-load-misses", 0x85, 0x01},
          {"branch-load-misses", 0xC5, 0x00}, {"mem-loads", 0xCD, 0x01},
          {"mem-stores", 0xD0, 0x82}};
}
Events sandy_bridge() {
  using namespace offcore;
  Events events = haswell_without_responses();
  for (const KernelEvent& other :
       {KernelEvent{"L1-dcache-loads", 0xD0, 0xF1}, KernelEvent{"L1-dcache-stores", 0xD0, 0xF2},
        KernelEvent{"L1-dcache-store-misses", 0x51, 0x08}, KernelEvent{"L1-dcache-prefetch-misses", 0x4E, 0x02},
        KernelEvent{"iTLB-loads", 0x85, 0x10}, KernelEvent{"mem-stores", 0xCD, 0x02}, front_stalls, back_stalls(0x01)})
    replace(events, other);
  constexpr Answers by{.any = any_response, .miss = snb_miss, .node = snb_node, .remote = snb_remote};
  add_loads(events, snb_reads, by);
  add_stores(events, snb_writes, by);
  add_prefetches(events, snb_prefetches, by);
  events.insert(events.end(), topdown.begin(), topdown.end());
  return events;
}

Events ivy_bridge() {
  Events events = sandy_bridge();
  replace(events, {"dTLB-load-misses", 0x08, 0x81});
  std::erase_if(events, [](const KernelEvent& e) { return e.name == "stalled-cycles-backend"; });
  return events;
}

/// Haswell and later.
Events with_responses(Events events, const Answers& by) {
  add_loads(events, offcore::reads, by);
  add_stores(events, offcore::writes, by);
  events.insert(events.end(), topdown.begin(), topdown.end());
  return events;
}

Events haswell() {
  using namespace offcore;
  return with_responses(haswell_without_responses(), {.any = any_response,
                                                      .miss = hsw_local | remote | any_snoop,
                                                      .node = hsw_local | dram_snoops,
                                                      .remote = remote | dram_snoops});
}
// Linux replaces Haswell's local memory in all but the misses of a node.
Events broadwell() {
  using namespace offcore;
  return with_responses(haswell_without_responses(), {.any = any_response,
                                                      .miss = bdw_local | remote | dram_snoops,
                                                      .node = bdw_local | dram_snoops,
                                                      .remote = remote | dram_snoops});
}
Events skylake() {
  using namespace offcore;
  constexpr std::uint64_t no_supplier = 0x20000;
  Events events = haswell_without_responses();
  replace(events, {"L1-icache-load-misses", 0x83, 0x02});
  replace(events, {"dTLB-load-misses", 0x08, 0x0E});
  replace(events, {"dTLB-store-misses", 0x49, 0x0E});
  replace(events, {"iTLB-loads", 0x85, 0x20});
  replace(events, {"iTLB-load-misses", 0x85, 0x0E});
  return with_responses(events, {.any = any_response | skl_any,
                                 .miss = bdw_local | remote | skl_any | no_supplier,
                                 .node = bdw_local | skl_snoops,
                                 .remote = remote | skl_snoops});
}

Events events_of(Generation generation) {
  switch (generation) {
    case Generation::nehalem:
    case Generation::nehalem_ex: return nehalem();
    case Generation::westmere:
    case Generation::westmere_ep:
    case Generation::westmere_ex: return westmere();
    case Generation::sandy_bridge:
    case Generation::sandy_bridge_ep: return sandy_bridge();
    case Generation::ivy_bridge:
    case Generation::ivy_bridge_ep: return ivy_bridge();
    case Generation::haswell:
    case Generation::haswell_ep: return haswell();
    case Generation::broadwell:
    case Generation::broadwell_de:
    case Generation::broadwell_ep: return broadwell();
    case Generation::skylake:
    case Generation::skylake_sp: return skylake();
  }
  return {};
}

struct Spelling {
  std::string_view perf, ours;
};
// perf's words for caches, for what is done, and for how it ends. Longer ones stand before those that they begin with.
constexpr std::array caches{Spelling{"l1-dcache", "L1-dcache"},
                            Spelling{"l1-data", "L1-dcache"},
                            Spelling{"l1-d", "L1-dcache"},
                            Spelling{"l1d", "L1-dcache"},
                            Spelling{"l1-icache", "L1-icache"},
                            Spelling{"l1-instruction", "L1-icache"},
                            Spelling{"l1-i", "L1-icache"},
                            Spelling{"l1i", "L1-icache"},
                            Spelling{"llc", "LLC"},
                            Spelling{"l2", "LLC"},
                            Spelling{"dtlb", "dTLB"},
                            Spelling{"d-tlb", "dTLB"},
                            Spelling{"data-tlb", "dTLB"},
                            Spelling{"itlb", "iTLB"},
                            Spelling{"i-tlb", "iTLB"},
                            Spelling{"instruction-tlb", "iTLB"},
                            Spelling{"branches", "branch"},
                            Spelling{"branch", "branch"},
                            Spelling{"bpu", "branch"},
                            Spelling{"btb", "branch"},
                            Spelling{"bpc", "branch"},
                            Spelling{"node", "node"}};
constexpr std::array actions{Spelling{"-loads", "-load"},
                             Spelling{"-load", "-load"},
                             Spelling{"-read", "-load"},
                             Spelling{"-stores", "-store"},
                             Spelling{"-store", "-store"},
                             Spelling{"-write", "-store"},
                             Spelling{"-prefetches", "-prefetch"},
                             Spelling{"-prefetch", "-prefetch"},
                             Spelling{"-speculative-read", "-prefetch"},
                             Spelling{"-speculative-load", "-prefetch"}};
constexpr std::array ends{Spelling{"-refs", ""},   Spelling{"-reference", ""},     Spelling{"-ops", ""},
                          Spelling{"-access", ""}, Spelling{"-misses", "-misses"}, Spelling{"-miss", "-misses"}};

/// Takes the first word that `text` begins with off it.
template <std::size_t n>
const Spelling* take(std::string_view& text, const std::array<Spelling, n>& words) {
  const auto* const word = std::ranges::find_if(words, [text](const Spelling& s) { return text.starts_with(s.perf); });
  if (word == words.end()) return nullptr;
  text.remove_prefix(word->perf.size());
  return word;
}

/// "L1-dcache-load-misses" of any of perf's spellings; empty: it is none.
std::string canonical(std::string_view name) {
  const std::string small = in_small_letters(name);
  std::string_view rest = small;
  const Spelling* const cache = take(rest, caches);
  if (cache == nullptr) return {};
  const Spelling* const action = take(rest, actions);
  const Spelling* const end = take(rest, ends);
  if (!rest.empty()) return {};
  const std::string does{action == nullptr ? "-load" : action->ours};
  if (end != nullptr && !end->ours.empty()) return std::string{cache->ours} + does + std::string{end->ours};
  return std::string{cache->ours} + does + (does == "-prefetch" ? "es" : "s");
}

std::optional<std::uint64_t> number(std::string_view text) {
  const bool is_hexadecimal = text.starts_with("0x") || text.starts_with("0X");
  if (is_hexadecimal) text.remove_prefix(2);
  std::uint64_t value{};
  constexpr int hexadecimal = 16, decimal = 10;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, is_hexadecimal ? hexadecimal : decimal);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// The fields of PERFEVTSEL that a raw event may have. SDM 3B figure 18-6.
std::optional<vpmu::EventSpec> read_raw(std::string_view text) {
  constexpr unsigned edge = 18, any = 21, inv = 23;
  constexpr std::uint64_t fields = 0xFF00FFFF | vpmu::bit(edge) | vpmu::bit(any) | vpmu::bit(inv);
  if (!text.starts_with('r') || text.size() < 2) return std::nullopt;
  const auto raw = number("0x" + std::string{text.substr(1)});
  if (!raw || (*raw & ~fields) != 0) return std::nullopt;
  return vpmu::EventSpec{.code = static_cast<std::uint8_t>(*raw),
                         .umask = static_cast<std::uint8_t>(*raw >> 8U),
                         .cmask = static_cast<std::uint8_t>(*raw >> 24U),
                         .edge = (*raw & vpmu::bit(edge)) != 0,
                         .any = (*raw & vpmu::bit(any)) != 0,
                         .inv = (*raw & vpmu::bit(inv)) != 0};
}

/// "event=0xc0,umask=1,cmask=1,inv", or "cache-misses", as sysfs has it.
std::optional<vpmu::EventDesc> read_terms(const vpmu::GenerationDesc& generation, std::string_view terms) {
  vpmu::EventSpec spec;
  std::uint64_t msr_value{};
  while (!terms.empty()) {
    const std::string_view term = terms.substr(0, terms.find(','));
    terms.remove_prefix(std::min(term.size() + 1, terms.size()));
    const std::string_view name = term.substr(0, term.find('='));
    const std::string_view text = name.size() == term.size() ? std::string_view{"1"} : term.substr(name.size() + 1);
    if (name == "name" || name == "period" || name == "freq") continue;
    if (const auto known = name.size() == term.size() ? find_kernel_event(generation, name) : std::nullopt) {
      const vpmu::EventDesc row = row_of(*known, generation);
      if (row.code == 0) return terms.empty() ? std::optional{row} : std::nullopt;
      spec = {
          .code = row.code, .umask = row.umask, .cmask = row.cmask, .edge = row.edge, .any = row.any, .inv = row.inv};
      msr_value = row.msr_value;
      continue;
    }
    const auto value = number(text);
    constexpr std::uint64_t max = 0xFF;
    if (!value) return std::nullopt;
    if (name == "offcore_rsp" || name == "frontend" || name == "ldlat") {
      msr_value = *value;
      continue;
    }
    if (*value > max) return std::nullopt;
    const auto field = static_cast<std::uint8_t>(*value);
    if (name == "event")
      spec.code = field;
    else if (name == "umask")
      spec.umask = field;
    else if (name == "cmask")
      spec.cmask = field;
    else if (name == "inv")
      spec.inv = field != 0;
    else if (name == "edge")
      spec.edge = field != 0;
    else if (name == "any")
      spec.any = field != 0;
    else
      return std::nullopt;
  }
  return programmed_event(generation, "cpu//", spec, msr_value);
}

}  // namespace

std::span<const KernelEvent> kernel_events(Generation generation) {
  static const auto all = [] {
    std::array<Events, vpmu::generation_count> made;
    for (std::size_t i = 0; i < made.size(); ++i) {
      made[i] = events_of(static_cast<Generation>(i));
      made[i].insert(made[i].begin(), everywhere.begin(), everywhere.end());
    }
    return made;
  }();
  return all[static_cast<std::size_t>(generation)];
}

vpmu::EventDesc row_of(const KernelEvent& event, const vpmu::GenerationDesc& generation) {
  if (event.code == 0) {
    constexpr std::uint16_t fixed_2 = 0x400;
    const auto fixed = std::ranges::find(generation.events, fixed_2, &vpmu::EventDesc::counters);
    if (fixed != generation.events.end()) return *fixed;
  }
  return programmed_event(generation, event.name,
                          {.code = event.code, .umask = event.umask, .cmask = event.cmask, .inv = event.inv},
                          event.offcore);
}

std::optional<KernelEvent> find_kernel_event(const vpmu::GenerationDesc& generation, std::string_view name) {
  const auto all = kernel_events(generation.generation);
  std::string small = in_small_letters(name);
  // perf's older names.
  if (small.starts_with("idle-cycles-")) small.replace(0, std::string_view{"idle"}.size(), "stalled");
  const std::string of_cache = canonical(name);
  const auto exact = std::ranges::find_if(all, [&](const KernelEvent& e) { return in_small_letters(e.name) == small; });
  if (exact != all.end()) return *exact;
  const auto spelt = std::ranges::find(all, std::string_view{of_cache}, &KernelEvent::name);
  return of_cache.empty() || spelt == all.end() ? std::nullopt : std::optional{*spelt};
}

std::optional<vpmu::EventDesc> read_select(const vpmu::GenerationDesc& generation, std::string_view text) {
  if (const auto raw = read_raw(text)) return programmed_event(generation, "raw", *raw, 0);
  constexpr std::string_view begin = "cpu/";
  if (!text.starts_with(begin)) return std::nullopt;
  text.remove_prefix(begin.size());
  return read_terms(generation, text.substr(0, text.find('/')));
}

}  // namespace vmm::tool
