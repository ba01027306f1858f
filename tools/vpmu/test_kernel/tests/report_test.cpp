#include "test_kernel/report.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace vmm::tool {
namespace {

KernelReport sample() {
  return {.kernel = "/boot/vmlinuz",
          .version = "6.1.0",
          .checksum = "0123456789abcdef",
          .suite = "quick",
          .shard = {.number = 2, .count = 3},
          .asked = {"skylake", "nehalem", "haswell-ep"},
          .models = {{.model = "nehalem",
                      .checks = {{"precise.1", Outcome::pass, "91", "91"},
                                 {"precise.2", Outcome::fail, "<\"a\" & 'b'>", "x\\y # z\x01"},
                                 {"bts", Outcome::skip, "no BTS", ""}}},
                     {.model = "haswell-ep", .checks = {{"precise.1", Outcome::pass, "91", "91"}}}}};
}

TEST(TableReport, HasModelsChecksAndFailures) {
  EXPECT_EQ(report_as_table(sample()),
            "Linux 6.1.0\n"
            "\n"
            "            precise  precise\n"
            "MODEL       1        2        bts\n"
            "nehalem     ok       FAIL     -\n"
            "haswell-ep  ok       ?        ?\n"
            "\n"
            "nehalem precise.2: expected <\"a\" & 'b'>, seen x\\y # z\x01\n"
            "\n"
            "2 passed, 1 failed, 1 skipped\n");
}

TEST(Reports, NameWhatIsSetOfTheModels) {
  KernelReport report = sample();
  report.set = "l3=16M,dram=240";
  EXPECT_TRUE(report_as_table(report).starts_with("Linux 6.1.0\nmodels with l3=16M,dram=240\n\n"));
  EXPECT_NE(report_as_tap(report).find("# Linux 6.1.0\n# models with l3=16M,dram=240\nok 1"), std::string::npos);
  EXPECT_NE(report_as_junit(report).find("name=\"Linux 6.1.0, models with l3=16M,dram=240\""), std::string::npos);
  const auto read = read_report(report_as_json(report), "r.json");
  ASSERT_TRUE(read) << describe(read.error());
  EXPECT_EQ(read->set, report.set);
}

TEST(TapReport, IsOfVersion14AndEscaped) {
  EXPECT_EQ(report_as_tap(sample()),
            "TAP version 14\n"
            "1..4\n"
            "# Linux 6.1.0\n"
            "ok 1 - nehalem precise.1\n"
            "not ok 2 - nehalem precise.2\n"
            "  ---\n"
            "  expected: \"<\\\"a\\\" & 'b'>\"\n"
            "  seen: \"x\\\\y # z?\"\n"
            "  ...\n"
            "ok 3 - nehalem bts # SKIP no BTS\n"
            "ok 4 - haswell-ep precise.1\n");
}

TEST(JunitReport, HasASuiteForEachModelAndEscapesAll) {
  EXPECT_EQ(report_as_junit(sample()),
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
            "<testsuites name=\"Linux 6.1.0\" tests=\"4\" failures=\"1\" errors=\"0\" skipped=\"1\">\n"
            "  <testsuite name=\"nehalem\" tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"1\">\n"
            "    <testcase classname=\"vpmu.nehalem\" name=\"precise.1\" />\n"
            "    <testcase classname=\"vpmu.nehalem\" name=\"precise.2\">\n"
            "      <failure message=\"expected &lt;&quot;a&quot; &amp; 'b'>, seen x\\y # z?\" />\n"
            "    </testcase>\n"
            "    <testcase classname=\"vpmu.nehalem\" name=\"bts\">\n"
            "      <skipped message=\"no BTS\" />\n"
            "    </testcase>\n"
            "  </testsuite>\n"
            "  <testsuite name=\"haswell-ep\" tests=\"1\" failures=\"0\" errors=\"0\" skipped=\"0\">\n"
            "    <testcase classname=\"vpmu.haswell-ep\" name=\"precise.1\" />\n"
            "  </testsuite>\n"
            "</testsuites>\n");
}

TEST(JsonReport, IsReadAsItWasWritten) {
  KernelReport report = sample();
  report.models[0].checks[1].seen = "x\\y # z";
  const auto read = read_report(report_as_json(report), "r.json");
  ASSERT_TRUE(read) << describe(read.error());
  EXPECT_EQ(*read, report);
}

TEST(JsonReport, OfAnotherFormIsRefusedWithItsName) {
  const std::string good = report_as_json(sample());
  const auto with = [&good](std::string_view what, std::string_view other) {
    std::string text = good;
    text.replace(text.find(what), what.size(), other);
    return text;
  };
  for (const std::string& bad : {std::string{},
                                 std::string{"[]"},
                                 std::string{"{}"},
                                 good.substr(0, good.size() / 2),
                                 with("vpmu test-kernel", "other"),
                                 with("\"version\": 1", "\"version\": 2"),
                                 with("\"pass\"", "\"good\""),
                                 with("\"pass\"", "1"),
                                 with("\"models\"", "\"model\""),
                                 with("\"number\": 2", "\"number\": 4"),
                                 with("\"number\": 2", "\"number\": 0"),
                                 with("\"number\": 2", "\"number\": -1"),
                                 with("\"count\": 3", "\"count\": 1001"),
                                 with("\"skylake\"", "\"nehalem\""),
                                 with("\"skylake\"", "\"\""),
                                 with("\"skylake\"", "\"a b\""),
                                 with("\"skylake\"", "1"),
                                 with(R"("model": "nehalem")", R"("model": "haswell-ep")"),
                                 with(R"("model": "nehalem")", R"("model": "sandybridge")"),
                                 with("\"precise.2\"", "\"precise.1\""),
                                 with("\"precise.2\"", "\"PRECISE\"")}) {
    const auto read = read_report(bad, "r.json");
    ASSERT_FALSE(read) << bad;
    EXPECT_EQ(read.error().kind, ErrorKind::usage);
    EXPECT_TRUE(describe(read.error()).starts_with("r.json is not a report")) << describe(read.error());
  }
}

TEST(JsonReport, IsBounded) {
  KernelReport report = sample();
  for (unsigned i = 0; i < 1001; ++i)
    report.models[0].checks.push_back({"c" + std::to_string(i), Outcome::pass, "", ""});
  EXPECT_FALSE(read_report(report_as_json(report), "r.json"));
  report = sample();
  for (unsigned i = 0; i < 1000; ++i) report.asked.push_back("m" + std::to_string(i));
  EXPECT_FALSE(read_report(report_as_json(report), "r.json"));
  EXPECT_FALSE(read_report(std::string(100'000, '['), "r.json"));
}

TEST(Changes, OfTheSameReportAreNone) {
  EXPECT_TRUE(changes(sample(), sample()).empty());
  EXPECT_EQ(describe({}, sample(), sample()), "Linux 6.1.0, and before 6.1.0: 0 changed\n");
}

TEST(Changes, AreWhatEndedOtherwise) {
  KernelReport now = sample();
  now.version = "6.12";
  now.models[0].checks[0] = {"precise.1", Outcome::fail, "91", "90"};
  now.models[0].checks[1].outcome = Outcome::pass;
  now.models[0].checks.pop_back();
  const auto all = changes(sample(), now);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].kind, Change::Kind::worse);
  EXPECT_EQ(all[1].kind, Change::Kind::better);
  EXPECT_EQ(all[2].kind, Change::Kind::worse);
  const std::string text = describe(all, sample(), now);
  EXPECT_TRUE(
      text.starts_with("Linux 6.12, and before 6.1.0: 3 changed\n"
                       "nehalem precise.1: pass, now fail: expected 91, seen 90\n"))
      << text;
  EXPECT_TRUE(text.ends_with("nehalem bts: skip, now not there\n")) << text;
}

TEST(Changes, OfAFailureAreWhatItSawOtherwise) {
  KernelReport now = sample();
  now.models[0].checks[1].seen = "other";
  now.models[0].checks[0].seen = "of what passes nobody hears";
  const auto all = changes(sample(), now);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].check, "precise.2");
  EXPECT_EQ(all[0].kind, Change::Kind::other);
}

TEST(Changes, OfAModelThatWasNotThereAreItsChecks) {
  KernelReport before = sample();
  before.models.erase(before.models.begin());
  const auto all = changes(before, sample());
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].kind, Change::Kind::other);
  EXPECT_EQ(all[1].kind, Change::Kind::worse);
  // A run of fewer models reports no changes of the others.
  EXPECT_TRUE(changes(sample(), before).empty());
}

}  // namespace
}  // namespace vmm::tool
