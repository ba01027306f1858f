// A model that is saved and restored elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <span>
#include <vector>

#include "accesses.hpp"
#include "uarch/processor_model.hpp"

namespace vpmu::uarch::test {
namespace {

/// Random instructions: loads, stores, fetches, branches of all kinds, sometimes a new CR3.
class RandomTrace {
 public:
  explicit RandomTrace(std::uint32_t seed) : random_{seed} {}
  std::vector<Retirement> run(ProcessorModel& model, unsigned instructions) {
    std::vector<Retirement> all;
    for (unsigned n = 0; n < instructions; ++n) all.push_back(one(model));
    return all;
  }
  [[nodiscard]] std::uint64_t now() const { return now_; }
  void begin_at(std::uint64_t now) { now_ = now; }

 private:
  /// Often one of the last few addresses, else in one of 4 lines of 400 pages.
  std::uint64_t address() {
    if (pick(3) != 0) return recent_.at(pick(recent_.size()));
    return recent_.at(pick(recent_.size())) = 0x10'0000 + pick(400) * 4096 + pick(4) * line_bytes + pick(8);
  }
  std::uint64_t pick(std::uint64_t below) { return random_() % below; }
  /// Mostly predictable: calls and returns in pairs, and targets that depend on the branch's address.
  SeenBranch branch(std::uint64_t ip) {
    using enum BranchKind;
    constexpr std::array kinds{conditional, near_ret, near_rel_call, near_ind_call, near_ind_jmp};
    const BranchKind kind = kinds.at(pick(kinds.size()));
    std::uint64_t to = 0x40'0000 + (pick(8) == 0 ? pick(50) : ip / 4 % 7) * 4;
    if (kind == near_ret && !calls_.empty()) {
      to = calls_.back();
      calls_.pop_back();
    }
    if (is_near_call(kind) && calls_.size() < 12) calls_.push_back(ip + 4);
    return {.at = ip, .fall_through = ip + 4, .to = to, .kind = kind, .taken = kind != conditional || pick(3) != 0};
  }
  Retirement one(ProcessorModel& model) {
    const std::uint64_t kind = pick(8), ip = 0x40'0000 + pick(pick(2) == 0 ? 40 : 3000) * 4;
    model.begin_instruction();
    if (pick(4) == 0) model.fetched({.linear = ip, .physical = ip, .page_bytes = 4096});
    const bool load = kind < 3, store = kind == 3;
    if (load) model.accessed(load_of(address()), now_);
    if (store) model.accessed(store_of(address()), now_);
    if (load || store) model.retired(load, store);
    Retirement r{.has_load = load, .has_store = store};
    if (kind >= 5) {
      const SeenBranch b = branch(ip);
      r.branch.kind = b.kind;
      model.branched(b);
    }
    if (pick(5000) == 0) model.flushed({});
    now_ += 1 + pick(3);
    model.complete(r);
    return r;
  }

