// Lines that software has flushed come from memory again: SDM 2A CLFLUSH and CLFLUSHOPT, 2C WBINVD. The architectural
// LLC events show it (SDM 3B table 18-1). Only for sources that model the caches.
#include <array>

#include "gt/asm.hpp"
#include "gt/cpu.hpp"
#include "gt/interrupts.hpp"
#include "gt/paging.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

namespace {

namespace x86 = vpmu::x86;

namespace pmu = gt::pmu;

constexpr pmu::Event llc_misses{0x2E, 0x41};
constexpr std::uint64_t line_bytes = 64, rounds = 1000;
/// More loads than the code that starts and stops counting makes.
constexpr std::uint64_t few = 10;
/// Free RAM in large pages.
constexpr std::uint64_t line = 16ULL << 20;
constexpr std::uint64_t window = gt::paging::window;

bool has_clflushopt() { return (gt::cpuid(7).ebx & vpmu::bit(23)) != 0; }

enum class Flush : std::uint8_t { none, clflush, clflushopt };

template <Flush How>
void flush(std::uint64_t at) {
  if constexpr (How == Flush::clflush) asm volatile("clflush (%0)\n mfence" ::"r"(at) : "memory");
  if constexpr (How == Flush::clflushopt) asm volatile("clflushopt (%0)\n mfence" ::"r"(at) : "memory");
}

struct Counted {
  std::uint64_t misses, loads, stores;
};

void begin(std::uint64_t level) {
  pmu::stop();
  pmu::program(0, pmu::select(llc_misses, level), 0);
  pmu::program(1, pmu::select(gt::cpu::facts().loads, level), 0);
  pmu::program(2, pmu::select(gt::cpu::facts().stores, level), 0);
  pmu::start(7);
}
Counted end() {
  pmu::stop();
  return {pmu::counter(0), pmu::counter(1), pmu::counter(2)};
}

/// Flushes and loads, `rounds` times.
template <Flush How>
Counted flush_and_load() {
  begin(pmu::os);
  for (std::uint64_t i = 0; i < rounds; ++i) {
    flush<How>(line);
    asm volatile("mov (%0), %%rax" ::"r"(line) : "rax", "memory");
  }
  return end();
}

// A flush is neither a load nor a store: each round has one load.
void check_missed(const Counted& counted) {
  GT_CHECK(counted.misses >= rounds && counted.misses < rounds + few);
  GT_CHECK(counted.loads >= rounds && counted.loads < rounds + few);
  GT_CHECK(counted.stores < few);
}

// SDM 2A CPUID: CLFSH is bit 19 of EDX, and EBX[15:8] is the size of a line in 8 bytes.
GT_TEST(CacheFlush_ClflushIsThere) {
  const gt::CpuidResult features = gt::cpuid(1);
  GT_EQUAL(features.edx >> 19 & 1U, 1U);
  GT_EQUAL(features.ebx >> 8 & 0xFFU, line_bytes / 8);
  gt::arm_guard();
  asm volatile("1: clflush (%0)\n2:\n" GT_GUARD("1b", "2b")::"r"(line) : "memory");
  GT_CHECK(gt::guard_outcome(0).ok());
}

GT_TEST(CacheFlush_LoadsBehindClflushMiss, gt::need_hit_levels) {
  const Counted unflushed = flush_and_load<Flush::none>();
  GT_CHECK(unflushed.misses < few);
  GT_CHECK(unflushed.loads >= rounds);
  check_missed(flush_and_load<Flush::clflush>());
}
GT_TEST(CacheFlush_LoadsBehindClflushoptMiss, gt::need_hit_levels) {
  if (!has_clflushopt()) gt::skip("this processor has no CLFLUSHOPT");
  check_missed(flush_and_load<Flush::clflushopt>());
}

constexpr std::uint64_t prefetched = line + (1ULL << 20), nowhere = 1ULL << 46;

// SDM 2B PREFETCHW: a prefetch is a load that brings its line, so the load behind it misses nothing; where nothing is
// mapped it is still a load, and does not fault.
GT_TEST(Prefetch_IsALoadThatBringsItsLine, gt::need_hit_levels) {
  const pmu::WithoutPrefetchers off;
  begin(pmu::os);
  for (std::uint64_t i = 0; i < rounds; ++i)
    asm volatile("prefetcht0 (%0)\n mov (%0), %%rax" ::"r"(prefetched + i * line_bytes) : "rax", "memory");
  const Counted both = end();
  GT_CHECK(both.misses >= rounds && both.misses < rounds + few);
  GT_CHECK(both.loads >= 2 * rounds && both.loads < 2 * rounds + few);
  GT_CHECK(both.stores < few);
  begin(pmu::os);
  for (std::uint64_t i = 0; i < rounds; ++i) asm volatile("prefetchnta (%0)" ::"r"(nowhere) : "memory");
  const Counted from_nowhere = end();
  GT_CHECK(from_nowhere.misses < few);
  GT_CHECK(from_nowhere.loads >= rounds && from_nowhere.loads < rounds + few);
}

// SDM 3C table 19-4: SW_PREFETCH_ACCESS, by kind.
GT_TEST(Prefetch_IsCountedByItsKind, gt::need_hit_levels) {
  if (gt::cpu::facts().microarchitecture != gt::cpu::Microarchitecture::skylake)
    gt::skip("only Skylake counts prefetches by their kind");
  pmu::stop();
  constexpr std::array<std::uint8_t, 4> umasks{0x01, 0x02, 0x04, 0x08};
  for (unsigned i = 0; i < umasks.size(); ++i) pmu::program(i, pmu::select({0x32, umasks[i]}, pmu::os), 0);
  pmu::start(0xF);
  asm volatile(
      "prefetchnta (%0)\n"
      ".rept 2\n prefetcht0 (%0)\n .endr\n"
      ".rept 3\n prefetcht1 (%0)\n prefetcht2 (%0)\n .endr\n"
      ".rept 4\n prefetchw (%0)\n .endr\n" ::"r"(line)
      : "memory");
  pmu::stop();
  GT_EQUAL(pmu::counter(0), 1U);
  GT_EQUAL(pmu::counter(1), 2U);
  GT_EQUAL(pmu::counter(2), 6U);
  GT_EQUAL(pmu::counter(3), 4U);
}

// SDM 2A CPUID, leaf 07H: CLFLUSHOPT came with Skylake.
GT_TEST(CacheFlush_ClflushoptIsThereFromSkylakeOn) {
  if (gt::cpu::facts().microarchitecture != gt::cpu::Microarchitecture::skylake) {
    GT_EQUAL(has_clflushopt(), false);
    return;
  }
  if (!has_clflushopt()) gt::skip("this host has no CLFLUSHOPT");
  gt::arm_guard();
  asm volatile("1: clflushopt (%0)\n2:\n" GT_GUARD("1b", "2b")::"r"(line) : "memory");
  GT_CHECK(gt::guard_outcome(0).ok());
}

// The whole line is flushed, whichever byte of it is named, and no other line. The first round warms up the lines that
// counting itself loads.
GT_TEST(CacheFlush_FlushesOneLine, gt::need_hit_levels) {
  for (const std::uint64_t offset : {0ULL, 63ULL, 64ULL}) {
    std::uint64_t misses = 0;
    for (unsigned round = 0; round < 2; ++round) {
      begin(pmu::os);
      asm volatile(
          "mov (%0), %%rax\n"
          "mfence\n"
          "clflush (%1)\n"
          "mfence\n"
          "mov (%0), %%rax" ::"r"(line),
          "r"(line + offset)
          : "rax", "memory");
      misses = end().misses;
    }
    GT_EQUAL(misses, offset < line_bytes ? 1U : 0U);
  }
}

// The physical line is flushed, so that it is gone for other mappings, too. This works at CPL 3 and on read-only pages.
GT_TEST(CacheFlush_FlushesForEachMapping, gt::need_hit_levels) {
  gt::paging::map(window, line, gt::paging::user);
  flush_and_load<Flush::none>();
  begin(pmu::usr);
  gt::run_at_cpl3(
      [](void*) {
        for (std::uint64_t i = 0; i < rounds; ++i) {
          flush<Flush::clflush>(window);
          asm volatile("mov (%0), %%rax" ::"r"(window) : "rax", "memory");
        }
      },
      nullptr);
  const Counted user = end();
  GT_CHECK(user.misses >= rounds && user.misses < rounds + 20);
  begin(pmu::os);
  for (std::uint64_t i = 0; i < rounds; ++i) {
    flush<Flush::clflush>(window);
    asm volatile("mov (%0), %%rax" ::"r"(line) : "rax", "memory");
  }
  check_missed(end());
}

gt::Outcome try_clflush(std::uint64_t at) {
  gt::arm_guard();
  asm volatile("1: clflush (%0)\n2:\n" GT_GUARD("1b", "2b")::"r"(at) : "memory");
  return gt::guard_outcome(0);
}

// SDM 2A CLFLUSH: it faults like a byte load.
GT_TEST(CacheFlush_FaultsAsALoadDoes) {
  constexpr std::uint64_t non_canonical = 1ULL << 63;
  if (try_clflush(non_canonical).ok()) gt::skip("this host's CLFLUSH checks no address");
  gt::paging::map(window, line, 0);
  gt::paging::unmap(window + 4096);
  GT_CHECK(try_clflush(window + 4095).ok());
  gt::paging::unmap(window);
  for (const std::uint64_t at : {window + 8, non_canonical}) {
    const gt::Outcome outcome = try_clflush(at);
    GT_EQUAL(outcome.vector, at == non_canonical ? x86::vector::GP : x86::vector::PF);
    if (at != non_canonical) GT_EQUAL(outcome.cr2, at);
    GT_EQUAL(outcome.error_code, 0U);
  }
}

// Code that flushes its own line runs on unchanged.
GT_TEST(CacheFlush_CodeMayBeFlushed) {
  std::uint64_t left = 100;
  asm volatile(
      "1: clflush 1b(%%rip)\n"
      "dec %0\n"
      "jnz 1b"
      : "+r"(left)::"cc", "memory");
  GT_EQUAL(left, 0U);
}

// Code whose line is flushed each time misses each time.
GT_TEST(CacheFlush_FlushedCodeMisses, gt::need_hit_levels) {
  std::uint64_t left = rounds;
  begin(pmu::os);
  asm volatile(
      "1: clflush 1b(%%rip)\n"
      "mfence\n"
      "dec %0\n"
      "jnz 1b"
      : "+r"(left)::"cc", "memory");
  const Counted counted = end();
  GT_CHECK(counted.misses >= rounds && counted.misses < 2 * rounds + 2 * few);
  GT_CHECK(counted.loads < few);
}

constexpr std::uint64_t lines = 256;  // fewer than the L1 holds

std::uint64_t misses_of_all_lines() {
  begin(pmu::os);
  for (std::uint64_t i = 0; i < lines; ++i)
    asm volatile("mov (%0), %%rax" ::"r"(line + i * line_bytes) : "rax", "memory");
  return end().misses;
}

// SDM 2C WBINVD, while a counter counts: afterwards nothing is cached. KVM does not flush a host's caches.
GT_TEST(CacheFlush_WbinvdEmptiesTheCaches, gt::need_modelled_levels) {
  const pmu::WithoutPrefetchers off;
  misses_of_all_lines();
  GT_CHECK(misses_of_all_lines() < few);
  begin(pmu::os);
  asm volatile("wbinvd" ::: "memory");
  end();
  const std::uint64_t missed = misses_of_all_lines();
  GT_CHECK(missed >= lines && missed < lines + few);
  GT_CHECK(misses_of_all_lines() < few);
}

}  // namespace
