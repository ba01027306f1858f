// Events that depend on the kind of an instruction: SDM 3B tables 19-13 and 19-15 (Nehalem, Westmere), and
// INST_RETIRED.NOP of Skylake.
#include "gt/apic.hpp"
#include "gt/asm.hpp"
#include "gt/branches.hpp"
#include "gt/cpu.hpp"
#include "gt/paging.hpp"
#include "gt/pebs.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

namespace pmu = gt::pmu;
using gt::cpu::Microarchitecture;

constexpr pmu::Event x87{0xC0, 0x02}, mmx{0xC0, 0x04}, nop{0xC0, 0x02}, macro_fused{0xC2, 0x04},
    packed_single{0xC7, 0x01}, scalar_single{0xC7, 0x02}, packed_double{0xC7, 0x04}, scalar_double{0xC7, 0x08},
    vector_integer{0xC7, 0x10}, dtlb_miss_loads{0xCB, 0x80}, dtlb_miss_stores{0x0C, 0x01},
    not_taken_mispredicts{0xC5, 0x10}, uncached_loads_westmere{0x0F, 0x80}, uncached_loads_skylake{0xD4, 0x04},
    memory_instructions{0xD0, 0x83};

bool is_of(Microarchitecture first, Microarchitecture last) {
  return gt::cpu::facts().microarchitecture >= first && gt::cpu::facts().microarchitecture <= last;
}

/// SDM 3A 9.6.1: lets code use the vector registers.
void enable_vectors() {
  gt::write_cr4(gt::read_cr4() | x86::cr4::OSFXSR::mask);
  gt::write_cr0(gt::read_cr0() & ~(x86::cr0::EM::mask | x86::cr0::TS::mask));
}

/// How often the event counts on PMC0 during `run`.
template <class Run>
std::uint64_t count(pmu::Event event, Run run) {
  pmu::stop();
  pmu::program(0, pmu::select(event, pmu::os), 0);
  pmu::start(pmu::gp_bit(0));
  run();
  pmu::stop();
  return pmu::counter(0);
}

void vector_code() {
  asm volatile(
      ".rept 5\n mulps %xmm0, %xmm1\n .endr\n"
      ".rept 7\n mulss %xmm0, %xmm1\n .endr\n"
      ".rept 3\n mulpd %xmm0, %xmm1\n .endr\n"
      ".rept 11\n mulsd %xmm0, %xmm1\n .endr\n"
      ".rept 13\n paddd %xmm0, %xmm1\n .endr\n"
      ".rept 17\n paddd %mm0, %mm1\n .endr\n"
      "emms\n"
      "fld1\n fld1\n"
      ".rept 9\n fadd %st(1), %st\n .endr\n"
      "fstp %st\n fstp %st\n");
}

GT_TEST(EventClasses_TellVectorCodeByWhatItComputesIn, gt::need_exact_counts) {
  if (!is_of(Microarchitecture::nehalem, Microarchitecture::westmere))
    gt::skip("only Nehalem and Westmere have these events");
  enable_vectors();
  GT_EQUAL(count(packed_single, vector_code), 5U);
  GT_EQUAL(count(scalar_single, vector_code), 7U);
  GT_EQUAL(count(packed_double, vector_code), 3U);
  GT_EQUAL(count(scalar_double, vector_code), 11U);
  GT_EQUAL(count(vector_integer, vector_code), 13U);
  GT_EQUAL(count(mmx, vector_code), 18U);
  GT_EQUAL(count(x87, vector_code), 9U);
}

