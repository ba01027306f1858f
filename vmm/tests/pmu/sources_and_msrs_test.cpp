#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <vector>

#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/fake_perf_host.hpp"
#include "pmu/profiled_guest.hpp"
#include "pmu/registry.hpp"

// The MSRs that a guest sees do not depend on its counting source.

namespace vmm::test {
namespace {

/// The result of one access: a value, or #GP.
struct AccessResult {
  std::uint32_t index{};
  std::uint64_t written{}, value{};
  bool gp{};
  friend bool operator==(const AccessResult&, const AccessResult&) = default;
};

/// All MSRs of the PMU on any generation, and their neighbours.
std::vector<std::uint32_t> all_msrs() {
  std::vector<std::uint32_t> all;
  const auto add = [&](std::uint32_t first, std::uint32_t last) {
    for (std::uint32_t i = first; i <= last; ++i) all.push_back(i);
  };
  add(0xC1, 0xC8);
  add(0x186, 0x18D);
  add(0x1A0, 0x1D8);  // without DEBUGCTL: with LBR on, some sources run the guest's code, and there is none here
  add(0x309, 0x30B);
  add(0x345, 0x345);
  add(0x38D, 0x3F7);
  add(0x4C1, 0x4C8);
  add(0x600, 0x600);
  add(0x680, 0x69F);
  add(0x6C0, 0x6DF);
  add(0xDC0, 0xDDF);
  return all;
}

/// The results of a guest that reads each MSR, writes 1, reads again and writes 0. Nothing else runs in between.
std::vector<AccessResult> answers_with(std::string_view source) {
  FakeGuest unused;
  ScriptedTime time;
  FakeCpu cpu{unused, time};
  FakePerf perf{unused, cpu};
  ProfiledGuest guest{{.source = source, .source_services = {.make_perf_host = perf.factory()}}};
  if (!guest.vcpu) return {};
  std::vector<AccessResult> answers;
  const auto access = [&](std::uint32_t index, std::optional<std::uint64_t> value) {
    guest.backend.script.push_back(value ? FakeBackend::wrmsr(index, *value) : FakeBackend::rdmsr(index));
    guest.backend.script.push_back(FakeBackend::ends_with(Shutdown{}));
    guest.run();
    answers.push_back({.index = index,
                       .written = value.value_or(0),
                       .value = value ? 0 : guest.backend.reply.data,
                       .gp = guest.backend.reply.gp != 0});
  };
  for (const std::uint32_t index : all_msrs()) {
    access(index, std::nullopt);
    access(index, 1);
    access(index, std::nullopt);
    access(index, 0);
  }
  return answers;
}

TEST(SourcesAndMsrs, EverySourceShowsTheSameMsrs) {
  const std::vector<AccessResult> expected = answers_with("clock");
  ASSERT_EQ(expected.size(), 4 * all_msrs().size());
  unsigned faults = 0;
  for (const AccessResult& a : expected) faults += a.gp ? 1U : 0U;
  EXPECT_GT(faults, 50U);
  EXPECT_LT(faults, expected.size() - 200);
  unsigned compared = 0;
  for (const SourceRow& row : all_sources()) {
    const std::vector<AccessResult> got = answers_with(row.traits.name);
    ASSERT_EQ(got.size(), expected.size()) << row.traits.name;
    for (std::size_t n = 0; n < got.size(); ++n)
      EXPECT_EQ(got[n], expected[n]) << row.traits.name << " MSR " << std::hex << got[n].index << " access " << n % 4
                                     << ": " << got[n].value << " gp " << got[n].gp << ", not " << expected[n].value
                                     << " gp " << expected[n].gp;
    ++compared;
  }
  EXPECT_GE(compared, 4U);
}

// When a vCPU is added to a running machine, the host's counters may be taken. The clock replaces a source that was not
// chosen by name.
TEST(Sources, OneThatNobodyAskedForByNameIsTheClockWhereItCannotBeHad) {
  FakeGuest unused;
  ScriptedTime time;
  FakeCpu cpu{unused, time};
  FakePerf perf{unused, cpu};
  perf.open_error = EBUSY;
  FakeGuest guest;
  std::vector<std::string> warnings;
  Log log{[&](LogLevel, std::string_view line) { warnings.emplace_back(line); }, LogLevel::warning};
  const PmuVcpuConfig asked{.source = "perf", .source_services = {.make_perf_host = perf.factory()}};
  const auto refused = PmuVcpu::create(asked, guest.backend, guest.memory, log);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().system_errno, EBUSY);
  PmuVcpuConfig open = asked;
  open.source_options.was_open = true;
  const auto made = PmuVcpu::create(open, guest.backend, guest.memory, log);
  ASSERT_TRUE(made);
  bool is_clock = false;
  (*made)->visit_statistics([&](std::string_view name, std::uint64_t) { is_clock |= name == "pmu.walk.records"; });
  EXPECT_TRUE(is_clock);
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("counters are taken"), std::string::npos) << warnings[0];
}

// Another VMM may own an MSR that the PMU does not have: it answers the exit later, or makes the access fault.
TEST(ForeignMsrs, AWriteToAnothersMsrRetiresUnlessItFaults) {
  constexpr std::uint32_t theirs = 0x10A0;
  for (const ForeignMsr answer : {ForeignMsr::exits, ForeignMsr::faults, ForeignMsr::none}) {
    ProfiledGuest guest{{.source = "step", .foreign_msr = [=](std::uint32_t, std::uint32_t msr) {
                           return msr == theirs ? answer : ForeignMsr::none;
                         }}};
    guest.cpu.add(ProfiledGuest::code, X86("wrmsr"), [&](FakeBackend& p) {
      guest.cpu.kick();
      return FakeBackend::wrmsr(theirs, 1)(p);
    });
    // After reset GLOBAL_CTRL enables all general-purpose counters.
    guest.will_write(vpmu::msr::IA32_PERFEVTSEL0, 0x43'00C0);
    const Exit exit = guest.run();
    EXPECT_EQ(std::holds_alternative<MsrWrite>(exit), answer == ForeignMsr::exits);
    EXPECT_EQ(guest.vcpu->pmu().state().pmc[0], answer == ForeignMsr::exits ? 1U : 0U) << static_cast<int>(answer);
  }
}

}  // namespace
}  // namespace vmm::test
