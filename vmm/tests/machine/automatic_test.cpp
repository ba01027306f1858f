#include "machine/automatic.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <string>
#include <vector>

#include "fakes/code_file.hpp"
#include "machine/machine.hpp"
#include "snapshot/snapshot_file.hpp"

namespace vmm {
namespace {

using Verdict = Finding::Verdict;

const std::vector<Finding> fit{{Verdict::good, "/dev/kvm", "opens", ""},
                               {Verdict::limited, "perf cpu-clock", "perf_event_open: no", "a timer serves instead"}};
const std::vector<Finding> unfit{{Verdict::good, "/dev/kvm", "opens", ""},
                                 {Verdict::unfit, "RDPMC", "does not fault", "newer"},
                                 {Verdict::unfit, "ring-0 speed", "low", "newer"}};

/// A host that gives these findings, and counts what it was asked.
struct SaidHost {
  std::vector<Finding> findings;
  int examined{}, chosen_on_kvm{}, chosen_off_kvm{};

  HostQuestions questions() {
    return {.examine =
                [this](const std::string&) {
                  ++examined;
                  return findings;
                },
            .choose_source = [this](bool on_kvm) -> Result<SourceChoice> {
              ++(on_kvm ? chosen_on_kvm : chosen_off_kvm);
              return on_kvm ? SourceChoice{.name = "perf", .why = "perf: it passes"}
                            : SourceChoice{.name = "exact", .why = "exact: the engine counts"};
            }};
  }
};

TEST(Settle, TakesKvmAndItsSourceWhereKvmIsFit) {
  SaidHost host{fit};
  MachineConfig config{.kernel = "k"};
  const auto chosen = choose_automatic(config, host.questions());
  ASSERT_TRUE(chosen) << describe(chosen.error());
  EXPECT_EQ(config.accel, Accel::kvm);
  EXPECT_EQ(config.source, "perf");
  EXPECT_TRUE(config.source_options.was_open);
  EXPECT_EQ(chosen->lines(), (std::vector<std::string>{"processors by KVM", "source perf: it passes"}));
  EXPECT_FALSE(chosen->passes_over_kvm);
}

TEST(Settle, TakesTheEngineElseAndNamesTheFirstReason) {
  SaidHost host{unfit};
  MachineConfig config{.kernel = "k"};
  const auto chosen = choose_automatic(config, host.questions());
  ASSERT_TRUE(chosen) << describe(chosen.error());
  EXPECT_EQ(config.accel, Accel::soft);
  EXPECT_EQ(config.source, "exact");
  EXPECT_EQ(chosen->lines(), (std::vector<std::string>{"processors by the instruction engine; KVM is not fit: RDPMC: "
                                                       "does not fault",
                                                       "source exact: the engine counts"}));
  EXPECT_TRUE(chosen->passes_over_kvm) << "there is one, so the user may expect it";
}

TEST(Settle, TellsAKvmThatIsPassedOverFromNone) {
  SaidHost host{{{Verdict::unfit, "/dev/kvm", "No such file or directory", "load kvm"}}};
  MachineConfig config{.kernel = "k"};
  const auto chosen = choose_automatic(config, host.questions());
  ASSERT_TRUE(chosen);
  EXPECT_EQ(config.accel, Accel::soft);
  EXPECT_FALSE(chosen->passes_over_kvm);
  MachineConfig named{.kernel = "k", .accel = Accel::soft};
  ASSERT_TRUE(choose_automatic(named, host.questions()));
  EXPECT_FALSE(choose_automatic(named, host.questions())->passes_over_kvm) << "the user has chosen";
}

TEST(Settle, WhatIsNamedStaysAndIsNotAskedFor) {
  SaidHost host{unfit};
  MachineConfig config{.kernel = "k", .source = "clock", .accel = Accel::kvm};
  const auto chosen = choose_automatic(config, host.questions());
  ASSERT_TRUE(chosen);
  EXPECT_TRUE(chosen->lines().empty());
  EXPECT_EQ(config.accel, Accel::kvm);
  EXPECT_EQ(config.source, "clock");
  EXPECT_FALSE(config.source_options.was_open);
  EXPECT_EQ(host.examined + host.chosen_on_kvm + host.chosen_off_kvm, 0);

  MachineConfig on_kvm{.kernel = "k", .accel = Accel::kvm};
  ASSERT_TRUE(choose_automatic(on_kvm, host.questions()));
  EXPECT_EQ(on_kvm.source, "perf") << "the best for the accelerator that was named, not for the one that fits";
  EXPECT_EQ(host.examined, 0);
}

TEST(Settle, OnlyTheExactSourceKeepsTheTimeOfAPipeline) {
  SaidHost host{fit};
  MachineConfig config{.kernel = "k", .source_options = {.time = TimeModel::pipeline}};
  const auto chosen = choose_automatic(config, host.questions());
  ASSERT_TRUE(chosen);
  EXPECT_EQ(config.source, "exact");
  EXPECT_EQ(chosen->lines().back(), "source exact: only it keeps the time of a pipeline");
  for (const char* source : {"clock", "perf", "step", "kvm"}) {
    MachineConfig named{.kernel = "k", .source = source, .source_options = {.time = TimeModel::pipeline}};
    const auto refused = choose_automatic(named, host.questions());
    ASSERT_FALSE(refused) << source;
    EXPECT_EQ(refused.error().kind, ErrorKind::usage);
    EXPECT_NE(describe(refused.error()).find("give --source exact with --time pipeline"), std::string::npos);
  }
}

TEST(Settle, OnlyTheExactSourceHasAModelWhoseParametersAreSet) {
  SaidHost host{fit};
  vpmu::uarch::ProfileChanges changes;
  ASSERT_FALSE(changes.add("dram=240,l3=16M"));
  MachineConfig config{.kernel = "k", .source_options = {.changes = changes}};
  const auto chosen = choose_automatic(config, host.questions());
  ASSERT_TRUE(chosen);
  EXPECT_EQ(config.source, "exact");
  EXPECT_FALSE(config.source_options.was_open) << "the clock, which would count if it failed, has no model";
  EXPECT_EQ(chosen->source, "exact: only it has a processor model, whose parameters are set");
  EXPECT_EQ(chosen->lines().back(), "set l3=16M,dram=240");
  for (const char* source : {"clock", "perf", "step", "kvm"}) {
    MachineConfig named{.kernel = "k", .source = source, .source_options = {.changes = changes}};
    const auto refused = choose_automatic(named, host.questions());
    ASSERT_FALSE(refused) << source;
    EXPECT_EQ(refused.error().kind, ErrorKind::usage);
    EXPECT_EQ(describe(refused.error()),
              fmt::format("source {} has no processor model, of which l3=16M,dram=240 could be set; give --source "
                          "exact with --set",
                          source));
  }
}

TEST(Settle, ASourceThatCannotBeChosenIsAFailureThatChangesNothing) {
  SaidHost host{fit};
  HostQuestions questions = host.questions();
  questions.choose_source = [](bool) -> Result<SourceChoice> { return host_error("no jail"); };
  MachineConfig config{.kernel = "k"};
  const auto chosen = choose_automatic(config, questions);
  ASSERT_FALSE(chosen);
  EXPECT_EQ(chosen.error().what, "no jail");
  EXPECT_EQ(config.accel, Accel::automatic);
  EXPECT_EQ(config.source, "auto");
}

TEST(Settle, AMachineGoesOnOnWhatItWasSavedOn) {
  const std::string path = testing::TempDir() + "settle_" + std::to_string(::getpid());
  MachineImage image{
      .model = "skylake", .memory_bytes = 16U << 20U, .cpus = 1, .threads_per_core = 2, .vcpus = {Bytes{}}};
  const auto settled_from = [&](bool without_kvm, const std::vector<Finding>& findings) {
    image.without_kvm = without_kvm;
    EXPECT_TRUE(write_snapshot(*new_snapshot_file(path), image, *GuestMemory::create(image.memory_bytes)));
    SaidHost host{findings};
    MachineConfig config{.restore = path};
    const auto chosen = choose_automatic(config, host.questions());
    ::unlink(path.c_str());
    return chosen ? std::string{name_of(config.accel)} + ": " + chosen->accel : describe(chosen.error());
  };
  EXPECT_EQ(settled_from(true, fit), "soft: processors by the instruction engine, as it was saved");
  EXPECT_EQ(settled_from(false, fit), "kvm: processors by KVM");
  const std::string refused = settled_from(false, unfit);
  EXPECT_NE(refused.find("goes on on KVM only, and KVM is not fit: RDPMC: does not fault"), std::string::npos)
      << refused;
}

// A user of the library who chooses nothing gets the same defaults as the command line, and the same reasons in the
// log.
TEST(Settle, AMachineIsMadeOfAConfigurationThatLeavesAllOpen) {
  const test::CodeFile kernel{{0xFA, 0xF4}};  // cli; hlt: nothing can wake it
  std::vector<std::string> told;
  Log log{[&](LogLevel level, std::string_view line) {
    told.push_back(std::string{name_of(level)} + ": " + std::string{line});
  }};
  const MachineConfig config{.kernel = kernel.path(), .memory_bytes = 16U << 20U, .kvm_device = "/dev/no-kvm"};
  auto machine = Machine::create(config, {}, log);
  ASSERT_TRUE(machine) << describe(machine.error());
  MachineConfig settled_here = config;
  const auto chosen = choose_automatic(settled_here);
  ASSERT_TRUE(chosen);
  EXPECT_EQ(settled_here.accel, Accel::soft);
  ASSERT_GE(told.size(), 2U);
  EXPECT_EQ(told[0], "info: " + chosen->lines()[0]);
  EXPECT_EQ(told[0].find("info: processors by the instruction engine; KVM is not fit: /dev/no-kvm: cannot open"), 0U)
      << told[0];
  EXPECT_EQ(told[1], "info: " + chosen->lines()[1]);
  EXPECT_EQ(told[1].find("info: source exact: the engine that runs the guest counts"), 0U) << told[1];
  (*machine)->start();
  EXPECT_EQ((*machine)->wait(), StopReason::power_off);
}

}  // namespace
}  // namespace vmm
