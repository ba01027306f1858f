#include "roff.hpp"

#include <gtest/gtest.h>

namespace vmm::tool::test {
namespace {

TEST(Roff, TakesNothingOfATextForARequestOrAnEscape) {
  EXPECT_EQ(roff(".so /etc/passwd"), "\\&.so /etc/passwd");
  EXPECT_EQ(roff("a\n.so b"), "a\n.br\n\\&.so b");
  EXPECT_EQ(roff("'so b"), "\\(aqso b");
  EXPECT_EQ(roff("C:\\new"), "C:\\(rsnew");
  EXPECT_EQ(roff("a.b 'c'"), "a.b \\(aqc\\(aq");
}

TEST(Roff, KeepsWhatAShellIsToReadAsItIs) {
  EXPECT_EQ(roff("--no-jail"), "\\-\\-no\\-jail");
  EXPECT_EQ(roff("\"~/a\" ^ `"), "\\(dq\\(ti/a\\(dq \\(ha \\(ga");
}

TEST(Roff, SetsWhatIsInBackticksInBold) {
  EXPECT_EQ(roff("see `vpmu ctl -x`, or `y`."), "see \\fBvpmu ctl \\-x\\fR, or \\fBy\\fR.");
  EXPECT_EQ(roff("`.a`"), "\\fB.a\\fR");
  EXPECT_EQ(roff("an odd ` one"), "an odd \\(ga one");
  EXPECT_EQ(roff("``"), "");
}

TEST(Roff, HasNoSpacesOrEmptyLinesThatWouldBreakAParagraph) {
  EXPECT_EQ(roff("  a\n\n\tb\n"), "a\n.br\n b");
  EXPECT_EQ(roff(""), "");
  EXPECT_EQ(roff("\n \n"), "");
}

TEST(Roff, BreaksAListWithoutSpacesAfterItsCommas) { EXPECT_EQ(roff("a,b, c,"), "a,\\:b, c,"); }

TEST(Roff, LeavesCharactersBeyondAsciiAsTheyAre) { EXPECT_EQ(roff("\xC3\xA9 \xE2\x82\xAC"), "\xC3\xA9 \xE2\x82\xAC"); }

TEST(Roff, ReplacesControlCharacters) {
  EXPECT_EQ(roff("a\x01\x7F"
                 "b"),
            "a??b");
}

TEST(Roff, BuildsAPage) {
  ManualPage page{"a-b", "a 1-2", "2026-01-02"};
  page.section("NAME");
  page.paragraph("a");
  page.paragraph("b");
  page.item("t", "");
  page.command_line(".x -y");
  EXPECT_EQ(page.text(),
            ".TH \"A\\-B\" 1 \"2026-01-02\" \"a 1\\-2\"\n.nh\n.ad l\n.SH \"NAME\"\na\n.PP\nb\n.TP\nt\n\\&\n"
            ".PP\n.RS 4\n.nf\n\\fB.x \\-y\\fR\n.fi\n.RE\n");
}

}  // namespace
}  // namespace vmm::tool::test