  std::array<std::uint64_t, 16> recent_{};
  std::vector<std::uint64_t> calls_;
  std::mt19937 random_;
  std::uint64_t now_{};
};

using Parts = std::vector<std::vector<std::byte>>;
Parts saved(ProcessorModel& model, std::uint64_t now) {
  Parts parts;
  model.visit_state([&parts](std::span<std::byte> part) { parts.emplace_back(part.begin(), part.end()); }, now);
  return parts;
}
void restore(ProcessorModel& model, const Parts& parts) {
  std::size_t n = 0;
  model.visit_state([&](std::span<std::byte> part) { std::ranges::copy(parts.at(n++), part.begin()); }, 0);
  EXPECT_EQ(n, parts.size());
}

bool same(const Retirement& a, const Retirement& b) {
  return a.load.level == b.load.level && a.load.latency == b.load.latency && a.load.stlb_miss == b.load.stlb_miss &&
         a.store.level == b.store.level && a.store.stlb_miss == b.store.stlb_miss &&
         a.branch.mispredicted == b.branch.mispredicted && a.frontend.dsb_miss == b.frontend.dsb_miss &&
         a.frontend.l1i_misses == b.frontend.l1i_misses && a.frontend.baclears == b.frontend.baclears &&
         a.frontend.itlb_stlb_hits == b.frontend.itlb_stlb_hits && a.frontend.itlb_walks == b.frontend.itlb_walks;
}

TEST(AProcessorModelThatIsSaved, GoesOnAsItWouldHave) {
  for (const std::string_view name : {"nehalem", "haswell", "skylake-sp"}) {
    const Profile* const profile = find_profile(name);
    ASSERT_NE(profile, nullptr);
    ProcessorModel model{*profile};
    RandomTrace trace{1};
    trace.run(model, 20'000);
    std::vector<Retirement> all;
    for (int round = 0; round < 30; ++round) {
      // The other model's engine has a clock that starts at 0.
      ProcessorModel other{*profile};
      RandomTrace rest = trace;
      rest.begin_at(0);
      restore(other, saved(model, trace.now()));
      const auto expected = trace.run(model, 700), seen = rest.run(other, 700);
      ASSERT_TRUE(std::ranges::equal(expected, seen, same)) << name << ", round " << round;
      ASSERT_TRUE(saved(model, trace.now()) == saved(other, rest.now())) << name << ", round " << round;
      all.insert(all.end(), expected.begin(), expected.end());
    }
    const auto loads_from = [&](HitLevel level) {
      return std::ranges::count_if(all, [&](const Retirement& r) { return r.load.level == level; });
    };
    const auto branches = [&](BranchKind kind, bool mispredicted) {
      return std::ranges::count_if(
          all, [&](const Retirement& r) { return r.branch.kind == kind && r.branch.mispredicted == mispredicted; });
    };
    EXPECT_GT(loads_from(HitLevel::lfb), 100);
    EXPECT_GT(loads_from(HitLevel::l2), 100);
    EXPECT_GT(std::ranges::count_if(all, [](const Retirement& r) { return r.load.stlb_miss; }), 100);
    for (const BranchKind kind : {BranchKind::conditional, BranchKind::near_ret, BranchKind::near_ind_jmp}) {
      EXPECT_GT(branches(kind, true), 20) << static_cast<int>(kind);
      EXPECT_GT(branches(kind, false), 5) << static_cast<int>(kind);
    }
  }
}

// A state of random bytes must not harm: the model still returns results.
TEST(AProcessorModelThatIsSaved, TakesAnyBytes) {
  std::mt19937 random{2};
  for (unsigned round = 0; round < 200; ++round) {
    ProcessorModel model{*find_profile("skylake")};
    RandomTrace trace{3};
    trace.run(model, 1000);
    const std::size_t largest = round % 2 == 0 ? 8 : ~std::size_t{0};  // or words alone: the caches' contents stay
    const auto change = [&](std::span<std::byte> part) {
      if (part.size() <= largest)
        for (std::byte& b : part) b = static_cast<std::byte>(random());
    };
    model.visit_state(change, trace.now());
    EXPECT_EQ(trace.run(model, 200).size(), 200U);
  }
}

// Time that has passed since the last access is part of the state: a fill that has ended meanwhile is not in flight.
TEST(AProcessorModelThatIsSaved, HasTheTimeThatHasPassed) {
  ProcessorModel model{*find_profile("skylake")};
  model.accessed(load_of(0x1000), 0);
  model.retired(true, false);
  ProcessorModel other{*find_profile("skylake")};
  restore(other, saved(model, 5000));
  other.begin_instruction();
  other.accessed(load_of(0x1000), 0);
  other.retired(true, false);
  Retirement r{.has_load = true};
  other.complete(r);
  EXPECT_EQ(r.load.level, HitLevel::l1);
}

/// A core of two threads, with someone else who keeps the time.
struct TwoThreads {
  TwoThreads() { caches.keep_time_outside(); }
  Hierarchy caches{*find_profile("skylake"), 2};
  ProcessorModel first{caches, 0}, second{caches, 1};
};

// Each thread saves the core's caches, as they are when it is asked. What was saved last holds, whoever restores first.
TEST(AProcessorModelThatIsSaved, SharesACoreWithAnother) {
  TwoThreads core;
  core.first.accessed(load_of(0x1000), 0);
  core.first.retired(true, false);
  const Parts of_first = saved(core.first, 1000);
  core.second.accessed(load_of(0x2000), 0);
  core.second.retired(true, false);
  const Parts of_second = saved(core.second, 5000);
  const auto sizes = [](const Parts& parts) {
    std::vector<std::size_t> all;
    for (const auto& part : parts) all.push_back(part.size());
    return all;
  };
  TwoThreads other;
  restore(other.second, of_second);
  std::vector<std::size_t> asked;
  std::size_t n = 0;
  const auto take = [&](std::span<std::byte> part) {
    asked.push_back(part.size());
    const auto& from = of_first.at(n++);
    if (from.size() == part.size()) std::ranges::copy(from, part.begin());
  };
  other.first.visit_state(take, 0);
  EXPECT_EQ(asked, sizes(of_first));
  other.first.begin_instruction();
  other.first.accessed(load_of(0x2000), 0);
  other.first.retired(true, false);
  Retirement r{.has_load = true};
  other.first.complete(r);
  EXPECT_FALSE(is_below_l2(r.load.level)) << "the second thread's line, which was saved later";
}

}  // namespace
}  // namespace vpmu::uarch::test
