#include "attach/environment.hpp"

#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace vmm {
namespace {

AttachEnvironment with_log(const std::string& path) { return {.options = {}, .log = path, .statistics = {}}; }

TEST(AttachEnvironment, ALogThatCannotBeOpenedIsToldOfAndMessagesGoToStandardError) {
  testing::internal::CaptureStderr();
  Log log = make_log(with_log("/nowhere/at/all/vpmu.log"));
  log.warning("the first message");
  log.info("no warning");
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("vpmu: cannot write the file of VPMU_LOG /nowhere/at/all/vpmu.log: No such file or directory; "
                      "messages go to standard error instead\n"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("vpmu: warning: the first message\n"), std::string::npos) << said;
  EXPECT_EQ(said.find("no warning"), std::string::npos) << said;
}

// open() of a named pipe would block until it has a reader.
TEST(AttachEnvironment, ANamedPipeIsNoLog) {
  const auto path = std::filesystem::temp_directory_path() / ("vpmu-attach-pipe-" + std::to_string(::getpid()));
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  testing::internal::CaptureStderr();
  Log log = make_log(with_log(path));
  log.warning("the first message");
  const std::string said = testing::internal::GetCapturedStderr();
  std::filesystem::remove(path);
  EXPECT_NE(said.find("it is a named pipe"), std::string::npos) << said;
  EXPECT_NE(said.find("vpmu: warning: the first message\n"), std::string::npos) << said;
}

TEST(AttachEnvironment, ALogFileGetsAllMessages) {
  const auto path = std::filesystem::temp_directory_path() / ("vpmu-attach-log-" + std::to_string(::getpid()));
  testing::internal::CaptureStderr();
  {
    Log log = make_log(with_log(path));
    log.warning("the first message");
    log.debug("the second");
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  std::stringstream all;
  all << std::ifstream{path}.rdbuf();
  std::filesystem::remove(path);
  EXPECT_EQ(all.str(), "warning: the first message\ndebug: the second\n");
}

TEST(AttachEnvironment, KvmsOwnPmuIsNoSourceForTheLibrary) {
  ::setenv("VPMU_MODEL", "haswell", 1);
  ::setenv("VPMU_SOURCE", "exact", 1);
  const auto good = read_environment();
  ::setenv("VPMU_SOURCE", "kvm", 1);
  const auto refused = read_environment();
  ::unsetenv("VPMU_MODEL");
  ::unsetenv("VPMU_SOURCE");
  ASSERT_TRUE(good && *good);
  EXPECT_EQ((*good)->options.source, "exact");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::usage);
  EXPECT_NE(describe(refused.error()).find("the VMM's own PMU"), std::string::npos) << describe(refused.error());
}

TEST(AttachEnvironment, ItsRefusalsTellOfVariables) {
  const auto refusal = [](const char* model, const char* source) {
    ::setenv("VPMU_MODEL", model, 1);
    ::setenv("VPMU_SOURCE", source, 1);
    const auto read = read_environment();
    ::unsetenv("VPMU_MODEL");
    ::unsetenv("VPMU_SOURCE");
    return read ? "" : describe(read.error());
  };
  EXPECT_TRUE(refusal("p4", "exact").ends_with(" in VPMU_MODEL")) << refusal("p4", "exact");
  EXPECT_TRUE(refusal("haswell", "oracle").ends_with(" in VPMU_SOURCE")) << refusal("haswell", "oracle");
  for (const auto& text : {refusal("p4", "exact"), refusal("haswell", "oracle"), refusal("host", "exact")})
    EXPECT_EQ(text.find("--"), std::string::npos) << text;
}

TEST(AttachEnvironment, KnowsWhichVariablesNobodyReads) {
  EXPECT_TRUE(unknown_variables().empty());
  ::setenv("VPMU_MODLE", "haswell", 1);
  ::setenv("VPMU_STATS", "/tmp/stats", 1);
  const auto unknown = unknown_variables();
  ::unsetenv("VPMU_MODLE");
  ::unsetenv("VPMU_STATS");
  EXPECT_EQ(unknown, std::vector<std::string>{"VPMU_MODLE"});
}

}  // namespace
}  // namespace vmm
