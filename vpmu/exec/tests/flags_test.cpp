#include "exec/flags.hpp"

#include <gtest/gtest.h>

namespace vpmu::exec {
namespace {

TEST(LazyFlags, KeepEveryCombination) {
  constexpr unsigned flag_count = 6;
  constexpr std::uint64_t flags[flag_count] = {rflags::CF, rflags::PF, rflags::AF, rflags::ZF, rflags::SF, rflags::OF};
  for (unsigned mask = 0; mask < 1U << flag_count; ++mask) {
    std::uint64_t bits = 0;
    for (unsigned i = 0; i < flag_count; ++i)
      if ((mask >> i & 1) != 0) bits |= flags[i];
    LazyFlags f;
    f.set_bits(bits);
    EXPECT_EQ(f.bits(), bits);
    f.set_cf_of((bits & rflags::CF) == 0, (bits & rflags::OF) == 0);
    EXPECT_EQ(f.bits(), bits ^ (rflags::CF | rflags::OF)) << "the others stay";
  }
}

}  // namespace
}  // namespace vpmu::exec
