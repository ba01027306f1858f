#include "passthrough/event_policy.hpp"

#include <gtest/gtest.h>
#include <linux/kvm.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "fakes/fake_kvm.hpp"
#include "kvm/system.hpp"

// KVM's api.rst, 4.120 KVM_SET_PMU_EVENT_FILTER.

namespace vmm::test {
namespace {

using Rule = EventPolicy::Rule;
constexpr std::uint32_t cap_masked_events = 226;

struct PolicyFile {
  explicit PolicyFile(const std::string& text) { std::ofstream{path} << text; }
  ~PolicyFile() { ::unlink(path.c_str()); }
  std::string path{testing::TempDir() + "event_policy_" + std::to_string(::getpid())};
};

/// The words of the filter that KVM gets for a policy; empty if KVM gets no filter.
Result<std::vector<std::uint64_t>> told(FakeKvm& kvm, const EventPolicy& policy) {
  VMM_ASSIGN(const auto system, System::open(kvm.path()));
  VMM_ASSIGN(auto vm, system.create_vm());
  VMM_TRY(apply(policy, vm));
  return kvm.event_filter;
}

kvm_pmu_event_filter head_of(const std::vector<std::uint64_t>& words) {
  kvm_pmu_event_filter head{};
  std::memcpy(&head, words.data(), sizeof head);
  return head;
}
std::vector<std::uint64_t> events_of(const std::vector<std::uint64_t>& words) {
  return {words.begin() + sizeof(kvm_pmu_event_filter) / sizeof(std::uint64_t), words.end()};
}

TEST(EventPolicy, AllTellsKvmNothing) {
  FakeKvm kvm;
  kvm.other_capabilities = 1;
  const auto words = told(kvm, *read_event_policy("all"));
  ASSERT_TRUE(words);
  EXPECT_TRUE(words->empty());
}

// SDM 3B table 18-1.
TEST(EventPolicy, ArchitecturalAllowsThoseEventsAndTheFixedCounters) {
  FakeKvm kvm;
  kvm.other_capabilities = 1;
  const auto words = told(kvm, *read_event_policy("architectural"));
  ASSERT_TRUE(words);
  EXPECT_EQ(head_of(*words).action, std::uint32_t{KVM_PMU_EVENT_ALLOW});
  EXPECT_EQ(head_of(*words).fixed_counter_bitmap, 0xFFFF'FFFFU);
  EXPECT_EQ(head_of(*words).flags, 0U);
  EXPECT_EQ(head_of(*words).nevents, 7U);
  EXPECT_EQ(events_of(*words), (std::vector<std::uint64_t>{0x3C, 0x13C, 0xC0, 0x4F2E, 0x412E, 0xC4, 0xC5}));
}

TEST(EventPolicy, StandardDeniesOffCoreResponsesWhateverTheirMask) {
  FakeKvm kvm;
  kvm.other_capabilities = 1;
  const auto words = told(kvm, *read_event_policy("standard"));
  ASSERT_TRUE(words);
  EXPECT_EQ(head_of(*words).action, std::uint32_t{KVM_PMU_EVENT_DENY});
  EXPECT_EQ(head_of(*words).fixed_counter_bitmap, 0U) << "denies no fixed counter";
  EXPECT_EQ(head_of(*words).flags, 1U) << "masked events; no mask stands for each unit mask";
  EXPECT_EQ(events_of(*words), (std::vector<std::uint64_t>{0xB7, 0xBB, 0x2A, 0x2B}));
}

TEST(EventPolicy, FileNamesEventsAndFixedCounters) {
  const PolicyFile file{"# for tenants\nr00c0   # instructions\n\n  r412e\nfixed 0\nfixed 2\n"};
  const auto policy = read_event_policy(file.path);
  ASSERT_TRUE(policy) << describe(policy.error());
  EXPECT_EQ(*policy, (EventPolicy{.rule = Rule::nothing_but, .events = {0x00C0, 0x412E}, .fixed_counters = 0b101}));
}

TEST(EventPolicy, WrongFilesAreRefusedByLine) {
  for (const char* line : {"c0", "r0c0", "r00c0g", "rxxxx", "fixed", "fixed 32", "fixed -1", "r00c0 r00c1"}) {
    const PolicyFile file{std::string{"r00c0\n"} + line + "\n"};
    const auto policy = read_event_policy(file.path);
    ASSERT_FALSE(policy) << line;
    EXPECT_EQ(policy.error().kind, ErrorKind::usage);
    EXPECT_NE(describe(policy.error()).find("line 2"), std::string::npos) << describe(policy.error());
  }
  const auto missing = read_event_policy("/no/such/policy");
  ASSERT_FALSE(missing);
  EXPECT_NE(describe(missing.error()).find("architectural, standard"), std::string::npos);
}

TEST(EventPolicy, MoreEventsThanKvmTakesAreRefused) {
  std::string text;
  for (unsigned i = 0; i < EventPolicy::max_events; ++i) text += "r00c0\n";
  {
    const PolicyFile file{text};
    EXPECT_TRUE(read_event_policy(file.path));
  }
  const PolicyFile file{text + "r00c1\n"};
  const auto policy = read_event_policy(file.path);
  ASSERT_FALSE(policy);
  EXPECT_NE(describe(policy.error()).find("line 301: more than 300"), std::string::npos) << describe(policy.error());
}

TEST(EventPolicy, OldKvmsAreRefusedWhatTheyCannotDo) {
  FakeKvm kvm;
  kvm.other_capabilities = 1;
  kvm.capabilities[cap_masked_events] = 0;
  EXPECT_FALSE(told(kvm, *read_event_policy("standard")));
  EXPECT_TRUE(told(kvm, *read_event_policy("architectural")));
  kvm.capabilities[KVM_CAP_PMU_EVENT_FILTER] = 0;
  const auto refused = told(kvm, *read_event_policy("architectural"));
  ASSERT_FALSE(refused);
  EXPECT_NE(describe(refused.error()).find("Linux 5.3"), std::string::npos);
  EXPECT_TRUE(told(kvm, *read_event_policy("all")));
}

TEST(EventPolicy, RefusalOfKvmIsReported) {
  FakeKvm kvm;
  kvm.other_capabilities = 1;
  kvm.errors[KVM_SET_PMU_EVENT_FILTER] = EINVAL;
  const auto refused = told(kvm, *read_event_policy("architectural"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().system_errno, EINVAL);
}

}  // namespace
}  // namespace vmm::test
