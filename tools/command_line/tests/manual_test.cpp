#include "manual.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sample_program.hpp"

namespace vmm::tool::test {
namespace {

std::string page(const std::string& name) {
  for (const Page& page : manual_pages(SampleProgram{}.describe(), {.version = "sample 1", .date = "2026-01-02"})) {
    if (page.name == name) return page.text;
  }
  return "no page " + name;
}

/// The lines from a heading to the next one.
std::string section(const std::string& text, const std::string& heading) {
  const auto begin = text.find(".SH \"" + heading + "\"\n");
  if (begin == std::string::npos) return "no section " + heading;
  return text.substr(begin, text.find("\n.SH", begin + 1) - begin + 1);
}

testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "no \"" << part << "\" in:\n" << text;
}

TEST(Manual, HasAPageForTheProgramAndForEachCommandThatIsNotHidden) {
  std::vector<std::string> names;
  for (const Page& page : manual_pages(SampleProgram{}.describe(), {})) names.push_back(page.name);
  EXPECT_EQ(names, (std::vector<std::string>{"sample.1", "sample-boot.1", "sample-report.1"}));
}

TEST(Manual, SaysHowACommandIsGiven) {
  EXPECT_EQ(section(page("sample-boot.1"), "SYNOPSIS"),
            ".SH \"SYNOPSIS\"\n\\fBsample boot\\fR {\\fB\\-\\-kernel\\fR \\fIFILE\\fR | \\fB\\-\\-restore\\fR "
            "\\fIFILE\\fR} [\\fIOPTION\\fR]... \\fB\\-\\-\\fR \\fICOMMAND\\fR [\\fIARGUMENT\\fR]...\n");
  EXPECT_TRUE(has(section(page("sample-report.1"), "SYNOPSIS"),
                  "\\fBsample report show\\fR \\fB\\-\\-format\\fR \\fIFORMAT\\fR [\\fIOPTION\\fR]... \\fIFILE\\fR\n"
                  ".br\n\\fBsample report merge\\fR"));
}

TEST(Manual, TellsWhatTheTableSaysOfAnOption) {
  const std::string options = section(page("sample-boot.1"), "OPTIONS");
  EXPECT_TRUE(has(options,
                  ".TP\n\\fB\\-m\\fR, \\fB\\-\\-model\\fR \\fIMODEL\\fR\n"
                  "CPU model. Known values: haswell, skylake. Default: skylake.\n"));
  EXPECT_TRUE(has(options, "by what. One of kvm, soft. Not with \\-\\-restore.\n"));
  EXPECT_TRUE(has(options, "\\fB\\-\\-cpus\\fR \\fIN\\fR\nhow many. From 1 to 4.\n"));
  EXPECT_TRUE(has(options, "Can be given several times.\n"));
  EXPECT_TRUE(has(options, "all, or a file.\n"));
  EXPECT_TRUE(has(section(page("sample-report.1"), "COMMANDS"), "of it. One of json, table. Required.\n"));
}

TEST(Manual, HasTheHelpOptionOnceInEachPage) {
  const std::string help = R"(\fB\-\-help\fR)";
  for (const Page& page : manual_pages(SampleProgram{}.describe(), {})) {
    const auto first = page.text.find(help);
    EXPECT_NE(first, std::string::npos) << page.name;
    EXPECT_EQ(page.text.find(help, first + 1), std::string::npos) << page.name;
  }
}

TEST(Manual, TellsNotesExitCodesAndExamples) {
  const std::string text = page("sample-boot.1");
  EXPECT_TRUE(has(section(text, "DESCRIPTION"), "Boot it.\n.PP\nSee \\fBsample report\\fR.\n"));
  EXPECT_TRUE(has(section(text, "EXIT STATUS"), ".TP\n\\fB0\\fR\nGood.\n.TP\n\\fB1\\fR\nBad.\n"));
  EXPECT_TRUE(has(section(text, "EXAMPLES"), "Runs it.\n.PP\n.RS 4\n.nf\n\\fBsample boot \\-\\- .x\\fR\n"));
}

TEST(Manual, LeadsToThePagesThatATextNames) {
  EXPECT_EQ(section(page("sample-boot.1"), "SEE ALSO"),
            ".SH \"SEE ALSO\"\n\\fBsample\\fR(1), \\fBsample\\-report\\fR(1)\n");
  EXPECT_EQ(section(page("sample-report.1"), "SEE ALSO"), ".SH \"SEE ALSO\"\n\\fBsample\\fR(1)\n");
}

TEST(Manual, EscapesAwkwardTexts) {
  CommandDescription program;
  program.name = program.full_name = "p";
  program.help = ".so 'x' \\n";
  program.options.push_back({.names = {"--a"}, .value = "\\V", .help = ".b\n'c", .default_value = "-1"});
  const std::string text = manual_pages(program, {.version = "p", .date = "2026-01-02"}).front().text;
  EXPECT_TRUE(has(text, "\n\\&.so \\(aqx\\(aq \\(rsn.\n"));
  EXPECT_TRUE(has(text, "\\fI\\(rsV\\fR\n\\&.b\n.br\n\\(aqc. Default: \\-1.\n"));
  for (const char* const line : {"\n.so", "\n.b\n", "\n'"}) EXPECT_EQ(text.find(line), std::string::npos) << line;
}

}  // namespace
}  // namespace vmm::tool::test
