// `vpmu manual`, `vpmu completion`, and its scripts in their shells. The expected contents are read from --help.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

namespace vmm::tool::test {
namespace {

namespace fs = std::filesystem;

/// Runs commands in a shell and returns their output. `status` gets the exit code.
std::string run(const std::string& commands, int* status = nullptr) {
  std::FILE* const pipe = popen(commands.c_str(), "r");
  if (pipe == nullptr) return "no shell";
  std::string text;
  std::array<char, 4096> buffer{};
  while (const auto got = std::fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), got);
  const int ended = pclose(pipe);
  if (status != nullptr) *status = WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
  return text;
}

std::string vpmu(const std::string& arguments) { return run(VPMU_PROGRAM " " + arguments); }

std::string read(const fs::path& path) {
  std::ifstream file{path};
  return {std::istreambuf_iterator<char>{file}, {}};
}

std::vector<std::string> all_matches(const std::string& text, const std::string& pattern) {
  const std::regex regex{pattern};
  std::vector<std::string> found;
  for (std::sregex_iterator match{text.begin(), text.end(), regex}; match != std::sregex_iterator{}; ++match)
    found.push_back((*match)[1]);
  return found;
}

/// The subcommands of a command, as its help lists them.
std::vector<std::string> commands_below(const std::string& command) {
  const std::string help = vpmu(command + " --help");
  if (help.find("SUBCOMMAND") == std::string::npos) return {};
  return all_matches(help, "\n  ([a-z][a-z-]*) ");
}

/// The options of a command. In its help each begins a line.
std::vector<std::string> options_of(const std::string& command) {
  return all_matches(vpmu(command + " --help"), "\n +(?:-[a-z],)?(--[a-z-]+)");
}

std::string escaped(const std::string& text) { return std::regex_replace(text, std::regex{"-"}, "\\-"); }

/// The pages, in a directory of the test's own.
class Documents : public testing::Test {
 protected:
  void TearDown() override { fs::remove_all(directory_); }

  std::string page(const std::string& command) {
    if (!fs::exists(directory_)) vpmu("manual " + directory_.string());
    return read(directory_ / ("vpmu" + (command.empty() ? "" : "-" + command) + ".1"));
  }

