// Events that count instructions of some classes.
#include <gtest/gtest.h>

#include <string_view>
#include <utility>
#include <vector>

#include "vpmu/counts.hpp"
#include "vpmu/generation.hpp"

namespace vpmu::test {
namespace {

std::uint64_t counted_of_class(Generation generation, std::string_view event, InstructionClass of) {
  const EventDesc* const row = find_event(describe(generation), event);
  EXPECT_NE(row, nullptr) << event;
  return row == nullptr ? 0 : describe(row->counts).of({.kind = of});
}

/// The classes of instructions that the event of that name counts, as "class" or "class twice", in their order.
std::vector<std::pair<InstructionClass, std::uint64_t>> counted_classes(Generation generation, std::string_view event) {
  std::vector<std::pair<InstructionClass, std::uint64_t>> classes;
  for (unsigned kind = 0; kind < instruction_class_count; ++kind) {
    const auto of = static_cast<InstructionClass>(kind);
    if (const std::uint64_t n = counted_of_class(generation, event, of); n != 0) classes.emplace_back(of, n);
  }
  return classes;
}

// SDM 3B tables 19-3, 19-5, 19-9, 19-13 and Intel's event lists: which instructions count, and which count twice.
TEST(Counting, EventsOfInstructionClassesCountTheseAndNoOthers) {
  using enum InstructionClass;
  using enum Generation;
  using Classes = std::vector<std::pair<InstructionClass, std::uint64_t>>;
  struct Row {
    Generation generation;
    const char* event;
    Classes classes;
  };
  const Classes scalar_double{
      {sse_scalar_double_arithmetic, 1}, {avx_scalar_double_arithmetic, 1}, {avx_scalar_double_twice, 2}};
  const Classes packed_single{{sse_packed_single_arithmetic, 1},
                              {sse_packed_single_twice, 2},
                              {avx_packed_single_arithmetic, 1},
                              {avx_packed_single_twice, 2}};
  const Classes wide_double{{avx_256_double_arithmetic, 1}, {avx_256_double_twice, 2}};
  for (const Row& row : {
           Row{broadwell, "FP_ARITH_INST_RETIRED.SCALAR_DOUBLE", scalar_double},
           Row{skylake, "FP_ARITH_INST_RETIRED.SCALAR_DOUBLE", scalar_double},
           Row{skylake, "FP_ARITH_INST_RETIRED.128B_PACKED_SINGLE", packed_single},
           Row{skylake, "FP_ARITH_INST_RETIRED.256B_PACKED_DOUBLE", wide_double},
           Row{skylake_sp, "FP_ARITH_INST_RETIRED.512B_PACKED_DOUBLE", {}},
           Row{broadwell,
               "FP_ARITH_INST_RETIRED.SCALAR",
               {{sse_scalar_single_arithmetic, 1},
                {sse_scalar_double_arithmetic, 1},
                {avx_scalar_single_arithmetic, 1},
                {avx_scalar_double_arithmetic, 1},
                {avx_scalar_single_twice, 2},
                {avx_scalar_double_twice, 2}}},
           Row{sandy_bridge, "FP_COMP_OPS_EXE.SSE_SCALAR_DOUBLE", scalar_double},
           Row{ivy_bridge_ep, "FP_COMP_OPS_EXE.SSE_PACKED_SINGLE", packed_single},
           Row{sandy_bridge_ep, "SIMD_FP_256.PACKED_DOUBLE", wide_double},
           Row{sandy_bridge,
               "FP_COMP_OPS_EXE.X87",
               {{integer_product, 1}, {x87_arithmetic, 1}, {x87_transcendental, 1}}},
           Row{nehalem, "INST_RETIRED.X87", {{x87_arithmetic, 1}, {x87_transcendental, 1}, {x87_operation, 1}}},
           Row{skylake,
               "UOPS_EXECUTED.X87",
               {{x87_arithmetic, 1}, {x87_transcendental, 1}, {x87_operation, 1}, {x87_other, 1}}},
           Row{skylake, "INST_RETIRED.NOP", {{nop, 1}}},
           Row{skylake, "SW_PREFETCH_ACCESS.NTA", {{prefetch_nta, 1}}},
           Row{skylake, "SW_PREFETCH_ACCESS.T0", {{prefetch_t0, 1}}},
           Row{skylake, "SW_PREFETCH_ACCESS.T1_T2", {{prefetch_t1_t2, 1}}},
           Row{skylake, "SW_PREFETCH_ACCESS.PREFETCHW", {{prefetch_w, 1}}},
           Row{skylake,
               "SW_PREFETCH_ACCESS.ANY",
               {{prefetch_nta, 1}, {prefetch_t0, 1}, {prefetch_t1_t2, 1}, {prefetch_w, 1}}},
           Row{westmere,
               "SSEX_UOPS_RETIRED.SCALAR_SINGLE",
               {{sse_scalar_single, 1}, {sse_scalar_single_arithmetic, 1}}},
           Row{nehalem,
               "SSEX_UOPS_RETIRED.PACKED_DOUBLE",
               {{sse_packed_double, 1}, {sse_packed_double_arithmetic, 1}, {sse_packed_double_twice, 1}}},
           Row{nehalem, "SIMD_INT_128.PACKED_SHIFT", {{sse_integer_shift, 1}}},
           Row{nehalem, "SIMD_INT_64.PACK", {{mmx_pack, 1}}},
           Row{haswell,
               "AVX_INSTS.ALL",
               {{avx_256, 1},
                {avx_256_single_arithmetic, 1},
                {avx_256_double_arithmetic, 1},
                {avx_256_single_twice, 1},
                {avx_256_double_twice, 1}}},
       })
    EXPECT_EQ(counted_classes(row.generation, row.event), row.classes) << row.event;
  for (const char* all : {"INST_RETIRED.MMX", "SSEX_UOPS_RETIRED.VECTOR_INTEGER"})
    EXPECT_EQ(counted_classes(nehalem, all).size(), 8U) << all;
  for (const char* computations : {"FP_COMP_OPS_EXE.MMX", "FP_COMP_OPS_EXE.SSE2_INTEGER"})
    EXPECT_EQ(counted_classes(nehalem, computations).size(), 7U) << computations;
}

}  // namespace
}  // namespace vpmu::test
