#include "vcpu/vector_registers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace vmm::test {
namespace {

using vpmu::exec::VectorState;

/// An area whose byte i is i % 251, except for this XSTATE_BV.
XsaveArea area_with(std::uint64_t xstate_bv) {
  XsaveArea area;
  const auto bytes = std::as_writable_bytes(std::span{area});
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 251);
  std::memcpy(bytes.data() + 512, &xstate_bv, sizeof xstate_bv);
  return area;
}
std::byte at(const XsaveArea& area, std::size_t i) { return std::as_bytes(std::span{area})[i]; }
std::byte pattern(std::size_t i) { return static_cast<std::byte>(i % 251); }

TEST(VectorRegisters, TakesEachComponentFromItsPlace) {
  const VectorState s = vector_state(area_with(7), 7);
  EXPECT_EQ(s.xcr0, 7U);
  EXPECT_EQ(s.legacy[0], pattern(0)) << "FCW";
  EXPECT_EQ(s.legacy[4], pattern(4)) << "FTW";
  EXPECT_EQ(s.legacy[24], pattern(24)) << "MXCSR";
  EXPECT_EQ(s.legacy[32], pattern(32)) << "ST0";
  EXPECT_EQ(s.legacy[160], pattern(160)) << "XMM0";
  EXPECT_EQ(s.legacy[415], pattern(415)) << "XMM15";
  EXPECT_EQ(s.upper[0][0], pattern(576));
  EXPECT_EQ(s.upper[15][15], pattern(831));
  EXPECT_EQ(s.legacy[8], std::byte{0}) << "no pointers";
}

// SDM 1 13.6: the initial configurations.
TEST(VectorRegisters, WhatXstateBvDoesNotNameIsAsAfterAReset) {
  const VectorState fresh;
  const VectorState none = vector_state(area_with(0), 7);
  EXPECT_EQ(none.legacy, fresh.legacy);
  EXPECT_EQ(none.upper, fresh.upper);
  EXPECT_EQ(vector_state(area_with(1), 7).mxcsr(), 0x1F80U);
  EXPECT_EQ(vector_state(area_with(1), 7).legacy[160], std::byte{0});
  EXPECT_EQ(vector_state(area_with(2), 7).fcw(), 0x37F);
  EXPECT_EQ(vector_state(area_with(2), 7).legacy[24], pattern(24));
  EXPECT_EQ(vector_state(area_with(4), 7).legacy[24], pattern(24)) << "MXCSR goes with either";
  EXPECT_EQ(vector_state(area_with(4), 7).upper[0][0], pattern(576));
}

TEST(VectorRegisters, PutsBackWhatItHasAndKeepsTheRest) {
  VectorState s;
  s.xcr0 = 7;
  s.legacy[160] = std::byte{1};
  s.upper[15][15] = std::byte{2};
  XsaveArea area = area_with(0x200);
  set_vector_state(area, s);
  EXPECT_EQ(at(area, 512), std::byte{7}) << "all three are there now";
  EXPECT_EQ(at(area, 513), std::byte{2}) << "and PKRU as before";
  EXPECT_EQ(at(area, 160), std::byte{1});
  EXPECT_EQ(at(area, 831), std::byte{2});
  for (const std::size_t kept : {416UL, 511UL, 520UL, 832UL, 4095UL}) EXPECT_EQ(at(area, kept), pattern(kept)) << kept;
  const VectorState back = vector_state(area, 7);
  EXPECT_TRUE(std::equal(back.legacy.begin(), back.legacy.begin() + 416, s.legacy.begin()));
  EXPECT_EQ(back.upper, s.upper);
}

// KVM refuses an area with a component that the vCPU does not have.
TEST(VectorRegisters, WithoutAvxTouchesNoUpperHalf) {
  VectorState s;
  s.xcr0 = 3;
  XsaveArea area = area_with(0);
  set_vector_state(area, s);
  EXPECT_EQ(at(area, 512), std::byte{3});
  EXPECT_EQ(at(area, 576), pattern(576));
}

}  // namespace
}  // namespace vmm::test
