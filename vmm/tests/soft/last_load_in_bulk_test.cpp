// While load latency is measured, a record of another counter shows the load that retired last, whether instructions
// are counted in whole blocks or one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <vector>

#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/fake_guest.hpp"
#include "fakes/guest_code.hpp"
#include "fakes/model_cpuid.hpp"
#include "pmu/pmu_vcpu.hpp"
#include "soft/soft_backend.hpp"
#include "vpmu/generation.hpp"
#include "vpmu/msr.hpp"
#include "vpmu/pebs.hpp"

namespace vmm::test::last_load {
namespace {

constexpr std::uint64_t code = 0x40'0000, code_bytes = 0x2000, stack = 0x50'0000, data = 0x60'0000, data_bytes = 0x8000,
                        ds_area = 0x70'0000, records = 0x71'0000, max_records = 100;
constexpr std::uint64_t instructions = 0x43'00C0, one_by_one = 0x43'00C4 | 1U << 18U;  // EDGE (rule C4)
constexpr std::uint64_t period = 331, rounds = 60;

/// Loads of all kinds, among other instructions; at the end `out 0x80`.
class LoadingProgram : public GuestCode {
 public:
  LoadingProgram(std::uint64_t seed, std::uint32_t load_latency, bool is_seen_one_by_one) : random_{seed} {
    const auto write = [this](std::uint32_t index, std::uint64_t value) { write_msr(index, value); };
    write(vpmu::msr::MSR_PEBS_LD_LAT_THRESHOLD.value(), 3);
    write(vpmu::msr::IA32_DS_AREA.value(), ds_area);
    write(vpmu::msr::IA32_PERFEVTSEL0.value(), instructions);
    write(vpmu::msr::IA32_PERFEVTSEL0.value() + 1, is_seen_one_by_one ? one_by_one : instructions);
    write(vpmu::msr::IA32_PERFEVTSEL0.value() + 3, load_latency);
    write(vpmu::msr::IA32_PMC0.value(), (0 - period) & 0xFFFF'FFFF);
    write(vpmu::msr::IA32_PEBS_ENABLE.value(), 1 | 8 | 8ULL << 32);
    write(vpmu::msr::IA32_PERF_GLOBAL_CTRL.value(), 0xB);
    move(rbx, rounds);
    const std::size_t start = size();
    while (size() < code_bytes / 2) add_piece();
    add({0x48, 0xFF, 0xCB, 0x0F, 0x85});  // dec rbx; jnz start
    add_word(start - (size() + 4), 4);
    add(X86("out %al, $0x80"));
  }

 private:
  void add_piece() {
    move(rsi, data + random_() % (data_bytes / 2));
    move(rdi, data + data_bytes / 2 + random_() % (data_bytes / 4));
    move(rcx, random_() % 6);
    switch (random_() % 12) {
      case 0: return add(X86("mov (%rsi), %rax; inc %rax"));
      case 1: return add(X86("lock incl (%rdi); inc %rdx"));
      case 2: return add(X86("xchg %rax, (%rdi)"));
      case 3: return add(X86("add %rax, (%rdi); mov %rax, 8(%rdi)"));
      case 4: return add(X86("cld; rep movsb"));
      case 5: return add(X86("cld; repe cmpsb"));
      case 6: return add(X86("prefetcht0 (%rsi); prefetcht1 64(%rdi)"));
      case 7: return add(X86("push (%rsi); pop (%rdi)"));
      case 8: return add(X86("call 1f; jmp 2f; 1: ret; 2:"));
      case 9: return add(X86("mov $0x47, %eax; bt %rax, (%rsi)"));
      case 10: return add(X86("std; rep lodsb; cld"));
      default: return add(X86("imul $77, %rax, %rax; mov %rax, (%rdi)"));
    }
  }

  std::mt19937_64 random_;
};

struct Outcome {
  std::vector<std::uint8_t> records;
  std::uint64_t count{}, instructions{}, observed{};
  std::set<std::uint64_t> sources;
};

Outcome run(const LoadingProgram& program, const MachineModel& model, TimeModel time) {
  const vpmu::GenerationDesc& generation = vpmu::describe(model.generation);
  FakeGuest guest;
  for (const auto& [at, bytes] : {std::pair{code, code_bytes},
                                  {stack, vpmu::page_size},
                                  {data, data_bytes},
                                  {ds_area, vpmu::page_size},
                                  {records, 8 * vpmu::page_size}})
    guest.map(at, bytes);
  const std::span bytes = std::as_bytes(std::span{program.bytes()});
  for (std::size_t at = 0; at < bytes.size(); at += vpmu::page_size)
    guest.store(code + at, bytes.subspan(at, std::min<std::size_t>(vpmu::page_size, bytes.size() - at)));
  const std::uint64_t record_bytes = vpmu::record_size(vpmu::PebsFormat{generation.pebs_format}),
                      end = records + max_records * record_bytes;
  const std::array<std::uint64_t, 5> area{records, records, end, ~0ULL, 0 - period};
  for (std::size_t n = 0; n < area.size(); ++n) guest.store_word(ds_area + 0x20 + 8 * n, area[n]);
  guest.backend.registers.rip = code;
  guest.backend.registers.rsp = stack + 0x800;
  SoftBackend backend{guest.memory, cpuid_of(model.name),
                      SoftStart{.sregs = guest.backend.special, .regs = guest.backend.registers}};
  Log log{[](LogLevel, std::string_view) {}, LogLevel::error};
  const PmuVcpuConfig config{.pmu = {.generation = model.generation},
                             .source = "exact",
                             .source_options = {.time = time},
                             .source_services = {.make_timer = backend.timers()}};
  auto vcpu = PmuVcpu::create(config, backend, guest.memory, log);
  EXPECT_TRUE(vcpu);
  bool ended = false;
  for (unsigned n = 0; n < 1000 && !ended; ++n) {
    const auto exit = (*vcpu)->run();
    EXPECT_TRUE(exit);
    ended = exit && std::holds_alternative<PortWrite>(*exit);
  }
  EXPECT_TRUE(ended) << "it did not come to its end";
  Outcome outcome;
  outcome.records = guest.load(records, max_records * record_bytes);
  outcome.count = (guest.load_word(ds_area + 0x28) - records) / record_bytes;
  for (std::uint64_t n = 0; n < outcome.count; ++n)
    outcome.sources.insert(guest.load_word(records + n * record_bytes + 0xA0));
  (*vcpu)->visit_statistics([&](std::string_view name, std::uint64_t value) {
    if (name == "pmu.exact.observed") outcome.observed = value;
    if (name == "pmu.exact.instructions") outcome.instructions = value;
  });
  return outcome;
}

// Rule L6.
TEST(LastLoad, OfABulkIsThatSeenOneByOne) {
  std::set<std::uint64_t> sources;
  for (const MachineModel& model : all_machine_models()) {
    const vpmu::GenerationDesc& generation = vpmu::describe(model.generation);
    if (!generation.features.load_latency) continue;
    const std::uint32_t event =
        0x43'0000U | std::uint32_t{generation.load_latency_umask} << 8U | generation.load_latency_code;
    for (const TimeModel time : {TimeModel::instructions, TimeModel::pipeline})
      for (std::uint64_t seed = 1; seed <= 2; ++seed) {
        const Outcome alone = run({seed, event, true}, model, time), bulk = run({seed, event, false}, model, time);
        ASSERT_EQ(bulk.instructions, alone.instructions) << model.name << ' ' << seed;
        ASSERT_EQ(bulk.count, alone.count) << model.name << ' ' << seed;
        ASSERT_EQ(bulk.records, alone.records) << model.name << ' ' << seed;
        ASSERT_GT(bulk.count, 20U) << "or nothing was recorded";
        ASSERT_GT(alone.observed, alone.instructions / 2) << "or it was not one by one";
        ASSERT_LT(bulk.observed, bulk.instructions / 20) << "or it was not in bulk";
        sources.insert(bulk.sources.begin(), bulk.sources.end());
      }
  }
  EXPECT_GT(sources.size(), 3U) << "from several places, and locked";
}

}  // namespace
}  // namespace vmm::test::last_load
