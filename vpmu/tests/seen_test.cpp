// What an Observer is told of the short form in which events are kept.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "vpmu/observer.hpp"

namespace vpmu::test {
namespace {

/// Writes down each event with all that it has.
class ToldEvents final : public Observer {
 public:
  void fetched(const SeenCode& c) override { add("fetched", {c.linear, c.physical, c.page_bytes}); }
  void accessed(const SeenAccess& a, std::uint64_t now) override {
    add("accessed", {a.linear, a.physical, a.page_bytes, a.bytes, now});
    if (a.store) all.back() += " store";
    if (a.second_half) all.back() += " second_half";
    if (a.locked) all.back() += " locked";
    if (a.prefetch != Prefetch::none) all.back() += " prefetch " + std::to_string(static_cast<unsigned>(a.prefetch));
    if (!a.is_mapped) all.back() += " not mapped";
  }
  void retired(bool load, bool store) override { add("retired", {load ? 1U : 0U, store ? 1U : 0U}); }
  void branched(const SeenBranch& b) override {
    add("branched", {b.at, b.fall_through, b.to, static_cast<std::uint64_t>(b.kind), b.now});
    if (b.taken) all.back() += " taken";
  }
  void abandoned() override { add("abandoned", {}); }
  void flushed_line(const SeenFlush& f) override { add("flushed_line", {f.linear, f.physical, f.now}); }
  void flushed(const TlbFlush&) override { add("flushed", {}); }

  std::vector<std::string> all;

 private:
  void add(std::string text, const std::vector<std::uint64_t>& values) {
    for (const std::uint64_t value : values) text += " " + std::to_string(value);
    all.push_back(std::move(text));
  }
};

using Lines = std::vector<std::string>;

struct SeenRow {
  Seen seen;
  Lines told;
};

TEST(Seen, TellsEachKindsMembers) {
  const std::array rows{
      SeenRow{{.code = {.page_bytes = 4096, .linear = 1, .physical = 2}}, {"fetched 1 2 4096"}},
      SeenRow{{.access = {.bytes = 8, .page_bytes = 4096, .linear = 1, .physical = 2, .now = 3}},
              {"accessed 1 2 4096 8 3"}},
      SeenRow{{.access = {.flags = Seen::store | Seen::second_half | Seen::retires | Seen::op_stores,
                          .bytes = 8,
                          .page_bytes = 4096,
                          .linear = 1,
                          .physical = 2,
                          .now = 3}},
              {"accessed 1 2 4096 8 3 store second_half", "retired 0 1"}},
      SeenRow{{.access = {.flags = Seen::store | Seen::locked, .bytes = 8, .page_bytes = 4096, .linear = 1}},
              {"accessed 1 0 4096 8 0 store locked"}},
      SeenRow{{.access = {.flags = Seen::prefetch_to_l2, .bytes = 1, .linear = 1}},
              {"accessed 1 0 0 1 0 prefetch 2 not mapped"}},
      SeenRow{{.retired = {.flags = Seen::op_loads}}, {"retired 1 0"}},
      SeenRow{{.retired = {.flags = Seen::op_stores}}, {"retired 0 1"}},
      SeenRow{{.branch = {.branch_kind = BranchKind::conditional, .now = 4, .at = 1, .fall_through = 2, .to = 3}},
              {"branched 1 2 3 1 4"}},
      SeenRow{{.branch = {.branch_kind = BranchKind::conditional, .taken = true, .at = 1}},
              {"branched 1 0 0 1 0 taken"}},
      SeenRow{{.abandoned = {}}, {"abandoned"}},
      SeenRow{{.flush = {.linear = 1, .physical = 2, .now = 3}}, {"flushed_line 1 2 3"}},
  };
  for (const SeenRow& row : rows) {
    ToldEvents events;
    events.saw(std::span{&row.seen, 1});
    EXPECT_EQ(events.all, row.told);
  }
}

TEST(Seen, TellsEventsInTheirOrder) {
  const std::array seen{Seen{.abandoned = {}}, Seen{.retired = {.flags = Seen::op_loads}}, Seen{.flush = {}}};
  ToldEvents events;
  events.saw(seen);
  EXPECT_EQ(events.all, (Lines{"abandoned", "retired 1 0", "flushed_line 0 0 0"}));
}

}  // namespace
}  // namespace vpmu::test
