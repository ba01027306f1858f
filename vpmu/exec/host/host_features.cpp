#include "exec/host/host_form.hpp"

namespace vpmu::exec {
namespace {

struct Leaf {
  std::uint32_t a{}, b{}, c{}, d{};
};
Leaf cpuid(std::uint32_t leaf) {
  Leaf l;
  __asm__ volatile("cpuid" : "=a"(l.a), "=b"(l.b), "=c"(l.c), "=d"(l.d) : "a"(leaf), "c"(0));
  return l;
}
std::uint32_t xcr0() {
  Leaf l;  // NOLINT(misc-const-correctness): the asm writes it
  __asm__ volatile("xgetbv" : "=a"(l.a), "=d"(l.d) : "c"(0));
  return l.a;
}

using Features = std::uint64_t;
constexpr Features bit_of(CpuFeature f) { return Features{1} << static_cast<unsigned>(f); }

struct Row {
  CpuFeature feature;
  std::uint32_t Leaf::* word;
  unsigned bit;
};
// SDM 2A CPUID, tables 3-10 and 3-8.
constexpr std::array leaf_1{Row{CpuFeature::sse3, &Leaf::c, 0},   Row{CpuFeature::pclmulqdq, &Leaf::c, 1},
                            Row{CpuFeature::ssse3, &Leaf::c, 9},  Row{CpuFeature::fma, &Leaf::c, 12},
                            Row{CpuFeature::sse41, &Leaf::c, 19}, Row{CpuFeature::sse42, &Leaf::c, 20},
                            Row{CpuFeature::movbe, &Leaf::c, 22}, Row{CpuFeature::aes, &Leaf::c, 25},
                            Row{CpuFeature::avx, &Leaf::c, 28},   Row{CpuFeature::f16c, &Leaf::c, 29}};
constexpr std::array leaf_7{Row{CpuFeature::bmi1, &Leaf::b, 3}, Row{CpuFeature::avx2, &Leaf::b, 5},
                            Row{CpuFeature::bmi2, &Leaf::b, 8}, Row{CpuFeature::adx, &Leaf::b, 19},
                            Row{CpuFeature::vaes, &Leaf::c, 9}, Row{CpuFeature::vpclmulqdq, &Leaf::c, 10}};
constexpr Features with_ymm = bit_of(CpuFeature::avx) | bit_of(CpuFeature::avx2) | bit_of(CpuFeature::fma) |
                              bit_of(CpuFeature::f16c) | bit_of(CpuFeature::vaes) | bit_of(CpuFeature::vpclmulqdq);

template <std::size_t N>
Features features_in(const std::array<Row, N>& rows, const Leaf& leaf) {
  Features found = 0;
  for (const Row& row : rows)
    if ((leaf.*row.word >> row.bit & 1U) != 0) found |= bit_of(row.feature);
  return found;
}

Features features() {
  constexpr std::uint32_t osxsave = 1U << 27, sse_and_avx = 6;
  const Leaf one = cpuid(1);
  Features f = bit_of(CpuFeature::baseline) | features_in(leaf_1, one);
  if (cpuid(0).a >= 7) f |= features_in(leaf_7, cpuid(7));
  const bool ymm = (one.c & osxsave) != 0 && (xcr0() & sse_and_avx) == sse_and_avx;
  if (!ymm) f &= ~with_ymm;
  const auto both = [&](CpuFeature a, CpuFeature b, CpuFeature sum) {
    if ((f & bit_of(a)) != 0 && (f & bit_of(b)) != 0) f |= bit_of(sum);
  };
  both(CpuFeature::avx, CpuFeature::aes, CpuFeature::vex_aes);
  both(CpuFeature::avx, CpuFeature::pclmulqdq, CpuFeature::vex_pclmulqdq);
  return f;
}

}  // namespace

bool host_has(CpuFeature feature) {
  static const Features all = features();
  return (all & bit_of(feature)) != 0;
}

}  // namespace vpmu::exec
