#include "machine/config.hpp"

#include <gtest/gtest.h>

#include "model/own_part.hpp"

namespace vmm {
namespace {

TEST(ParseSize, TakesPlainNumbersAndUnits) {
  EXPECT_EQ(parse_size("4096"), 4096U);
  EXPECT_EQ(parse_size("64K"), 64U << 10U);
  EXPECT_EQ(parse_size("512M"), 512ULL << 20U);
  EXPECT_EQ(parse_size("3g"), 3ULL << 30U);
}

TEST(ParseSize, RefusesEverythingElseAndShowsIt) {
  for (const char* text : {"", "M", "-1", "1.5G", "512MB", "0x10", " 1G", "99999999999G", "18446744073709551616"}) {
    const auto size = parse_size(text);
    ASSERT_FALSE(size) << text;
    EXPECT_EQ(size.error().kind, ErrorKind::usage);
    EXPECT_NE(size.error().what.find(text), std::string::npos);
  }
}

TEST(ParseAccel, TakesTheNamesOfTheCommandLine) {
  EXPECT_EQ(parse_accel("auto"), Accel::automatic);
  EXPECT_EQ(parse_accel("kvm"), Accel::kvm);
  EXPECT_EQ(parse_accel("soft"), Accel::soft);
  const auto refused = parse_accel("warp");
  ASSERT_FALSE(refused);
  EXPECT_EQ(describe(refused.error()), "unknown accelerator \"warp\"; give one of: auto, kvm, soft with --accel");
}

TEST(ResolveConfig, DefaultsAreGood) {
  const auto resolved = resolve({.kernel = "vmlinuz", .source = "clock"});
  ASSERT_TRUE(resolved) << describe(resolved.error());
  EXPECT_EQ(resolved->model->generation, vpmu::Generation::skylake);
  EXPECT_EQ(resolved->source, "clock");
}

TEST(ResolveConfig, ChangesFitTheModelAndTheSource) {
  const auto answer = [](std::string_view text, const char* model, const char* source) {
    MachineConfig config{.kernel = "k", .model = model, .source = source};
    EXPECT_TRUE(add_changes(text, config.source_options.changes)) << text;
    const auto resolved = resolve(config);
    return resolved ? std::string{} : describe(resolved.error());
  };
  EXPECT_EQ(answer("l3=512K", "skylake", "exact"), "");
  EXPECT_EQ(answer("l3=512K", "skylake-sp", "exact"), "") << "a victim cache";
  EXPECT_EQ(answer("l3=64K", "skylake", "exact"),
            "an L3 of 64K cannot hold the L2's 256K, as one that is inclusive does; give a larger l3, or a smaller l2 "
            "with --set");
  EXPECT_EQ(answer("l3=16M", "skylake", "clock"),
            "source clock has no processor model, of which l3=16M could be set; give --source exact with --set");
  vpmu::uarch::ProfileChanges changes;
  const auto wrong = add_changes("l4=1M", changes);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().kind, ErrorKind::usage);
  EXPECT_TRUE(describe(wrong.error()).starts_with("no parameter \"l4\"; give NAME=VALUE of one of: l1d, "));
}

TEST(ResolveConfig, WrongNamesAndNumbersAreShownWithTheChoice) {
  const auto what = [](MachineConfig config) {
    if (config.source == "auto") config.source = "clock";
    const auto resolved = resolve(config);
    EXPECT_FALSE(resolved);
    EXPECT_EQ(resolved.error().kind, ErrorKind::usage);
    return describe(resolved.error());
  };
  EXPECT_NE(what({.kernel = "k", .model = "p4"}).find("unknown model \"p4\"; give one of: nehalem, "),
            std::string::npos);
  const auto source = what({.kernel = "k", .source = "oracle"});
  EXPECT_NE(source.find("unknown source \"oracle\""), std::string::npos);
  EXPECT_NE(source.find("auto, clock"), std::string::npos) << source;
  EXPECT_NE(what({.kernel = "k", .cpus = 0}).find("bad number of CPUs 0"), std::string::npos);
  EXPECT_NE(
      what({.kernel = "k", .threads_per_core = 3}).find("bad number of threads of a core 3; give --threads 1 or 2"),
      std::string::npos);
  EXPECT_NE(what({.kernel = "k", .cpus = 65}).find("give 1 to 64"), std::string::npos);
  EXPECT_NE(what({.kernel = "k", .memory_bytes = 1}).find("bad memory size of 1 bytes"), std::string::npos);
}

TEST(ResolveConfig, ASourceThatNobodyHasSettledIsRefused) {
  const auto open = resolve({.kernel = "k"});
  ASSERT_FALSE(open);
  EXPECT_EQ(describe(open.error()), "the source is still open; choose_automatic() the configuration first");
}

TEST(ResolveConfig, HostsPmuCountsNoGuestOfTheEngine) {
  const auto soft = resolve({.kernel = "k", .source = "perf", .accel = Accel::soft});
  ASSERT_FALSE(soft);
  EXPECT_EQ(soft.error().kind, ErrorKind::usage);
  EXPECT_NE(describe(soft.error()).find("source \"perf\" counts what the host's processor runs"), std::string::npos)
      << describe(soft.error());
  EXPECT_EQ(resolve({.kernel = "k", .source = "perf"})->source, "perf");
  EXPECT_EQ(resolve({.kernel = "k", .source = "exact", .accel = Accel::soft})->source, "exact");
}

TEST(ResolveConfig, KvmsOwnPmuIsASourceWithModelsAndPoliciesOfItsOwn) {
  const auto refusal = [](const MachineConfig& config) {
    const auto resolved = resolve(config);
    EXPECT_FALSE(resolved);
    return resolved ? std::string{} : describe(resolved.error());
  };
  const auto host = resolve({.kernel = "k", .model = "host", .source = "kvm"});
  ASSERT_TRUE(host) << describe(host.error());
  EXPECT_TRUE(host->passes_through());
  EXPECT_EQ(host->model, nullptr);
  EXPECT_FALSE(resolve({.kernel = "k", .source = "clock"})->passes_through());
  EXPECT_NE(refusal({.kernel = "k", .model = "host", .source = "clock"}).find("model \"host\" is for the source kvm"),
            std::string::npos);
  EXPECT_NE(refusal({.kernel = "k", .source = "kvm", .accel = Accel::soft}).find("does not run there"),
            std::string::npos);
  const EventPolicy few{.rule = EventPolicy::Rule::nothing_but};
  EXPECT_NE(refusal({.kernel = "k", .source = "clock", .events = few}).find("a policy of events is for the source kvm"),
            std::string::npos);
  EXPECT_TRUE(resolve({.kernel = "k", .source = "kvm", .events = few}));
}

}  // namespace
}  // namespace vmm
