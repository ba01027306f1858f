#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <new>

#include "select.hpp"
#include "vpmu/pmu.hpp"

// The PMU allocates nothing, from construction on. This program counts every allocation.

namespace {
std::size_t allocations = 0;
}

// Not inlined: g++ would see malloc() paired with a delete.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc{};
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace vpmu::test {
namespace {

/// A page of guest memory that holds the DS area, and its buffer above 400H.
class OnePage final : public GuestEnv {
 public:
  unsigned pmis{};
  AccessResult read_linear(GuestLinear at, std::span<std::byte> out) override {
    std::memcpy(out.data(), bytes_.data() + at.value() % page_size, out.size());
    return {};
  }
  AccessResult write_linear(GuestLinear at, std::span<const std::byte> in) override {
    std::memcpy(bytes_.data() + at.value() % page_size, in.data(), in.size());
    return {};
  }
  AccessResult probe_linear(GuestLinear, std::uint64_t, AccessKind) override { return {}; }
  std::uint64_t tsc() override { return 1; }
  void request_pmi() override { ++pmis; }
  void poke(std::size_t offset, std::uint64_t word) { std::memcpy(bytes_.data() + offset, &word, 8); }

 private:
  std::array<std::byte, page_size> bytes_{};
};

TEST(Allocation, TheCounterSeesOne) {
  const std::size_t before = allocations;
  ::operator delete(::operator new(1));  // not elidable, unlike a new expression
  EXPECT_EQ(allocations, before + 1);
}

TEST(Allocation, ThePmuAllocatesNothing) {
  OnePage env;
  for (const auto& [offset, word] : {std::pair{0x20U, 0x400U}, {0x28U, 0x400U}, {0x30U, 0x1000U}, {0x38U, 0x400U}})
    env.poke(offset, word);
  env.poke(0x40, minus(1));
  const std::size_t before = allocations;

  Pmu pmu{PmuConfig{}};
  bool ok = pmu.wrmsr(msr::IA32_PERFEVTSEL0, with_interrupt(loads).raw()) == MsrStatus::ok;
  ok = ok && pmu.wrmsr(msr::IA32_A_PMC0, minus(1)) == MsrStatus::ok;
  ok = ok && pmu.wrmsr(msr::IA32_PEBS_ENABLE, 1) == MsrStatus::ok && pmu.wrmsr(msr::IA32_DEBUGCTL, 1) == MsrStatus::ok;
  ok = ok && pmu.wrmsr(msr::IA32_DEBUGCTL, 2 | bit(40)) == MsrStatus::gp;
  CountDeltas deltas;
  deltas[CounterId::gp(0)] = 1;
  pmu.settle(deltas, env);
  const PebsRegisters registers;
  const Retirement load{.has_load = true,
                        .branch = {.kind = BranchKind::near_rel_jmp, .taken = true},
                        .cycles = 1,
                        .registers = &registers};
  for (unsigned k = 0; k < 8; ++k) pmu.retire(load, env);
  const CountPlan plan = pmu.plan();
  ok = ok && pmu.rdmsr(msr::IA32_PMC0).status == MsrStatus::ok && pmu.rdpmc(0, 0, false).has_value();
  ok = ok && pmu.restore(pmu.snapshot()) == RestoreStatus::ok;
  const MsrSpans trapped = trap_ranges(pmu.generation());
  ok = ok && !trapped.all().empty();
  pmu.reset();

  const std::size_t after = allocations;
  EXPECT_EQ(after, before);
  EXPECT_TRUE(ok);
  EXPECT_EQ(plan.size, 1U);
  EXPECT_GE(env.pmis, 4U) << "records have been written";
}

}  // namespace
}  // namespace vpmu::test