// SDM 3B tables 19-3, 19-5, 19-9, 19-13: arithmetic counts, also in sums of umasks; conversions, comparisons, logic and
// moves do not.
GT_TEST(EventClasses_CountFloatingPointOperations, gt::need_exact_counts) {
  struct Row {
    pmu::Event event;
    std::uint64_t count;
  };
  const auto code = [] {
    vector_code();
    asm volatile(
        "cvtsi2sd %eax, %xmm2\n comisd %xmm2, %xmm2\n xorps %xmm2, %xmm2\n movaps %xmm2, %xmm3\n"
        "haddps %xmm2, %xmm2\n dpps $255, %xmm2, %xmm3\n");
  };
  enable_vectors();
  const auto expect = [&code](std::initializer_list<Row> rows) {
    for (const Row& row : rows) GT_EQUAL(count(row.event, code), row.count);
  };
  // HADDPS is one operation, DPPS is two.
  constexpr std::uint64_t ps = 5 + 1 + 2, ss = 7, pd = 3, sd = 11;
  if (is_of(Microarchitecture::broadwell, Microarchitecture::skylake))
    expect({{{0xC7, 0x01}, sd},
            {{0xC7, 0x02}, ss},
            {{0xC7, 0x03}, sd + ss},
            {{0xC7, 0x04}, pd},
            {{0xC7, 0x08}, ps},
            {{0xC7, 0x15}, sd + pd},
            {{0xC7, 0x0A}, ss + ps},
            {{0xC7, 0x20}, 0},
            {{0xC7, 0xFF}, sd + ss + pd + ps}});
  else if (is_of(Microarchitecture::sandy_bridge, Microarchitecture::ivy_bridge))
    expect({{{0x10, 0x80}, sd},
            {{0x10, 0x20}, ss},
            {{0x10, 0x10}, pd},
            {{0x10, 0x40}, ps},
            {{0x10, 0xA0}, sd + ss},
            {{0x10, 0x01}, 9},
            {{0x11, 0x01}, 0}});
  else if (is_of(Microarchitecture::nehalem, Microarchitecture::westmere))
    expect({{{0x10, 0x04}, ps + ss + pd + sd},
            {{0x10, 0x10}, ps + pd},
            {{0x10, 0x20}, ss + sd},
            {{0x10, 0x40}, ps + ss},
            {{0x10, 0x80}, pd + sd},
            {{0x10, 0x30}, ps + ss + pd + sd},
            {{0x10, 0x01}, 9},
            {{0x10, 0x02}, 17},
            {{0x10, 0x08}, 13},
            {{0x12, 0x20}, 13},
            {{0xFD, 0x20}, 17},
            {{0xFD, 0x01}, 0}});
  else
    gt::skip("this processor has no events of floating-point operations");
}

GT_TEST(EventClasses_CountNoOperations, gt::need_exact_counts) {
  if (!is_of(Microarchitecture::skylake, Microarchitecture::skylake)) gt::skip("INST_RETIRED.NOP is Skylake's");
  GT_EQUAL(count(nop, [] { asm volatile("nop\n nopw (%%rax)\n xchg %%rbx, %%rbx\n nop\n" ::: "memory"); }), 3U);
}

// Optimization Reference Manual, macro-fusion: two pairs that fuse, one compare without a branch, one branch on the
// sign alone, and one of DEC, which fuses from Sandy Bridge on.
GT_TEST(EventClasses_CountFusedPairs, gt::need_hit_levels) {
  if (!is_of(Microarchitecture::nehalem, Microarchitecture::westmere))
    gt::skip("only Nehalem and Westmere have this event");
  const auto pairs = [] {
    asm volatile(
        ".p2align 6\n"
        ".rept 2\n cmp $3, %%rax\n je 1f\n 1:\n .endr\n"
        "cmp $3, %%rax\n nop\n"
        "cmp $3, %%rax\n js 1f\n 1:\n"
        "dec %%rax\n je 1f\n 1:\n" ::
            : "rax", "cc");
  };
  GT_EQUAL(count(macro_fused, pairs), 2U);
}

// A load from the local APIC's registers is uncached, a load from memory is not.
GT_TEST(EventClasses_CountUncachedLoads, gt::need_exact_counts) {
  const bool skylake = is_of(Microarchitecture::skylake, Microarchitecture::skylake);
  if (!skylake && !is_of(Microarchitecture::nehalem, Microarchitecture::westmere))
    gt::skip("this processor has no event of uncached loads");
  constexpr unsigned nehalem_ex = 0x2E, westmere_ep = 0x2C;
  const std::uint32_t signature = gt::cpuid(1).eax;
  const unsigned model = (signature >> 4 & 0xF) | (signature >> 12 & 0xF0);
  if (model == nehalem_ex || model == westmere_ep) gt::skip("Intel's list of this processor has no MEM_UNCORE_RETIRED");
  static volatile std::uint32_t word = 0;
  const auto loads = [] {
    for (unsigned i = 0; i < 5; ++i) {
      (void)gt::apic::read(gt::apic::lvtpc_offset);
      (void)word;
    }
  };
  GT_EQUAL(count(skylake ? uncached_loads_skylake : uncached_loads_westmere, loads), 5U);
}

