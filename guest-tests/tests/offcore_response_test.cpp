// Off-core response: SDM 3B 18.8.1.3, 18.9.5, 18.11.4, 18.13.5. The model of the caches is cold at first, and sees
// accesses while an event that needs it counts. So the numbers of requests are known: lines that were never used come
// from memory, lines that only the L2 has lost come from the L3.
#include <array>

#include "gt/asm.hpp"
#include "gt/cpu.hpp"
#include "gt/pmu.hpp"
#include "gt/test.hpp"

namespace {

namespace pmu = gt::pmu;
using gt::cpu::Microarchitecture;

constexpr std::uint64_t demand_data_read = 1, demand_rfo = 2, demand_code_read = 4, others = 0xFF8;

/// The register's bits for responses, from the manual's tables.
struct Answers {
  std::uint64_t any, l3, memory;
};

/// SDM 3B tables 18-26, 18-36 to 18-38, 18-48, 18-50, 18-61; for Westmere's three kinds from their event lists.
Answers answers() {
  constexpr std::uint64_t not_needed = 1ULL << 32, missed = 1ULL << 33, any_l3 = 0x3C'0000, any = 1ULL << 16;
  switch (gt::cpu::model()) {
    case 0x25: return {0xFF00, 0x100, 0x2000};
    case 0x2C: return {0xFF00, 0x100, 0x1000};
    case 0x1A:
    case 0x1E:
    case 0x1F:
    case 0x2E:
    case 0x2F: return {0xFF00, 0x100, 0x4000};
    case 0x2A:
    case 0x3A:
    case 0x3C:
    case 0x45:
    case 0x46: return {any, any_l3 | not_needed, 1ULL << 22 | not_needed};
    case 0x2D:
    case 0x3E:
    case 0x3F: return {any, any_l3 | not_needed, 1ULL << 22 | missed};
    case 0x4F:
    case 0x55: return {any, any_l3 | not_needed, 1ULL << 26 | missed};
    default: return {any, any_l3 | not_needed, 1ULL << 26 | not_needed};
  }
}

constexpr pmu::Event response_0{0xB7, 0x01}, response_1{0xBB, 0x01};
constexpr std::uint64_t line_bytes = 64, lines = 1'000;
/// Free RAM in large pages.
constexpr std::uint64_t first_array = 16ULL << 20, second_array = 24ULL << 20, code = 40ULL << 20;
/// More than any L2, less than any L3.
constexpr std::uint64_t through_l2 = (3ULL << 20) / line_bytes;

void load_lines(std::uint64_t from, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i)
    (void)*reinterpret_cast<const volatile std::uint64_t*>(from + i * line_bytes);
}
void store_lines(std::uint64_t from, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) *reinterpret_cast<volatile std::uint64_t*>(from + i * line_bytes) = i;
}

/// The count of PMC0 during `run` with that value in MSR_OFFCORE_RSP_0.
template <class Run>
std::uint64_t count(std::uint64_t value, Run run) {
  pmu::stop();
  gt::wrmsr(pmu::msr::MSR_OFFCORE_RSP_0, value);
  pmu::program(0, pmu::select(response_0, pmu::os), 0);
  pmu::start(pmu::gp_bit(0));
  run();
  pmu::stop();
  return pmu::counter(0);
}

/// Whether it is `n`, except for a few: requests of the kernel's own lines, and of instructions that KVM ran unseen by
/// the model.
bool is_about(std::uint64_t counted, std::uint64_t n) { return counted + 20 >= n && counted <= n + 20; }

template <class Use>
void check_places(std::uint64_t request, Use use) {
  const pmu::WithoutPrefetchers off;
  const Answers a = answers();
  GT_CHECK(is_about(count(request | a.memory, [&] { use(first_array, lines); }), lines));
  GT_CHECK(is_about(count(request | a.memory, [&] { use(first_array, lines); }), 0));
  GT_CHECK(is_about(count(request | a.any, [&] { use(first_array, lines); }), 0));  // 64 KiB: in the L2
  use(second_array, through_l2);
  GT_CHECK(is_about(count(request | a.any, [&] { use(second_array, through_l2); }), through_l2));
  GT_CHECK(is_about(count(request | a.l3, [&] { use(first_array, lines); }), lines));
  count(request | a.any, [&] { use(second_array, through_l2); });
  GT_CHECK(is_about(count(request | a.memory, [&] { use(first_array, lines); }), 0));
}

GT_TEST(OffcoreResponse_CountsDataReadsByWhoAnswers, gt::need_hit_levels) {
  check_places(demand_data_read, load_lines);
}
GT_TEST(OffcoreResponse_CountsStoresByWhoAnswers, gt::need_hit_levels) { check_places(demand_rfo, store_lines); }

// Each line of code jumps to the next; the last one returns.
GT_TEST(OffcoreResponse_CountsCodeReads, gt::need_hit_levels) {
  constexpr std::uint8_t jmp = 0xE9, ret = 0xC3;
  for (std::uint64_t i = 0; i < lines; ++i) {
    auto* const at = reinterpret_cast<volatile std::uint8_t*>(code + i * line_bytes);
    at[0] = i + 1 == lines ? ret : jmp;
    constexpr std::uint8_t displacement = line_bytes - 5;
    at[1] = displacement;
    for (unsigned byte = 2; byte < 5; ++byte) at[byte] = 0;
  }
  const auto run = [] { reinterpret_cast<void (*)()>(code)(); };
  const Answers a = answers();
  GT_CHECK(is_about(count(demand_code_read | a.memory, run), lines));
  GT_CHECK(is_about(count(demand_code_read | a.any, run), 0));
  count(demand_data_read | a.any, [] { load_lines(second_array, through_l2); });
  GT_CHECK(is_about(count(demand_code_read | a.l3, run), lines));
}

