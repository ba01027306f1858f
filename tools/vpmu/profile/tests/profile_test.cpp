#include "profile/disassembly.hpp"
#include "profile/recorded_events.hpp"
#include "profile/report.hpp"
#include "profile/samples.hpp"
#include "profile/summary.hpp"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

namespace vmm::tool {
namespace {

const vpmu::GenerationDesc& skylake() { return vpmu::describe(vpmu::Generation::skylake); }

constexpr std::string_view load_line =
    "hot    83/83        0.875665001:      2001 loads:     7f2a60530028     10268100142 |OP LOAD|LVL L1 or L1 hit|SNP "
    "None|TLB L1 or L2 hit|LCK No|BLK  N/A                         4";

std::vector<Sample> read(std::string_view text, std::size_t part = 7) {
  std::vector<Sample> samples;
  SampleReader reader{[&samples](Sample& sample) { samples.push_back(sample); }};
  for (; !text.empty(); text.remove_prefix(std::min(part, text.size()))) reader.add(text.substr(0, part));
  reader.finish();
  return samples;
}

Sample cycles(std::uint64_t period, std::vector<SampleFrame> frames) {
  return {.aspect = Aspect::cycles, .process = "hot", .period = period, .frames = std::move(frames)};
}

SampleFrame frame(const std::string& function, std::uint64_t offset, const std::string& module = "/bin/hot") {
  return {.address = 0x1000 + offset, .offset = offset, .function = function, .module = module};
}

TEST(ProfileEvents, EveryGenerationHasAllThree) {
  for (const vpmu::GenerationDesc* generation : vpmu::all_generations()) {
    const auto plan = plan_recording(*generation, "exact", {.period = 10007, .frequency = 4000});
    ASSERT_TRUE(plan.has_value()) << generation->name;
    ASSERT_EQ(plan->events.size(), aspects) << generation->name;
    for (const RecordedEvent& event : plan->events) {
      EXPECT_TRUE(event.quality.starts_with("estimated")) << generation->name << ' ' << event.name;
      EXPECT_EQ(event.period % 2, 1U) << "a loop of two would fall into step";
      EXPECT_GE(event.period, 32U) << "Linux refuses shorter ones on a Haswell";
    }
  }
}

TEST(ProfileEvents, ANehalemSaysThatItsMispredictionsAreNotPrecise) {
  const auto plan = plan_recording(vpmu::describe(vpmu::Generation::nehalem), "exact", {.period = 10007});
  ASSERT_TRUE(plan.has_value());
  EXPECT_FALSE(plan->events.back().is_precise);
  ASSERT_EQ(plan->lacking.size(), 1U);
  EXPECT_NE(plan->lacking[0].find("no precise event"), std::string::npos);
}

TEST(ProfileEvents, PerfIsAskedByCodes) {
  const auto plan = plan_recording(skylake(), "exact", {.period = 10007});
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->events[0].perf, "cycles/name=cycles,period=10007/pp");
  EXPECT_EQ(plan->events[1].perf, "cpu/event=0xcd,umask=0x1,ldlat=3,name=loads,period=2001/pp");
  EXPECT_EQ(plan->events[2].perf, "cpu/event=0xc5,umask=0x4,name=mispredictions,period=101/pp");
  EXPECT_TRUE(plan->lacking.empty());
}

TEST(ProfileEvents, WhatASourceDoesNotDeliverIsLeftOutAndNamed) {
  const auto plan = plan_recording(skylake(), "clock", {.frequency = 4000});
  ASSERT_TRUE(plan.has_value());
  for (const RecordedEvent& event : plan->events) EXPECT_FALSE(event.quality.starts_with("not counted")) << event.name;
  EXPECT_EQ(plan->events.size() + plan->lacking.size(), aspects);
}

TEST(ProfileSamples, ReadsWhatPerfPrints) {
  const auto samples = read(std::string{load_line} +
                            "\n\t            16b3 near_loads+0x19 (/tmp/my (x)/hot)\n\tffffffff81000130 "
                            "entry_SYSCALL_64_after_hwframe+0x76 ([kernel.kallsyms])\n\t    7f2922af2ad7 [unknown] "
                            "([unknown])\n\n");
  ASSERT_EQ(samples.size(), 1U);
  EXPECT_EQ(samples[0].process, "hot");
  EXPECT_EQ(samples[0].aspect, Aspect::loads);
  EXPECT_EQ(samples[0].period, 2001U);
  EXPECT_EQ(samples[0].time, 875665001U);
  EXPECT_EQ(samples[0].address, 0x7f2a60530028U);
  EXPECT_EQ(samples[0].latency, 4U);
  EXPECT_EQ(level_of(samples[0].data_source), LoadLevel::l1);
  ASSERT_EQ(samples[0].frames.size(), 3U);
  EXPECT_EQ(samples[0].frames[0],
            (SampleFrame{.address = 0x16b3, .offset = 0x19, .function = "near_loads", .module = "/tmp/my (x)/hot"}));
  EXPECT_EQ(samples[0].frames[1].module, "[kernel.kallsyms]");
  EXPECT_EQ(samples[0].frames[2].function, "");
}

TEST(ProfileSamples, AProcessMayHaveANameLikeTheFields) {
  std::string line{load_line};
  line.replace(0, 3, "1/1 1.0: 5 x");
  const auto sample = read_sample_line(line);
  ASSERT_TRUE(sample.has_value());
  EXPECT_EQ(sample->process, "1/1 1.0: 5 x");
}

TEST(ProfileSamples, AFunctionMayHaveBlanksAndParentheses) {
  const auto read = read_frame_line("\t 10 std::f(int (*)(char), a b)::operator()() const+0x8 (/lib/x.so (deleted))");
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->function, "std::f(int (*)(char), a b)::operator()() const");
  EXPECT_EQ(read->module, "/lib/x.so (deleted)");
}

