#include "uarch/profiles.hpp"

#include <algorithm>
#include <array>

// Sizes and latencies of caches and TLBs, and the return stack: Intel 64 and IA-32 Architectures Optimization Reference
// Manual, order number 248966, edition of 2016, chapter 2, in the cache and TLB tables of each microarchitecture. Last
// level caches are those of common four-core clients and eight-core servers. In no manual, and so only plausible: the
// cost of a page walk where it is no sum of loads and of the second line of a split. What asking another core takes is
// Sandy Bridge's (table 2-10) in all.
//
// Branches: conditional.hpp and path_history.hpp say who found out what. Of the branch target buffer, M. Godbolt,
// "Inside the Ivy Bridge and Haswell BTB" (2016): 4096 entries in four ways, on Haswell by more of the address. That
// Sandy Bridge and Skylake have as many, and Nehalem half of them, is plausible and no more; so are the tables of
// indirect targets. What a branch costs that the decoder finds is what Intel's top-down analysis takes for BACLEARS.
//
// Memory, in ns behind the L3: what 7-cpu.com measured (Westmere 67; Haswell 67 in all; Sandy Bridge 49 to 56, Ivy
// Bridge 53 and Skylake 51 are quoted from it and were not looked up again), and Intel's "Performance Analysis Guide
// for Core i7 and Xeon 5500" (Nehalem 60 in all). Those of the servers from Sandy Bridge on are estimates. Haswell's L2
// is as quick as Ivy Bridge's (The Tech Report, 2013), not 11 cycles as in the manual. A line takes 64 bytes of two
// channels of the time's common memory: DDR3-1333, DDR3-1600, DDR4-2133; servers have more channels, of which one core
// never fills all.
//
// Replacement: Abel and Reineke, "nanoBench" (2020), with uops.info/cache.html: the L1 data cache is tree pseudo-LRU on
// all, the L2 on all before Skylake. The L3: Wong, "Intel Ivy Bridge Cache Replacement Policy" (2013), for clients from
// Ivy Bridge on.
namespace vpmu::uarch {
namespace {

constexpr std::uint32_t kib = 1024 / line_bytes;
constexpr std::uint32_t mib = 1024 * kib;

/// A cache of so many lines.
constexpr Shape cache(std::uint32_t lines, std::uint32_t ways) { return {.sets = lines / ways, .ways = ways}; }
/// A TLB of so many entries.
constexpr Shape entries(std::uint32_t count, std::uint32_t ways) { return {.sets = count / ways, .ways = ways}; }
constexpr Shape full(std::uint32_t count) { return {.sets = 1, .ways = count}; }

constexpr Profile nehalem{
    .name = "nehalem",
    .l1i = cache(32 * kib, 4),
    .l1d = cache(32 * kib, 8),
    .l2 = cache(256 * kib, 8),
    .l3 = cache(8 * mib, 16),
    .last_level = LastLevel::inclusive,
    .fill_buffers = 10,
    .dtlb = {.small = entries(64, 4), .large = entries(32, 4), .huge = {}},
    .itlb = {.small = entries(128, 4), .large = full(7), .huge = {}},
    .stlb = {.shared = entries(512, 4), .holds_large = false, .huge = {}},
    .decoded = {},
    .branches = {.outcomes = 18,
                 .loops = 128,
                 .buffer = entries(2048, 4),
                 .targets = entries(256, 4),
                 .return_stack = 16,
                 .mispredict_penalty = 17,
                 .resteer = 12},
    .latency =
        {.l1 = 4, .l2 = 10, .l3 = 38, .dram = 0, .stlb_hit = 7, .walk = 30, .split = 5, .shared = 15, .modified = 31},
    .memory = {.ns = 46, .line_ps = 3000},
    .l2_replacement = Replacement::tree,
    .l3_replacement = Replacement::lru,
    .mhz = 0,
    .channel = 0,
    .prefetchers_off = 0,
};

constexpr Profile westmere = [] {
  Profile p = nehalem;
  p.name = "westmere";
  p.l3 = cache(4 * mib, 16);
  p.memory.ns = 67;
  return p;
}();

constexpr Profile with_l3(Profile p, std::string_view name, Shape l3) {
  p.name = name;
  p.l3 = l3;
  return p;
}
constexpr Profile nehalem_ex = with_l3(nehalem, "nehalem-ex", cache(16 * mib, 16));
constexpr Profile westmere_ep = with_l3(westmere, "westmere-ep", cache(16 * mib, 16));
constexpr Profile westmere_ex = with_l3(westmere, "westmere-ex", cache(16 * mib, 16));

constexpr Profile sandy_bridge = [] {
  Profile p = nehalem;
  p.name = "sandybridge";
  p.l1i = cache(32 * kib, 8);
  p.dtlb.huge = full(4);
  p.itlb.large = full(8);
  p.decoded = entries(256, 8);
  p.branches = {.outcomes = 32,
                .buffer = entries(4096, 4),
                .targets = entries(512, 4),
                .return_stack = 16,
                .mispredict_penalty = 15,
                .resteer = 12};
  p.latency.l2 = 12;
  p.latency.l3 = 30;
  p.memory.ns = 53;
  return p;
}();

constexpr Profile ivy_bridge = [] {
  Profile p = sandy_bridge;
  p.name = "ivybridge";
  p.branches.outcomes = 0;
  p.branches.path_from_bit = 4;
  p.branches.targets = entries(2048, 4);
  p.memory.line_ps = 2500;
  p.l3_replacement = Replacement::adaptive;
  return p;
}();

constexpr Profile haswell = [] {
  Profile p = ivy_bridge;
  p.name = "haswell";
  p.branches.buffer_is_hashed = true;
  p.stlb = {.shared = entries(1024, 8), .holds_large = true, .huge = {}};
  p.latency.l2 = 12;
  p.latency.l3 = 34;
  p.memory.ns = 57;
  return p;
}();

constexpr Profile broadwell = [] {
  Profile p = haswell;
  p.name = "broadwell";
  p.stlb = {.shared = entries(1536, 6), .holds_large = true, .huge = entries(16, 4)};
  return p;
}();

constexpr Profile skylake = [] {
  Profile p = broadwell;
  p.name = "skylake";
  p.branches.path_from_bit = 3;
  p.branches.resteer = 9;
  p.l2 = cache(256 * kib, 4);
  p.l2_replacement = Replacement::lru;
  p.itlb.small = entries(128, 8);
  p.stlb = {.shared = entries(1536, 12), .holds_large = true, .huge = entries(16, 4)};
  p.latency.l3 = 44;
  p.latency.stlb_hit = 9;
  p.memory = {.ns = 51, .line_ps = 1900};
  return p;
}();

/// Servers up to Broadwell: 2.5 MiB of 20 ways for each of eight cores, longer ways to the L3 and to memory.
constexpr Profile with_server_uncore(Profile p, std::string_view name, std::uint16_t l3_latency) {
  p.name = name;
  p.l3 = cache(20 * mib, 20);
  p.latency.l3 = l3_latency;
  p.memory.ns = 62;
  p.l3_replacement = Replacement::lru;
  return p;
}
constexpr Profile sandy_bridge_ep = with_server_uncore(sandy_bridge, "sandybridge-ep", 38);
constexpr Profile ivy_bridge_ep = with_server_uncore(ivy_bridge, "ivybridge-ep", 38);
constexpr Profile haswell_ep = with_server_uncore(haswell, "haswell-ep", 50);
constexpr Profile broadwell_de = with_l3(broadwell, "broadwell-de", cache(8 * mib, 16));
constexpr Profile broadwell_ep = with_server_uncore(broadwell, "broadwell-ep", 50);

constexpr Profile skylake_sp = [] {
  Profile p = skylake;
  p.name = "skylake-sp";
  p.l2 = cache(1 * mib, 16);
  p.l3 = cache(11 * mib, 11);
  p.last_level = LastLevel::victim;
  p.latency.l2 = 14;
  p.latency.l3 = 60;
  p.memory.ns = 70;
  p.l3_replacement = Replacement::lru;
  return p;
}();

constexpr Profile timed(Profile p, std::uint32_t mhz) {
  p.mhz = mhz;
  p.latency.dram = static_cast<std::uint16_t>(p.latency.l3 + p.memory.ns * mhz / 1000);
  p.channel = static_cast<std::uint16_t>(p.memory.line_ps * (mhz / 10) / 100'000);
  return p;
}

constexpr auto rows = [] {
  std::array all{nehalem,         nehalem_ex,   westmere,      westmere_ep, westmere_ex, sandy_bridge,
                 sandy_bridge_ep, ivy_bridge,   ivy_bridge_ep, haswell,     haswell_ep,  broadwell,
                 broadwell_de,    broadwell_ep, skylake,       skylake_sp};
  for (Profile& p : all) p = timed(p, nominal_mhz);
  return all;
}();

constexpr bool is_possible(Shape s, bool needed) {
  return s.sets == 0 ? !needed : (s.sets & (s.sets - 1)) == 0 && s.ways > 0 && s.ways <= RecencySets::max_ways;
}
static_assert(std::ranges::all_of(rows, [](const Profile& p) {
  return is_possible(p.l1i, true) && is_possible(p.l1d, true) && is_possible(p.l2, true) && is_possible(p.l3, true) &&
         is_possible(p.dtlb.small, true) && is_possible(p.dtlb.large, true) && is_possible(p.dtlb.huge, false) &&
         is_possible(p.itlb.small, true) && is_possible(p.itlb.large, true) && is_possible(p.itlb.huge, false) &&
         is_possible(p.stlb.shared, true) && is_possible(p.stlb.huge, false) && is_possible(p.decoded, false) &&
         is_possible(p.branches.targets, true) && is_possible(p.branches.buffer, true) && p.branches.buffer.ways == 4;
}));

}  // namespace

std::span<const Profile> all_profiles() { return rows; }

Profile at_frequency(Profile profile, std::uint32_t mhz) {
  constexpr std::uint32_t most = 100'000;
  return timed(profile, std::min(mhz, most));
}

const Profile* find_profile(std::string_view name) {
  const auto* const row = std::ranges::find(rows, name, &Profile::name);
  return row == rows.end() ? nullptr : row;
}

}  // namespace vpmu::uarch