  fs::path directory_{fs::path{testing::TempDir()} / ("documents_" + std::to_string(::getpid()))};
};

TEST_F(Documents, EachCommandHasAPageAndEachOptionIsInItAndIsOffered) {
  const auto commands = commands_below("");
  ASSERT_GE(commands.size(), 14U);
  for (const auto& command : commands) {
    const std::string text = page(command);
    EXPECT_FALSE(text.empty()) << command;
    EXPECT_NE(page("").find("\\fBvpmu\\-" + escaped(command) + "\\fR(1)"), std::string::npos) << command;
    auto all = commands_below(command);
    std::ranges::transform(all, all.begin(), [&](const auto& below) { return command + " " + below; });
    all.push_back(command);
    for (const auto& each : all) {
      const std::string offered = vpmu("__complete -- " + each + " -");
      const auto options = options_of(each);
      EXPECT_GE(options.size(), 1U) << each;
      for (const auto& option : options) {
        EXPECT_NE(text.find("\\fB" + escaped(option) + "\\fR"), std::string::npos) << each << " " << option;
        EXPECT_NE(offered.find("\n" + option + "\t"), std::string::npos) << each << " " << option;
      }
    }
  }
}

// Shows that the tests above read the help's long lists completely.
TEST_F(Documents, TheHelpIsReadWhole) {
  EXPECT_GE(options_of("run").size(), 25U);
  EXPECT_GE(options_of("exec").size(), 25U);
  EXPECT_EQ(commands_below("virt").size(), 5U);
  EXPECT_NE(page("run").find("Default: skylake."), std::string::npos);
  EXPECT_NE(page("test-kernel").find("One of quick, full."), std::string::npos);
}

TEST_F(Documents, ThePagesShowTheCommandsOfTheDocument) {
  const auto examples = all_matches(read(VPMU_COMMANDS_DOCUMENT), "\n\\| `(vpmu [^`]+)` \\|");
  ASSERT_GE(examples.size(), 18U);
  for (const auto& example : examples) {
    if (example == "vpmu models [-v]") continue;  // two examples in one
    const auto command = all_matches(example, "^vpmu ([a-z-]*)").front();
    EXPECT_NE(page(command.starts_with('-') ? "" : command).find(".nf\n\\fB" + escaped(example) + "\\fR\n"),
              std::string::npos)
        << example;
  }
}

TEST_F(Documents, APageThatCannotBeWrittenIsAFailure) {
  int status = 0;
  EXPECT_EQ(run(VPMU_PROGRAM " manual /dev/null/man 2>&1 | grep -c '^vpmu manual: .*/dev/null/man'"), "1\n");
  run(VPMU_PROGRAM " manual /dev/null/man 2>/dev/null", &status);
  EXPECT_EQ(status, 2);
}

TEST_F(Documents, TheHiddenCommandIsNowhere) {
  EXPECT_EQ(vpmu("--help").find("__complete"), std::string::npos);
  EXPECT_EQ(page("").find("complete\\fR"), std::string::npos);
  EXPECT_EQ(vpmu("__complete -- __"), "words\n");
}

TEST_F(Documents, ModelsAreThoseOfTheTable) {
  std::string names = "words\n";
  for (const auto& name : all_matches(vpmu("models"), "\n([a-z]\\S*)")) names += name + "\n";
  ASSERT_GE(std::ranges::count(names, '\n'), 1 + 24);
  for (const std::string command : {"run", "exec", "stat", "profile", "events", "doctor", "virt enable", "virt hook"})
    EXPECT_EQ(vpmu("__complete -- " + command + " --model ''"), names) << command;
}

/// Bash's completions of the last word, one a line. `words`: the line as bash splits it.
std::string bash(const std::string& words, const std::string& before = "") {
  return run("bash --norc -c 'source <(" VPMU_PROGRAM " completion bash); " + before +
             " COMP_WORDS=(" VPMU_PROGRAM " " + words +
             "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _vpmu; "
             "((${#COMPREPLY[@]})) && printf \"%s\\n\" \"${COMPREPLY[@]}\"' 2>&1");
}

TEST_F(Documents, BashOffersCommandsOptionsAndValues) {
  EXPECT_EQ(bash("virt \"\""), "enable\ndisable\nstatus\nlist\nhook\n");
  EXPECT_EQ(bash("test-"), "test-kernel\n");
  EXPECT_EQ(bash("run --no-"), "--no-jit\n--no-jail\n");
  EXPECT_EQ(bash("run --model haswell-"), "haswell-ult\nhaswell-gt3e\nhaswell-ep\n");
  EXPECT_EQ(bash("ctl /tmp/socket s"), "status\nsnapshot\nsuspend\nstop\n");
  EXPECT_EQ(bash("run --cpus \"\""), "");
}

TEST_F(Documents, BashOffersWhatItTakesForTheEndOfAWord) {
  EXPECT_EQ(bash("exec --model = haswell-u"), "haswell-ult\n");
  EXPECT_EQ(bash("doctor --accel ="), "auto\nkvm\nsoft\n");
  EXPECT_EQ(bash("run --policy pmu_time = "), "hidden\nreal\n");
  EXPECT_EQ(bash("run --policy = pmu_time = r"), "real\n");
  EXPECT_EQ(bash("run --policy pmu_time = real --no-jai"), "--no-jail\n");
  EXPECT_EQ(bash("run --schedule 10 : 7 --no-jai"), "--no-jail\n");
}

TEST_F(Documents, BashOffersFilesAndBehindTwoDashesCommands) {
  fs::create_directories(directory_);
  std::ofstream{directory_ / "kernel-1"} << "";
  std::ofstream{directory_ / "kernel 2"} << "";
  const std::string there = "cd " + directory_.string() + ";";
  EXPECT_EQ(bash("run --kernel kern", there + "shopt -s nullglob;"), "kernel-1\nkernel 2\n");
  EXPECT_EQ(bash("run --kernel = kernel-", there), "kernel-1\n");
  EXPECT_EQ(bash("exec --model haswell -- ls kernel-", there), "kernel-1\n");
  EXPECT_TRUE(bash("exec --model = haswell -- sha256su").starts_with("sha256sum\n"));  // once for each place in PATH
  // A stand-in for bash-completion, which completes the arguments of other commands.
  EXPECT_EQ(bash("exec --model = haswell -- git sta", "_command_offset() { COMPREPLY=(\"from $1\"); };"), "from 6\n");
}

/// Whether the shell is installed; otherwise the test is skipped, which the user sees.
bool is_here(const std::string& shell) {
  int status = 0;
  run("command -v " + shell, &status);
  return status == 0;
}

TEST_F(Documents, ZshReadsItsScript) {
  if (!is_here("zsh")) GTEST_SKIP() << "no zsh here";
  int status = 0;
  EXPECT_EQ(run(VPMU_PROGRAM " completion zsh | zsh -n /dev/stdin 2>&1", &status), "");
  EXPECT_EQ(status, 0);
}

TEST_F(Documents, FishOffersCommandsOptionsValuesAndFiles) {
  if (!is_here("fish")) GTEST_SKIP() << "no fish here";
  int status = 0;
  EXPECT_EQ(run(VPMU_PROGRAM " completion fish | fish --no-execute 2>&1", &status), "");
  EXPECT_EQ(status, 0);
  fs::create_directories(directory_);
  std::ofstream{directory_ / "kernel-1"} << "";
  const auto fish = [this](const std::string& line) {
    const std::string program = fs::path{VPMU_PROGRAM}.parent_path();
    return run("cd " + directory_.string() + " && HOME=" + directory_.string() + " PATH=" + program +
               ":$PATH fish --no-config -c 'vpmu completion fish | source; complete -C \"" + line + "\"' 2>&1");
  };
  EXPECT_EQ(fish("vpmu run --no-jai"),
            "--no-jail\tlet the machine keep all rights of this process, and every system call\n");
  EXPECT_EQ(fish("vpmu run --model haswell-u"), "haswell-ult\n");
  EXPECT_EQ(fish("vpmu run --model=haswell-u"), "--model=haswell-ult\n");
  EXPECT_EQ(fish("vpmu run --cpus "), "");
  EXPECT_EQ(fish("vpmu run --kernel kern"), "kernel-1\n");
  EXPECT_NE(fish("vpmu exec --model haswell -- sha256su").find("sha256sum"), std::string::npos);
  EXPECT_EQ(fish("vpmu exec --model haswell -- ls kern"), "kernel-1\n");
}

}  // namespace
}  // namespace vmm::tool::test