TEST(ProfileSamples, WhatIsNoSampleIsCountedAndLeftOut) {
  std::uint64_t samples = 0;
  SampleReader reader{[&samples](Sample&) { ++samples; }};
  reader.add("nonsense\n\tno frame\n\n" + std::string(40000, 'x') + "\n" + std::string{load_line} + "\n\tbad\n");
  reader.finish();
  EXPECT_EQ(samples, 1U);
  EXPECT_EQ(reader.unread_lines(), 4U);
}

TEST(ProfileSamples, TheInstructionTakesThePlaceOfWhatRanUntilTheInterrupt) {
  std::vector<SampleFrame> frames{frame("callee", 4), frame("hot", 9), frame("main", 5)};
  put_on_top(frames, {.address = 0x555500001001, .offset = 1, .function = "hot", .module = "/bin/hot"});
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_EQ(frames[0], frame("hot", 1)) << "its address in the file is known by the call chain";
  put_on_top(frames, {.address = 0x555500007002, .offset = 2, .function = "returned", .module = "/bin/hot"});
  ASSERT_EQ(frames.size(), 3U);
  EXPECT_EQ(frames[0].address, 0U);
}

TEST(ProfileSamples, SitesAreFoundByTheirTime) {
  SampleSites sites;
  sites.add(
      "  83 0.000000001: cycles:  10 a+0x0 (/bin/hot)\n  83 0.000000002: loads: 20 b+0x8 (/bin/hot)\nnonsense\n"
      "  83 0.000000003: cycles:  10 a+0x0 (/bin/hot)");
  sites.finish();
  EXPECT_EQ(sites.next(Aspect::loads, 1), nullptr) << "another event";
  ASSERT_NE(sites.next(Aspect::loads, 2), nullptr);
  ASSERT_NE(sites.next(Aspect::cycles, 3), nullptr);
  EXPECT_EQ(sites.next(Aspect::cycles, 3), nullptr) << "each is of one sample";
}

TEST(ProfileSamples, PerfSaysWhatIsMissing) {
  constexpr std::string_view stats =
      "Aggregated stats:\n           TOTAL events:       2301\n        THROTTLE events:         12  ( 0.5%)\n";
  EXPECT_EQ(count_of(stats, " THROTTLE"), 12U);
  EXPECT_EQ(count_of(stats, " LOST"), 0U);
  EXPECT_EQ(count_of(" LOST events:", " LOST"), 0U);
}

TEST(ProfileSummary, AFunctionThatCallsItselfHasItsShareOnce) {
  ProfileSummary summary;
  summary.add(cycles(10, {frame("f", 1), frame("f", 2), frame("main", 3)}));
  summary.add(cycles(5, {frame("main", 3)}));
  const auto hot = hottest(summary, Metric::cycles, 10);
  ASSERT_EQ(hot.size(), 2U);
  EXPECT_EQ(summary.functions()[hot[0]].name, "f");
  EXPECT_EQ(summary.functions()[hot[0]].total[0], 10U);
  EXPECT_EQ(summary.functions()[hot[1]].total[0], 15U);
  EXPECT_EQ(summary.total()[0], 15U);
}

TEST(ProfileSummary, KnowsWhatTheSamplesThemselvesTake) {
  ProfileSummary summary;
  summary.add(cycles(90, {frame("main", 3)}));
  summary.add(cycles(7, {frame("native_sched_clock", 1, "[kernel.kallsyms]"), frame("exc_nmi", 9, "[kernel.kallsyms]"),
                         frame("main", 3)}));
  summary.add(cycles(3, {frame("exc_nmi", 1)}));  // a program's own function
  EXPECT_EQ(summary.sampling()[0], 7U);
  EXPECT_EQ(summary.total()[0], 100U);
}

