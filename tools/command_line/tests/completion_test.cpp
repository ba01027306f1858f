#include "completion.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sample_program.hpp"

namespace vmm::tool::test {
namespace {

using Words = std::vector<std::string>;

Completion completion_of(const Words& words) { return complete(SampleProgram{}.describe(), words); }

/// The candidates, each followed by a space, after what the shell itself offers.
std::string offered(const Words& words) {
  const Completion completion = completion_of(words);
  std::string text = to_text(completion);
  text = text.substr(0, text.find('\n')) + ":";
  for (const auto& candidate : completion.candidates) text += " " + candidate.word;
  return text;
}

TEST(Completion, OffersCommandsThatAreNotHidden) {
  EXPECT_EQ(offered({""}), "words: boot report");
  EXPECT_EQ(offered({"re"}), "words: report");
  EXPECT_EQ(offered({"s"}), "words:");
  EXPECT_EQ(offered({"report", ""}), "words: show merge");
  EXPECT_EQ(offered({"report", "m"}), "words: merge");
}

TEST(Completion, OffersOptionsOfTheCommand) {
  EXPECT_EQ(offered({"-"}), "words: --help --version");
  EXPECT_EQ(offered({"boot", "-"}), "words: --kernel --restore --help --model --accel --cpus --policy --events");
  EXPECT_EQ(offered({"report", "show", "--f"}), "words: --format");
  EXPECT_EQ(offered({"report", "merge", ""}), "words: --help --into") << "there is nothing else to give";
}

TEST(Completion, OffersAnOptionOnceUnlessItMayBeRepeated) {
  EXPECT_EQ(offered({"boot", "-m", "haswell", "--mo"}), "words:");
  EXPECT_EQ(offered({"boot", "--model=haswell", "--mo"}), "words:");
  EXPECT_EQ(offered({"boot", "--policy", "time=real", "--po"}), "words: --policy");
}

TEST(Completion, OffersValues) {
  EXPECT_EQ(offered({"boot", "--accel", ""}), "words: kvm soft");
  EXPECT_EQ(offered({"boot", "--model", "h"}), "words: haswell");
  EXPECT_EQ(offered({"boot", "-m", ""}), "words: haswell skylake");
  EXPECT_EQ(offered({"boot", "--model=s"}), "words: --model=skylake");
  EXPECT_EQ(offered({"boot", "--policy", "fault="}), "words: fault=drop fault=inject");
  EXPECT_EQ(offered({"boot", "--policy=fault=i"}), "words: --policy=fault=inject");
  EXPECT_EQ(offered({"boot", "--cpus", ""}), "words:");
  EXPECT_EQ(offered({"boot", "--accel", "kvm", "--model", "sk"}), "words: skylake");
}

TEST(Completion, OffersFilesWhereTheyCanBeGiven) {
  EXPECT_EQ(offered({"boot", "--kernel", "a"}), "files:");
  EXPECT_EQ(offered({"boot", "--kernel="}), "files:");
  EXPECT_EQ(offered({"boot", "--events", ""}), "files: all");
  EXPECT_EQ(offered({"report", "show", ""}), "files:");
  EXPECT_EQ(offered({"report", "show", "--format", "json", "--", "-"}), "files:");
  EXPECT_EQ(offered({"report", "show", "a", ""}), "words: --help --format");
  EXPECT_EQ(offered({"report", "show", "--", "a", ""}), "words:");
}

TEST(Completion, LeavesACommandToTheShell) {
  EXPECT_EQ(offered({"boot", "--kernel", "k", "--", ""}), "command 5:");
  EXPECT_EQ(offered({"boot", "--", "ls", "-"}), "command 3:");
  EXPECT_EQ(offered({"boot", "--", "ls", "--", "boot", "--model", ""}), "command 3:");
  EXPECT_EQ(offered({"boot", "ls", ""}), "command 2:");
}

TEST(Completion, PassesOverWhatItDoesNotKnow) {
  EXPECT_EQ(offered({"boot", "--unknown", "--acc"}), "words: --accel");
  EXPECT_EQ(offered({"boot", "--unknown="}), "words:");
  EXPECT_EQ(offered({"nothing", ""}), "words: boot report");
  EXPECT_TRUE(completion_of({}).candidates.empty());
}

TEST(Completion, TellsTheHelpOfEach) {
  EXPECT_EQ(to_text(completion_of({"boot", "--acc"})), "words\n--accel\tby what\n");
  EXPECT_EQ(to_text(completion_of({"boot", "--accel", "k"})), "words\nkvm\n");
}

TEST(CompletionScript, IsThereForEachShellAndNamesTheProgram) {
  ASSERT_EQ(completion_shells(), (Words{"bash", "zsh", "fish"}));
  for (const std::string& shell : completion_shells()) {
    const std::string script = completion_script(shell, "sample", "__ask").value_or("");
    EXPECT_NE(script.find(" __ask -- "), std::string::npos) << script;
    EXPECT_EQ(script.find("PROGRAM"), std::string::npos) << script;
    EXPECT_EQ(script.find("ASKED"), std::string::npos) << script;
  }
  EXPECT_FALSE(completion_script("tcsh", "sample", "__ask"));
}

}  // namespace
}  // namespace vmm::tool::test
