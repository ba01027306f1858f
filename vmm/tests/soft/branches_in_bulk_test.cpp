// The LBR and BTS must record the same branches whether instructions are counted in whole blocks or one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <vector>

#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/fake_guest.hpp"
#include "fakes/guest_code.hpp"
#include "pmu/pmu_vcpu.hpp"
#include "soft/soft_backend.hpp"
#include "vpmu/msr.hpp"
#include "vpmu/registers.hpp"

namespace vmm::test::branches_in_bulk {
namespace {

constexpr std::uint64_t code = 0x40'0000, code_bytes = 0x4000, stack = 0x50'0000, data = 0x60'0000, tables = 0x61'0000,
                        ds_area = 0x62'0000, records = 0x63'0000, records_bytes = 0x6000;
constexpr std::uint64_t instructions = 0x43'00C0;            // INST_RETIRED, both levels
constexpr std::uint64_t one_by_one = 0x43'00C4 | 1U << 18U;  // EDGE: each branch is counted by itself (rule C4)

/// LBR, TR, BTS and BTS_OFF_OS; without BTINT the buffer is circular.
constexpr std::uint64_t branch_trace = 0x2C1;

/// Branches of all near kinds, whose outcomes depend on random numbers that the guest computes; at the end `out 0x80`.
class BranchyProgram : public GuestCode {
 public:
  /// `stores`: runs in ring 3, with BTS.
  BranchyProgram(std::uint64_t seed, std::uint64_t lbr_select, bool is_seen_one_by_one, bool stores = false)
      : random_{seed} {
    write_msr(vpmu::msr::MSR_LBR_SELECT.value(), lbr_select);
    write_msr(vpmu::msr::IA32_PERFEVTSEL0.value(), instructions);
    write_msr(vpmu::msr::IA32_PERFEVTSEL0.value() + 1, is_seen_one_by_one ? one_by_one : instructions);
    write_msr(vpmu::msr::IA32_PERF_GLOBAL_CTRL.value(), 3);
    move(rbx, seed | 1);
    move(rdi, 40);
    if (stores) write_msr(vpmu::msr::IA32_DS_AREA.value(), ds_area);
    write_msr(vpmu::msr::IA32_DEBUGCTL.value(), stores ? branch_trace : 1);
    if (stores) go_to_ring_3();
    const std::size_t start = size();
    while (size() < code_bytes / 2) add_piece();
    add({0x48, 0xFF, 0xCF, 0x0F, 0x85});  // dec rdi; jnz start
    add_word(start - (size() + 4), 4);
    for (int n = 0; n < 3; ++n) add(X86("call 1f; nop; 1:"));  // these do not return
    if (!stores) write_msr(vpmu::msr::IA32_DEBUGCTL.value(), 0);
    add(X86("out %al, $0x80"));
  }