TEST(ProfileSummary, AChainThatGoesRoundIsCut) {
  ProfileSummary summary;
  std::vector<SampleFrame> frames(127, frame("round", 4));
  frames[0] = frame("leaf", 1);
  summary.add(cycles(1, frames));
  EXPECT_EQ(summary.nodes().size(), 4U) << "all, the process, round, leaf";
}

TEST(ProfileSummary, SumsNeverWrap) {
  ProfileSummary summary;
  constexpr std::uint64_t max = std::numeric_limits<std::uint64_t>::max();
  Sample load{.aspect = Aspect::loads, .process = "x", .period = max, .latency = max};
  summary.add(load);
  summary.add(load);
  EXPECT_EQ(summary.total()[static_cast<std::size_t>(Metric::latency)], max);
}

TEST(ProfileSummary, KnowsTheLevelsOfLinux) {
  // As Linux has them for the codes of SDM 3B table 18-13: perf_mem_data_src, level from bit 5.
  constexpr auto with = [](std::uint64_t level) { return level << 5U | 2U; };
  EXPECT_EQ(level_of(with(0x0A)), LoadLevel::l1);
  EXPECT_EQ(level_of(with(0x12)), LoadLevel::fill_buffer);
  EXPECT_EQ(level_of(with(0x22)), LoadLevel::l2);
  EXPECT_EQ(level_of(with(0x42)), LoadLevel::l3);
  EXPECT_EQ(level_of(with(0x82)), LoadLevel::memory);
  EXPECT_EQ(level_of(with(0x44)), LoadLevel::unknown) << "an L3 miss, no more is known";
  EXPECT_EQ(level_of(0), LoadLevel::unknown);
}

TEST(ProfileDisassembly, ReadsOneFunctionOfObjdump) {
  DisassemblyReader reader;
  const std::string text =
      "\n/bin/hot:     file format elf64-x86-64\n\nDisassembly of section .text:\n\n0000000000401660 <hot>:\nhot():\n"
      "/home/x/hot.c:4 (discriminator 1)\n  401660:\tpush   %rbp\n  401661:\tret\n\n0000000000401662 <next>:\n  "
      "401662:\tret\n";
  bool goes_on = true;
  for (const char c : text)
    if (goes_on) goes_on = reader.add({&c, 1});
  EXPECT_FALSE(goes_on) << "the next function is not needed";
  const auto lines = reader.take();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].address, 0x401660U);
  EXPECT_EQ(lines[0].text, "push   %rbp");
  EXPECT_EQ(lines[1].source, "hot.c:4");
}

TEST(ProfileDisassembly, ProgramHeadersTellAddresses) {
  std::vector<std::byte> head(sizeof(Elf64_Ehdr) + sizeof(Elf64_Phdr));
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_phoff = sizeof header;
  header.e_phnum = 1;
  Elf64_Phdr segment{.p_type = PT_LOAD,
                     .p_flags = PF_X,
                     .p_offset = 0x1000,
                     .p_vaddr = 0x401000,
                     .p_paddr = 0,
                     .p_filesz = 0x100,
                     .p_memsz = 0x100,
                     .p_align = 0x1000};
  const auto write = [&] {
    std::memcpy(head.data(), &header, sizeof header);
    std::memcpy(head.data() + sizeof header, &segment, sizeof segment);
  };
  write();
  EXPECT_EQ(load_address(head, 0x1010), 0x401010U);
  EXPECT_EQ(load_address(head, 0x1100), std::nullopt) << "behind the segment";
  for (const std::uint64_t bad : {std::uint64_t{1} << 40U, std::numeric_limits<std::uint64_t>::max()}) {
    header.e_phoff = bad;
    write();
    EXPECT_EQ(load_address(head, 0x1010), std::nullopt);
  }
  EXPECT_EQ(load_address(std::span{head}.first(10), 0x1010), std::nullopt);
}

TEST(ProfileReport, NamesCannotEndTheScriptElement) {
  ProfileSummary summary;
  summary.add(cycles(1, {frame("</script><script>alert(1)</script><!--", 1, "/bin/\xFF<b>")}));
  ProfileReport report;
  report.summary = &summary;
  report.run.command = {"sh", "-c", "</script>"};
  const std::string page = to_html(report);
  EXPECT_EQ(page.find("alert(1)</script>"), std::string::npos);
  EXPECT_NE(page.find("\\u003c/script>"), std::string::npos);
  const std::size_t data = page.find("id=\"profile-data\">");
  ASSERT_NE(data, std::string::npos);
  const std::size_t end = page.find("</script>", data);
  EXPECT_EQ(page.substr(data + 18, end - data - 18).find('<'), std::string::npos);
}

TEST(ProfileReport, AnEmptyProfileIsAReport) {
  const ProfileSummary summary;
  ProfileReport report;
  report.summary = &summary;
  EXPECT_NE(to_html(report).find("\"nodes\":[[0,0,[0,0,0,0]]]"), std::string::npos);
}

}  // namespace
}  // namespace vmm::tool
