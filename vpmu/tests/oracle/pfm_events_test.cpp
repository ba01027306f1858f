#include "pfm_events.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iomanip>
#include <set>
#include <span>
#include <sstream>

#include "vpmu/generation.hpp"

// An independent table, libpfm4's, must agree with ours. Where it does not, the difference is written down with its
// reason, and a difference that is gone must leave the list.

namespace vpmu::test {
namespace {

using Select = std::pair<std::uint8_t, std::uint8_t>;

struct Difference {
  Select select;
  const char* reason;
};

constexpr const char* from_older_models = "Intel lists it up to Broadwell, not for Skylake";
constexpr const char* server_only = "Intel lists it for Skylake servers only";

/// In libpfm4's table, not in ours.
constexpr std::array missing_here{
    Difference{{0x05, 0x01}, from_older_models},
    Difference{{0x05, 0x02}, from_older_models},
    Difference{{0x0E, 0x10}, from_older_models},
    Difference{{0x0E, 0x40}, from_older_models},
    Difference{{0x58, 0x01}, from_older_models},
    Difference{{0x58, 0x02}, from_older_models},
    Difference{{0x58, 0x04}, from_older_models},
    Difference{{0x58, 0x08}, from_older_models},
    Difference{{0x63, 0x02}, from_older_models},
    Difference{{0x79, 0x3C}, from_older_models},
    Difference{{0xA2, 0x04}, from_older_models},
    Difference{{0xA2, 0x10}, from_older_models},
    Difference{{0xC2, 0x01},
               "Intel lists UOPS_RETIRED.ALL up to Broadwell; on Skylake precise cycles are a form of C0H (rule P18)"},
    Difference{{0xC5, 0x08}, server_only},
    Difference{{0xC7, 0x40}, server_only},
    Difference{{0xC7, 0x80}, server_only},
    Difference{{0xD3, 0x01}, server_only},
    Difference{{0xEF, 0x01}, server_only},
    Difference{{0xEF, 0x02}, server_only},
    Difference{{0xEF, 0x04}, server_only},
    Difference{{0xEF, 0x08}, server_only},
    Difference{{0xEF, 0x10}, server_only},
    Difference{{0xEF, 0x20}, server_only},
    Difference{{0xEF, 0x40}, server_only},
};

/// In both tables, precise in one only.
constexpr std::array differently_precise{
    Difference{{0xC0, 0x00}, "precise here: Linux takes it with INV and CMASK for precise cycles (rule P18)"},
    Difference{{0xC2, 0x02}, "not precise here: Intel's Skylake list has no precise UOPS_RETIRED"},
    Difference{{0xC4, 0x00}, "not precise here: Intel's Skylake list gives C4H/04H as the precise form"},
    Difference{{0xC4, 0x10}, "not precise here: Intel's Skylake list says so for both of its names"},
    Difference{{0xC5, 0x00}, "not precise here: Intel's Skylake list gives C5H/04H as the precise form"},
};

std::string show(Select select) {
  std::ostringstream text;
  text << std::hex << std::uppercase << std::setfill('0') << std::setw(2) << unsigned{select.first} << "H/"
       << std::setw(2) << unsigned{select.second} << 'H';
  return text.str();
}

bool explained(std::span<const Difference> list, Select select) {
  return std::ranges::find(list, select, &Difference::select) != list.end();
}

class SkylakeAgainstLibpfm4 : public testing::Test {
 protected:
  const GenerationDesc& skylake = describe(Generation::skylake);
  const std::vector<oracle::PfmEvent> theirs = oracle::pfm_events("skl");

  bool listed(Select select) const {
    return std::ranges::any_of(skylake.events, [select](const EventDesc& e) {
      return Select{e.code, e.umask} == select;
    });
  }
  bool precise(Select select) const {
    return classify(skylake, {.code = select.first, .umask = select.second}).pebs != PebsAbility::no;
  }
  /// Reports each code for which `differs` holds and `list` has no reason, and each reason without a difference.
  template <class Differs>
  void expect_only(std::span<const Difference> list, const char* what, Differs differs) const {
    std::set<Select> met;
    for (const oracle::PfmEvent& event : theirs) {
      const Select select{event.code, event.umask};
      if (!differs(event, select)) continue;
      met.insert(select);
      EXPECT_TRUE(explained(list, select)) << event.name << " (" << show(select) << ") is " << what;
    }
    for (const Difference& d : list)
      EXPECT_TRUE(met.contains(d.select)) << show(d.select) << " is no longer " << what << ": take it from the list";
  }
};

TEST_F(SkylakeAgainstLibpfm4, ComparesMoreThan400Events) {
  EXPECT_GT(theirs.size(), 400U);
  for (const oracle::PfmEvent& event : theirs)
    EXPECT_FALSE(event.code == 0 && event.umask == 0) << "libpfm4 does not encode " << event.name;
}

TEST_F(SkylakeAgainstLibpfm4, HasEveryCode) {
  expect_only(missing_here, "missing from our table", [this](const auto&, Select select) { return !listed(select); });
}

TEST_F(SkylakeAgainstLibpfm4, AgreesOnWhatIsPrecise) {
  expect_only(differently_precise, "differently precise",
              [this](const auto& event, Select select) { return listed(select) && precise(select) != event.precise; });
}

}  // namespace
}  // namespace vpmu::test
