#include "tables/models.hpp"
#include "command_line.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace vmm::tool::test {
namespace {

// The 24 models, oldest first; scripts read the first column.
TEST(ModelsCommand, HasALinePerModel) {
  const std::string text = list_models();
  EXPECT_EQ(std::ranges::count(text, '\n'), 1 + 24);
  EXPECT_TRUE(text.starts_with("MODEL "));
  EXPECT_LT(text.find("\nnehalem "), text.find("\nskylake "));
}

TEST(ModelsCommand, TellsThePmuOfEach) {
  const std::string text = list_models();
  const auto line = [&](const std::string& name) {
    const std::size_t begin = text.find("\n" + name + " ") + 1;
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  EXPECT_EQ(line("nehalem").substr(0, 65), "nehalem            06_1AH/5  nehalem          4     fmt1  16   In");
  EXPECT_EQ(line("skylake").substr(0, 65), "skylake            06_5EH/3  skylake          4/8   fmt3  32   In");
}

// By the names that Linux shows in /proc/cpuinfo.
TEST(ModelsCommand, TellsTheFeaturesOfEachCpu) {
  const std::string text = list_models(true);
  const auto features = [&](const std::string& name) {
    const std::size_t begin = text.find("    features: ", text.find("\n" + name + " "));
    return text.substr(begin, text.find('\n', begin) - begin) + ' ';
  };
  EXPECT_EQ(features("nehalem").find(" xsave "), std::string::npos);
  EXPECT_NE(features("nehalem").find(" sse4_2 "), std::string::npos);
  EXPECT_NE(features("sandybridge").find(" avx "), std::string::npos);
  EXPECT_EQ(features("sandybridge").find(" avx2 "), std::string::npos);
  EXPECT_NE(features("haswell").find(" avx2 "), std::string::npos);
  EXPECT_NE(text.find("    not with --accel soft: vme mce mca "), std::string::npos) << text;
  const auto models = nlohmann::json::parse(list_models_as_json());
  EXPECT_EQ(models[0]["features"][0], "pni");
}

TEST(ModelsCommand, TellsTheSizesAndTimesOfEach) {
  const std::string text = list_models(true);
  std::size_t told = 0;
  for (std::size_t at = 0; (at = text.find("\n    memory (", at)) != std::string::npos; ++at) ++told;
  EXPECT_EQ(told, 24U);
  const std::string haswell = text.substr(text.find("\nhaswell "));
  EXPECT_NE(haswell.find("L1D 32 KiB of 8 ways, 4 cycles; L2 256 KiB of 8 ways, 12 cycles, replacement by a tree; "
                         "L3 8 MiB of 16 ways, 34 cycles, "
                         "inclusive, replacement adaptive"),
            std::string::npos);
  EXPECT_NE(haswell.find("57 ns behind the L3, 176 cycles in all at 2500 MHz"), std::string::npos);
  EXPECT_NE(haswell.find("reorder buffer 192, scheduler 60, loads 72, stores 42"), std::string::npos);
}

TEST(ModelsCommand, GivesTheSameAsJson) {
  const auto models = nlohmann::json::parse(list_models_as_json());
  ASSERT_EQ(models.size(), 24U);
  EXPECT_EQ(models[0]["model"], "nehalem");
  const auto skylake = std::ranges::find(models, "skylake", [](const auto& model) { return model["model"]; });
  ASSERT_NE(skylake, models.end());
  EXPECT_EQ((*skylake)["cpu"], "06_5EH/3");
  EXPECT_EQ((*skylake)["pmu"], "skylake");
  EXPECT_EQ((*skylake)["pmcs"], 4);
  EXPECT_EQ((*skylake)["pmcs_no_smt"], 8);
  EXPECT_EQ((*skylake)["pebs_format"], 3);
  EXPECT_EQ((*skylake)["lbr_depth"], 32);
}

TEST(ModelsCommand, PrintsTheListThatIsAskedFor) {
  for (const auto& [words, expected] : {std::pair{"models", list_models()},
                                        {"models -v", list_models(true)},
                                        {"models --json", list_models_as_json()}}) {
    CommandLine app{"", "vpmu"};
    int exit_code = -1;
    add_models(app, exit_code);
    testing::internal::CaptureStdout();
    EXPECT_EQ(app.parse(words).kind, ParseOutcome::Kind::parsed);
    EXPECT_EQ(testing::internal::GetCapturedStdout(), expected);
    EXPECT_EQ(exit_code, 0);
  }
}

}  // namespace
}  // namespace vmm::tool::test