// Requests or responses that are not selected do not count. The last line shows that there were requests at all.
GT_TEST(OffcoreResponse_CountsNothingElse, gt::need_hit_levels) {
  const pmu::WithoutPrefetchers off;
  const Answers a = answers();
  const std::uint64_t legal = gt::cpu::facts().offcore_bits;
  std::uint64_t at = first_array;
  for (const std::uint64_t value : {demand_rfo | a.memory, (others | a.any) & legal, demand_data_read | a.l3,
                                    demand_data_read, a.any, std::uint64_t{0}}) {
    GT_CHECK(is_about(count(value, [at] { load_lines(at, lines); }), 0));
    at += lines * line_bytes;
  }
  GT_CHECK(is_about(count(demand_data_read | a.memory, [at] { load_lines(at, lines); }), lines));
}

// SDM 3B 18.8.4: there are two registers, each with its own event.
GT_TEST(OffcoreResponse_HasTwoRegistersAtATime, gt::need_hit_levels) {
  if (gt::cpu::facts().offcore_registers < 2) gt::skip("Nehalem has one register");
  const pmu::WithoutPrefetchers off;
  const Answers a = answers();
  pmu::stop();
  gt::wrmsr(pmu::msr::MSR_OFFCORE_RSP_0, demand_data_read | a.memory);
  gt::wrmsr(pmu::msr::MSR_OFFCORE_RSP_0 + 1, demand_rfo | a.memory);
  pmu::program(0, pmu::select(response_0, pmu::os), 0);
  pmu::program(1, pmu::select(response_1, pmu::os), 0);
  pmu::start(3);
  load_lines(first_array, lines);
  store_lines(second_array, 2 * lines);
  pmu::stop();
  GT_CHECK(is_about(pmu::counter(0), lines));
  GT_CHECK(is_about(pmu::counter(1), 2 * lines));
}

// The event has no precise form; its overflow raises an interrupt as others do.
GT_TEST(OffcoreResponse_Overflows, gt::need_hit_levels) {
  const pmu::WithoutPrefetchers off;
  pmu::catch_pmi_by_nmi();
  pmu::stop();
  gt::wrmsr(pmu::msr::MSR_OFFCORE_RSP_0, demand_data_read | answers().memory);
  pmu::program(0, pmu::select(response_0, pmu::os | pmu::interrupt), pmu::minus(lines / 2));
  pmu::start(pmu::gp_bit(0));
  load_lines(first_array, lines);
  pmu::stop();
  GT_EQUAL(pmu::pmi_count(), 1U);
  GT_CHECK((pmu::pmi(0).status & 1) != 0);
}

// A source that runs instructions one by one, as for the branch stack, counts the same as by blocks.
GT_TEST(OffcoreResponse_CountsTheSameOneByOne, gt::need_hit_levels) {
  const pmu::WithoutPrefetchers off;
  const std::uint64_t value = demand_data_read | demand_rfo | answers().memory;
  std::array<std::uint64_t, 2> counted{};
  count(value, [] { load_lines(second_array, 1); });  // the kernel's own lines
  for (const unsigned lbr : {0U, 1U}) {
    gt::wrmsr(pmu::msr::IA32_DEBUGCTL, lbr);
    counted[lbr] = count(value, [lbr] {
      load_lines(first_array + lbr * 4 * lines * line_bytes, lines);
      store_lines(first_array + (lbr * 4 + 2) * lines * line_bytes, lines);
    });
    gt::wrmsr(pmu::msr::IA32_DEBUGCTL, 0);
  }
  GT_CHECK(is_about(counted[0], 2 * lines));
  GT_CHECK(is_about(counted[1], 2 * lines));
}

// 248966, chapter 2, data prefetching: a streamer brings the lines of a stream before loads ask for them.
GT_TEST(OffcoreResponse_PrefetchersTakeTheReadsOfAStream, gt::need_pipeline_time) {
  const auto counted = [](std::uint64_t request, std::uint64_t off) {
    gt::wrmsr(pmu::msr::MSR_MISC_FEATURE_CONTROL, off);
    return count(request | answers().memory, [] {
      load_lines(second_array, 1);
      asm volatile("wbinvd" ::: "memory");
      load_lines(first_array, lines);
    });
  };
  constexpr std::uint64_t prefetch_data_read = 16, off = pmu::reg::misc_feature_control::writable;
  const std::uint64_t with = counted(demand_data_read, 0), without = counted(demand_data_read, off);
  GT_CHECK(is_about(without, lines));
  GT_CHECK(with > 0 && with < lines / 8);
  GT_EQUAL(counted(prefetch_data_read, off), 0U);
  // SDM 3B table 18-60: Skylake has no such request, but its server has.
  const bool has_request = gt::cpu::model() != 0x4E && gt::cpu::model() != 0x5E;
  const std::uint64_t prefetched = counted(prefetch_data_read, 0);
  // It goes on to the end of the last page.
  GT_CHECK(has_request ? prefetched + with + 20 >= lines && prefetched + with <= lines + 64 : prefetched == 0);
  gt::wrmsr(pmu::msr::MSR_MISC_FEATURE_CONTROL, 0);
}

}  // namespace
