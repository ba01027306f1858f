#include "pfm_events.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "vpmu/generation.hpp"

// Our event table of each generation must agree with libpfm4's, which is independent of it. differences.csv has each
// difference with its reason: only `theirs` has the code and umask, only `ours` has it, or only one calls it `precise`.
// A difference that no longer exists must be removed from the file.

namespace vpmu::test {
namespace {

/// Code and umask, such as "C4/04".
using Select = std::string;

Select select_of(std::uint8_t code, std::uint8_t umask) {
  constexpr std::string_view digits = "0123456789ABCDEF";
  return {digits[code >> 4], digits[code & 0xF], '/', digits[umask >> 4], digits[umask & 0xF]};
}

struct Pair {
  Generation generation;
  const char* theirs;  ///< libpfm4's name of the PMU.
};
constexpr std::array pairs{Pair{Generation::nehalem, "nhm"},
                           Pair{Generation::nehalem_ex, "nhm_ex"},
                           Pair{Generation::westmere, "wsm"},
                           Pair{Generation::westmere_ep, "wsm_dp"},
                           Pair{Generation::westmere_ex, "wsm_dp"},
                           Pair{Generation::sandy_bridge, "snb"},
                           Pair{Generation::sandy_bridge_ep, "snb_ep"},
                           Pair{Generation::ivy_bridge, "ivb"},
                           Pair{Generation::ivy_bridge_ep, "ivb_ep"},
                           Pair{Generation::haswell, "hsw"},
                           Pair{Generation::haswell_ep, "hsw_ep"},
                           Pair{Generation::broadwell, "bdw"},
                           Pair{Generation::broadwell_de, "bdw_ep"},
                           Pair{Generation::broadwell_ep, "bdw_ep"},
                           Pair{Generation::skylake, "skl"},
                           Pair{Generation::skylake_sp, "skx"}};

/// The explained differences of a kind and generation. Columns: kind, generations, events, reason; generations and
/// events are lists separated by spaces.
std::set<Select> explained(std::string_view kind, std::string_view generation) {
  std::ifstream file{VPMU_DIFFERENCES};
  std::set<Select> result;
  for (std::string line; std::getline(file, line);) {
    std::istringstream cells{line};
    std::string row_kind, generations, events, reason;
    std::getline(cells, row_kind, ',');
    std::getline(cells, generations, ',');
    std::getline(cells, events, ',');
    std::getline(cells, reason);
    EXPECT_FALSE(reason.empty()) << line;
    std::istringstream names{generations}, selects{events};
    bool meant = false;
    for (std::string name; names >> name;) meant = meant || name == generation;
    if (row_kind == kind && meant)
      for (std::string select; selects >> select;) result.insert(select);
  }
  return result;
}

class EventsAgainstLibpfm4 : public testing::TestWithParam<Pair> {
 protected:
  const GenerationDesc& desc = describe(GetParam().generation);
  const std::vector<oracle::PfmEvent> theirs = oracle::pfm_events(GetParam().theirs);

  void expect_only(std::string_view kind, const std::set<Select>& met) const {
    const std::set<Select> reasons = explained(kind, desc.name);
    for (const Select& s : met)
      EXPECT_TRUE(reasons.contains(s)) << desc.name << ": " << s << " differs (" << kind << ") without a reason";
    for (const Select& s : reasons)
      EXPECT_TRUE(met.contains(s)) << desc.name << ": " << s << " no longer differs (" << kind << ")";
  }
  bool listed(const oracle::PfmEvent& theirs_) const {
    return std::ranges::any_of(desc.events,
                               [&](const EventDesc& e) { return e.code == theirs_.code && e.umask == theirs_.umask; });
  }
};

// On Sandy Bridge libpfm4 lists one event, without any umask, that it then cannot encode.
TEST_P(EventsAgainstLibpfm4, ComparesHundredsOfEvents) {
  EXPECT_GT(theirs.size(), 340U);
  const auto not_encoded = std::ranges::count_if(theirs, [](const auto& e) { return e.code == 0 && e.umask == 0; });
  EXPECT_LE(not_encoded, GetParam().generation == Generation::sandy_bridge ? 1 : 0);
}

TEST_P(EventsAgainstLibpfm4, HasTheSameCodes) {
  std::set<Select> only_theirs, only_ours, all_theirs;
  for (const oracle::PfmEvent& e : theirs) {
    all_theirs.insert(select_of(e.code, e.umask));
    if (!listed(e) && (e.code != 0 || e.umask != 0)) only_theirs.insert(select_of(e.code, e.umask));
  }
  for (const EventDesc& e : desc.events)
    if (e.code != 0 && !all_theirs.contains(select_of(e.code, e.umask))) only_ours.insert(select_of(e.code, e.umask));
  expect_only("theirs", only_theirs);
  expect_only("ours", only_ours);
}

TEST_P(EventsAgainstLibpfm4, AgreesOnWhatIsPrecise) {
  std::set<Select> differ;
  std::size_t precise = 0;
  for (const oracle::PfmEvent& e : theirs) {
    precise += e.precise ? 1 : 0;
    const bool ours = classify(desc, {.code = e.code, .umask = e.umask}).pebs != PebsAbility::no;
    if (listed(e) && ours != e.precise) differ.insert(select_of(e.code, e.umask));
  }
  EXPECT_GT(precise, 30U);
  expect_only("precise", differ);
}

INSTANTIATE_TEST_SUITE_P(All, EventsAgainstLibpfm4, testing::ValuesIn(pairs),
                         [](const testing::TestParamInfo<Pair>& param) {
                           std::string name{describe(param.param.generation).name};
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(EventOracle, CoversTheEventsOfEveryGeneration) {
  const auto events_of = [](const Pair& p) { return describe(p.generation).events.data(); };
  for (const GenerationDesc* g : all_generations())
    EXPECT_TRUE(std::ranges::find(pairs, g->events.data(), events_of) != pairs.end()) << g->name;
}

}  // namespace
}  // namespace vpmu::test
