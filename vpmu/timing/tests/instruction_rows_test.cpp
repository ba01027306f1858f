#include "timing/instruction_rows.hpp"

#include <gtest/gtest.h>

namespace vpmu::timing {
namespace {

constexpr std::uint8_t p0156 = 0x63, p015 = 0x23, p01 = 0x03;

TEST(InstructionRows, AnAddGoesToAnyAluOfItsGeneration) {
  const auto on_ivy_bridge = find_row(RowSet::ivy_bridge, "add r64,r64");
  const auto on_skylake = find_row(RowSet::skylake, "add r64,r64");
  ASSERT_TRUE(on_ivy_bridge && on_skylake);
  EXPECT_EQ(on_ivy_bridge->micro_ops[0].ports, p015);
  EXPECT_EQ(on_skylake->micro_ops[0].ports, p0156);
  EXPECT_EQ(on_skylake->micro_ops[0].count, 1);
  EXPECT_EQ(on_skylake->micro_ops[1].count, 0);
  EXPECT_EQ(on_skylake->latency, 1);
}

// The list of Skylake's server has only what differs from the client's.
TEST(InstructionRows, AListThatSaysDifferencesHasTheRest) {
  for (const RowSet set : {RowSet::skylake, RowSet::skylake_sp}) {
    const auto row = find_row(set, "vaddps y,y,y");
    ASSERT_TRUE(row);
    EXPECT_EQ(row->micro_ops[0].ports, p01);
    EXPECT_EQ(row->latency, 4);
  }
}

TEST(InstructionRows, AFormWithMemoryHasTheRowOfTheOneWithARegister) {
  for (const char* const form : {"add r64,m64", "add m64,r64", "vaddps x,x,m128", "mulsd x,m64", "paddw mm,m64"})
    EXPECT_TRUE(find_row(RowSet::haswell, form)) << form;
  const auto add = find_row(RowSet::haswell, "add r64,m64");
  ASSERT_TRUE(add);
  EXPECT_EQ(add->latency, 1) << "the load's own latency is not in it";
}

TEST(InstructionRows, LoadsAndStoresAloneTakeNoOtherMicroOp) {
  for (const char* const form : {"mov r64,m64", "mov m64,r64", "vmovups y,m256", "movzx r32,m8"}) {
    const auto row = find_row(RowSet::skylake, form);
    ASSERT_TRUE(row) << form;
    EXPECT_EQ(row->micro_ops[0].count, 0) << form;
    EXPECT_EQ(row->latency, 0) << form;
  }
}

TEST(InstructionRows, ACorrectionReplacesWhatAListSays) {
  const auto divide = find_row(RowSet::skylake, "div r32");
  ASSERT_TRUE(divide);
  EXPECT_EQ(divide->latency, 26);
  EXPECT_EQ(divide->divider, 6);
}

TEST(InstructionRows, WhatNoListHasHasNone) {
  for (const char* const form : {"", "hlt ", "frobnicate r64", "frobnicate r64,m64", "add"})
    EXPECT_FALSE(find_row(RowSet::skylake, form)) << form;
}

}  // namespace
}  // namespace vpmu::timing
