#include "exec/state/flags.hpp"
#include "vpmu/x86.hpp"

#include <gtest/gtest.h>

namespace vpmu::exec {
namespace {

TEST(LazyFlags, KeepEveryCombination) {
  constexpr unsigned flag_count = 6;
  constexpr std::uint64_t flags[flag_count] = {x86::rflags::CF::mask, x86::rflags::PF::mask, x86::rflags::AF::mask,
                                               x86::rflags::ZF::mask, x86::rflags::SF::mask, x86::rflags::OF::mask};
  for (unsigned mask = 0; mask < 1U << flag_count; ++mask) {
    std::uint64_t bits = 0;
    for (unsigned i = 0; i < flag_count; ++i)
      if ((mask >> i & 1) != 0) bits |= flags[i];
    LazyFlags f;
    f.set_bits(bits);
    EXPECT_EQ(f.bits(), bits);
    f.set_cf_of(!x86::rflags::CF::test(bits), !x86::rflags::OF::test(bits));
    EXPECT_EQ(f.bits(), bits ^ (x86::rflags::CF::mask | x86::rflags::OF::mask)) << "the others stay";
  }
}

}  // namespace
}  // namespace vpmu::exec