GT_TEST(EventClasses_CountLoadsAndStoresTogether, gt::need_exact_counts) {
  if (!is_of(Microarchitecture::skylake, Microarchitecture::skylake)) gt::skip("MEM_INST_RETIRED.ANY is Skylake's");
  std::uint64_t word = 0;
  const auto accesses = [&word] {
    asm volatile("mov (%0), %%rax\n mov %%rax, (%0)\n add %%rax, (%0)\n lea 8(%0), %%rax\n nop\n" ::"r"(&word)
                 : "rax", "memory", "cc");
  };
  GT_EQUAL(count(memory_instructions, accesses), 3U);
}

// Up to Westmere the event counts misses of the first-level TLB, also if the second level hits. All 256 pages miss in
// each round.
GT_TEST(EventClasses_CountMissesOfTheFirstTlb, gt::need_hit_levels) {
  if (!is_of(Microarchitecture::nehalem, Microarchitecture::westmere))
    gt::skip("only Nehalem and Westmere have these events");
  constexpr std::uint64_t pages = 256, array = 16ULL << 20;
  for (std::uint64_t page = 0; page < pages; ++page)
    gt::paging::map(gt::paging::window + page * 4096, array + page * 4096, gt::paging::writable);
  for (unsigned round = 0; round < 3; ++round) {
    const std::uint64_t loads = count(dtlb_miss_loads, [] {
      for (std::uint64_t page = 0; page < pages; ++page)
        (void)*reinterpret_cast<const volatile std::uint64_t*>(gt::paging::window + page * 4096);
    });
    GT_CHECK(loads >= pages && loads < pages + 20);
  }
  const std::uint64_t stores = count(dtlb_miss_stores, [] {
    for (std::uint64_t page = 0; page < pages; ++page)
      *reinterpret_cast<volatile std::uint64_t*>(gt::paging::window + page * 4096) = page;
  });
  GT_CHECK(stores >= pages && stores < pages + 20);
}

// SDM 3B tables 19-9, 19-11, 19-13 and 19-15, BR_INST_EXEC. One of the branches is a far return.
GT_TEST(EventClasses_CountNearBranchesThatExecute, gt::need_exact_counts) {
  if (is_of(Microarchitecture::skylake, Microarchitecture::skylake))
    gt::skip("Intel's list of this processor has no BR_INST_EXEC");
  const bool up_to_westmere = is_of(Microarchitecture::nehalem, Microarchitecture::westmere);
  const pmu::Event near{0x88, static_cast<std::uint8_t>(up_to_westmere ? 0x7F : 0xFF)};
  const pmu::Event conditional{0x88, static_cast<std::uint8_t>(up_to_westmere ? 0x01 : 0xC1)};
  const auto branches = [] { gt::gt_branch_kinds(0); };
  const std::uint64_t n = count(near, branches);
  GT_CHECK(n >= gt::branch_kinds().size());
  GT_EQUAL(n + 1, count(pmu::branches, branches));
  GT_EQUAL(count(conditional, branches), count(pmu::conditional_branches, branches));
}

// The model predicts a branch that it has not seen before as taken; these are not taken.
GT_TEST(EventClasses_CountMispredictedBranchesThatWereNotTaken, gt::need_hit_levels) {
  if (!is_of(Microarchitecture::sandy_bridge, Microarchitecture::sandy_bridge))
    gt::skip("only Sandy Bridge has this event");
  const std::uint64_t n = count(not_taken_mispredicts, [] {
    asm volatile("xor %%eax, %%eax\n .rept 20\n test %%eax, %%eax\n jnz 1f\n 1:\n .endr\n" ::: "rax", "cc");
  });
  GT_CHECK(n >= 10 && n <= 20);
}

}  // namespace