 private:
  /// Sets IOPL to 3, so that the final OUT does not fault.
  void go_to_ring_3() {
    add({0x6A, 0x2B, 0x68});  // push $0x2B; push $stack
    add_word(stack + 0x1000, 4);
    add(X86("push $0x3002; push $0x33"));
    add(X86("lea 1f(%rip), %rax; push %rax; iretq; 1:"));
  }
  std::uint64_t draw(std::uint64_t below) { return random_() % below; }
  /// Computes the guest's next random number and tests a bit of it.
  void test_a_bit() {
    add({0x48, 0x69, 0xDB});  // imul rbx, rbx, 0x41C64E6D
    add_word(0x41C6'4E6D, 4);
    add({0x48, 0x81, 0xC3});  // add rbx, 12345
    add_word(12345, 4);
    add({0xF7, 0xC3});  // test ebx, bit
    add_word(1ULL << (8 + draw(16)), 4);
  }
  void add_piece() {
    switch (draw(8)) {
      case 0:
      case 1: test_a_bit(); return add(X86("je 1f; inc %rax; 1:"));
      case 2: test_a_bit(); return add(X86("jne 1f; 1:"));
      case 3: return add(X86("call 1f; jmp 2f; 1: inc %rdx; ret; 2:"));
      case 4: return add(X86("call 1f; 1: pop %rcx"));
      case 5: return add(X86("lea 1f(%rip), %rcx; jmp *%rcx; 1:"));
      case 6: add(X86("lea 1f(%rip), %rcx; call *%rcx; jmp 2f; 1: ret; 2:")); return;
      default: move(rcx, data + 8 * draw(500)); return add(X86("add %rax, (%rcx); mov (%rcx), %rax"));
    }
  }

  std::mt19937_64 random_;
};

struct Outcome {
  std::map<std::uint32_t, std::uint64_t> lbr;  ///< By MSR.
  std::uint64_t instructions{}, observed{};
  std::vector<std::uint8_t> trace;  ///< The BTS half of the DS area, and the records.
  std::uint64_t stored{};
};

/// Runs the program to its end on a processor of that generation.
Outcome run(const BranchyProgram& program, vpmu::Generation generation) {
  FakeGuest guest;
  for (const auto& [at, bytes] :
       {std::pair{code, code_bytes}, {stack, 2 * vpmu::page_size}, {data, 2 * vpmu::page_size}})
    guest.map(at, bytes, {.is_user = true});
  guest.map(tables, vpmu::page_size);
  guest.map(ds_area, vpmu::page_size);
  guest.map(records, records_bytes);
  guest.store_word(tables + 0x28, 0x00CF'F300'0000'FFFF);
  guest.store_word(tables + 0x30, 0x00AF'FB00'0000'FFFF);
  guest.backend.special.gdt = {.base = tables, .limit = 0x37};
  constexpr std::array<std::uint64_t, 4> area{records, records, records + records_bytes - 100, ~0ULL};
  for (std::size_t n = 0; n < area.size(); ++n) guest.store_word(ds_area + 8 * n, area[n]);
  for (std::size_t at = 0; at < program.bytes().size(); at += vpmu::page_size)
    guest.store(code + at, std::as_bytes(std::span{program.bytes()}.subspan(
                               at, std::min<std::size_t>(vpmu::page_size, program.bytes().size() - at))));
  guest.backend.registers.rip = code;
  guest.backend.registers.rsp = stack + 0x1000;
  SoftBackend backend{guest.memory, CpuidTable{},
                      SoftStart{.sregs = guest.backend.special, .regs = guest.backend.registers}};
  Log log{[](LogLevel, std::string_view) {}, LogLevel::error};
  const PmuVcpuConfig config{
      .pmu = {.generation = generation}, .source = "exact", .source_services = {.make_timer = backend.timers()}};
  auto vcpu = PmuVcpu::create(config, backend, guest.memory, log);
  EXPECT_TRUE(vcpu);
  constexpr unsigned max_exits = 1000;
  bool ended = false;
  for (unsigned n = 0; n < max_exits && !ended; ++n) {
    const auto exit = (*vcpu)->run();
    EXPECT_TRUE(exit);
    ended = exit && std::holds_alternative<PortWrite>(*exit);
  }
  EXPECT_TRUE(ended) << "it did not come to its end";
  Outcome outcome;
  const auto value_of = [&vcpu](std::uint32_t index) {
    const auto read = (*vcpu)->pmu().rdmsr(vpmu::MsrIndex{index});
    return read.status == vpmu::MsrStatus::ok ? read.value : 0;
  };
  const unsigned depth = vpmu::describe(generation).lbr_depth;
  for (const std::uint32_t first : {0x680U, 0x6C0U, 0xDC0U})
    for (std::uint32_t n = 0; n < depth; ++n) outcome.lbr[first + n] = value_of(first + n);
  outcome.lbr[vpmu::msr::MSR_LASTBRANCH_TOS.value()] = value_of(vpmu::msr::MSR_LASTBRANCH_TOS.value());
  outcome.instructions = value_of(vpmu::msr::IA32_PMC0.value());
  (*vcpu)->visit_statistics([&](std::string_view name, std::uint64_t value) {
    if (name == "pmu.exact.observed") outcome.observed = value;
    if (name == "pmu.bts.records") outcome.stored = value;
  });
  outcome.trace = guest.load(ds_area, 32);
  const auto stored = guest.load(records, records_bytes);
  outcome.trace.insert(outcome.trace.end(), stored.begin(), stored.end());
  return outcome;
}

struct Case {
  const char* name;
  vpmu::Generation generation;
  std::uint64_t lbr_select;
};

class BranchesInBulk : public testing::TestWithParam<Case> {};

// Rule Z5; SDM 3B 17.4.8, call-stack mode 17.9, LBR_INFO 17.10.
TEST_P(BranchesInBulk, AreThoseSeenOneByOne) {
  constexpr std::uint64_t programs = 20;
  for (std::uint64_t seed = 1; seed <= programs; ++seed) {
    const Outcome alone = run({seed, GetParam().lbr_select, true}, GetParam().generation);
    const Outcome bulk = run({seed, GetParam().lbr_select, false}, GetParam().generation);
    ASSERT_EQ(bulk.instructions, alone.instructions) << seed;
    ASSERT_EQ(bulk.lbr, alone.lbr) << seed;
    ASSERT_GT(alone.observed, alone.instructions / 2) << "or it was not one by one";
    ASSERT_LT(bulk.observed, bulk.instructions / 100) << "or it was not in bulk";
    ASSERT_TRUE(std::ranges::any_of(bulk.lbr, [](const auto& msr) {
      return msr.first != vpmu::msr::MSR_LASTBRANCH_TOS.value() && msr.second != 0;
    })) << "or nothing was recorded";
  }
}

// Rules B1, B3, B5.
TEST_P(BranchesInBulk, AreStoredAsThoseSeenOneByOne) {
  constexpr std::uint64_t programs = 5;
  for (std::uint64_t seed = 1; seed <= programs; ++seed) {
    const Outcome alone = run({seed, GetParam().lbr_select, true, true}, GetParam().generation);
    const Outcome bulk = run({seed, GetParam().lbr_select, false, true}, GetParam().generation);
    ASSERT_EQ(bulk.instructions, alone.instructions) << seed;
    ASSERT_EQ(bulk.stored, alone.stored) << seed;
    ASSERT_EQ(bulk.trace, alone.trace) << seed;
    ASSERT_EQ(bulk.lbr, alone.lbr) << seed;
    ASSERT_GT(bulk.stored, 2 * records_bytes / 24) << "or it did not come round";
    ASSERT_GT(alone.observed, alone.instructions / 2) << "or it was not one by one";
    ASSERT_LT(bulk.observed, bulk.instructions / 50) << "or it was not in bulk";
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, BranchesInBulk,
                         testing::Values(Case{"Nehalem", vpmu::Generation::nehalem, 0},
                                         Case{"SandyBridge", vpmu::Generation::sandy_bridge, 0},
                                         Case{"HaswellCallStack", vpmu::Generation::haswell, 0x3C4},
                                         Case{"Skylake", vpmu::Generation::skylake, 0},
                                         Case{"SkylakeCalls", vpmu::Generation::skylake, 0x1E4},
                                         Case{"SkylakeCallStack", vpmu::Generation::skylake, 0x3C4}),
                         [](const auto& test) { return std::string{test.param.name}; });

}  // namespace
}  // namespace vmm::test::branches_in_bulk
