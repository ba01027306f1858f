#include "command_line.hpp"
#include "tables/events.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <string>

#include "model/model.hpp"

namespace vmm::tool::test {
namespace {

struct CommandResult {
  int exit_code;
  std::string output;
  std::string errors;
};

CommandResult run_vpmu(const std::string& arguments) {
  CommandLine app{"", "vpmu"};
  int exit_code = -1;
  add_events(app, exit_code);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  if (const ParseOutcome outcome = app.parse(arguments); outcome.kind == ParseOutcome::Kind::wrong) {
    exit_code = 2;
    std::fprintf(stderr, "%s\n", outcome.message.c_str());
  }
  return {exit_code, testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
}

TEST(EventsCommand, PrintsTheModelsEvents) {
  const CommandResult result = run_vpmu("events --model skylake");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.output.find("MEM_INST_RETIRED.ALL_LOADS"), std::string::npos);
  EXPECT_EQ(result.errors, "");
}

TEST(EventsCommand, HasFourFormats) {
  EXPECT_TRUE(run_vpmu("events --model skylake").output.starts_with("RAW "));
  EXPECT_TRUE(run_vpmu("events --model skylake --wide").output.starts_with("EVENT "));
  EXPECT_NE(run_vpmu("events --model skylake --source clock").output.find("SOURCE clock"), std::string::npos);
  EXPECT_TRUE(run_vpmu("events --model skylake --markdown").output.starts_with("# Events of skylake\n"));
  EXPECT_TRUE(run_vpmu("events --model skylake --json").output.starts_with("{\n"));
  EXPECT_EQ(run_vpmu("events --model skylake --json --markdown").exit_code, 2);
}

TEST(EventsCommand, FitsInATerminalOnEachModel) {
  for (const MachineModel& model : all_machine_models()) {
    const CommandResult result = run_vpmu("events --model " + std::string{model.name});
    std::istringstream lines{result.output};
    std::size_t count = 0;
    for (std::string line; std::getline(lines, line); ++count) EXPECT_LE(line.size(), 100U) << line;
    EXPECT_GT(count, 100U) << model.name;
  }
}

TEST(EventsCommand, ListsThoseWithTheWords) {
  const std::string all = run_vpmu("events --model haswell").output;
  const std::string some = run_vpmu("events --model haswell l2_rqsts miss").output;
  EXPECT_NE(some.find(" no   estimate L2_RQSTS.MISS\n"), std::string::npos) << some;
  EXPECT_EQ(some.find("L2_RQSTS.REFERENCES"), std::string::npos);
  EXPECT_LT(some.size(), all.size() / 10);
  const CommandResult none = run_vpmu("events --model haswell sundial");
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_TRUE(none.errors.starts_with("vpmu events: no event of haswell has \"sundial\" in its name")) << none.errors;
}

TEST(EventsCommand, RefusesAnUnknownModelInOneLine) {
  const CommandResult result = run_vpmu("events --model 'pentium\t4'");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.output, "");
  EXPECT_EQ(std::ranges::count(result.errors, '\n'), 1);
  EXPECT_TRUE(result.errors.starts_with("vpmu events: unknown model 'pentium")) << result.errors;
  EXPECT_NE(result.errors.find("known models: nehalem, "), std::string::npos) << result.errors;
}

TEST(EventsCommand, RefusesAnUnknownSourceInOneLine) {
  const CommandResult result = run_vpmu("events --model skylake --source sundial");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(std::ranges::count(result.errors, '\n'), 1);
  EXPECT_TRUE(result.errors.starts_with("vpmu events: unknown source 'sundial'; known sources: clock"))
      << result.errors;
}

TEST(EventsCommand, WantsAModel) {
  const CommandResult result = run_vpmu("events");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(result.errors.starts_with("vpmu events: --model is required; known models: nehalem, ")) << result.errors;
}

TEST(EventsCommand, PrintsGapsOfOneModelOrOfAll) {
  const CommandResult one = run_vpmu("events --gaps --model skylake-u");
  EXPECT_EQ(one.exit_code, 0);
  EXPECT_TRUE(one.output.starts_with("skylake: ")) << one.output;
  const CommandResult all = run_vpmu("events --gaps");
  EXPECT_EQ(all.exit_code, 0);
  for (const char* const name : {"nehalem: ", "\nwestmere-ep: ", "\nskylake-sp: "})
    EXPECT_NE(all.output.find(name), std::string::npos) << name;
  EXPECT_EQ(run_vpmu("events --gaps --json").exit_code, 2);
}

}  // namespace
}  // namespace vmm::tool::test
