#include <gtest/gtest.h>

#include <vector>

#include "decode/instruction.hpp"

// Fields of an Instruction that the rows of the test Decoding do not cover.
namespace vmm::test {
namespace {

std::optional<Instruction> decode(const std::vector<std::uint8_t>& code, CodeMode mode = CodeMode::bits64) {
  return decode_instruction(std::as_bytes(std::span{code}), mode);
}

TEST(DecodeInstruction, KnowsWhatEmptiesCaches) {
  const auto empties = [](const std::vector<std::uint8_t>& code) {
    const auto i = decode(code);
    return i && i->is(SystemOp::wbinvd);
  };
  EXPECT_TRUE(empties({0x0F, 0x09})) << "wbinvd";
  EXPECT_TRUE(empties({0x0F, 0x08})) << "invd";
  EXPECT_FALSE(empties({0x0F, 0x0B})) << "ud2";
  EXPECT_FALSE(empties({0x0F})) << "half of one";
  EXPECT_FALSE(empties({})) << "nothing";
}

TEST(DecodeInstruction, TellsWhatTheProcessorItselfDoes) {
  EXPECT_TRUE(decode({0x0F, 0x30}).value().is(SystemOp::wrmsr));
  EXPECT_TRUE(decode({0x0F, 0x30}).value().privileged);
  EXPECT_FALSE(decode({0x0F, 0x33}).value().privileged) << "rdpmc: CR4.PCE decides";
  EXPECT_TRUE(decode({0x6E}).value().privileged) << "outsb";
  EXPECT_EQ(decode({0xCD, 0x80}).value().system.value().immediate, 0x80) << "int $0x80";
  EXPECT_EQ(decode({0x8E, 0xD0}).value().system.value().special, 2) << "mov %eax, %ss";
  EXPECT_FALSE(decode({0x01, 0xD8}).value().system) << "add";
  EXPECT_TRUE(decode({0x9C}).value().stores_flags) << "pushf";
  EXPECT_FALSE(decode({0x9D}).value().stores_flags) << "popf";
  EXPECT_EQ(decode({0xF3, 0xA6}).value().early_end, EarlyEnd::difference) << "repe cmpsb";
  EXPECT_EQ(decode({0xF2, 0x48, 0xAF}).value().early_end, EarlyEnd::equality) << "repne scasq";
  EXPECT_EQ(decode({0xA6}).value().early_end, EarlyEnd::nothing) << "cmpsb";
  EXPECT_EQ(decode({0xF3, 0xA4}).value().early_end, EarlyEnd::nothing) << "rep movsb";
  EXPECT_TRUE(decode({0x0F, 0x01, 0xC8}).value().never_there) << "monitor";
  EXPECT_FALSE(decode({0x0F, 0xA2}).value().never_there) << "cpuid";
  EXPECT_TRUE(decode({0xC4, 0xE2, 0x71, 0x90, 0x44, 0x93, 0x08}).value().gather) << "vpgatherdd";
  EXPECT_FALSE(decode({0x8B, 0x03}).value().gather) << "mov";
  EXPECT_EQ(decode({0x48, 0xCF}).value().mnemonic, "iretq");
}

// SDM 3A table 6-1: faults caused by an instruction's computation, not by access to its operands.
TEST(DecodeInstruction, TellsWhatItMayRaise) {
  EXPECT_EQ(decode({0x01, 0xD8}).value().raises, Raises::nothing) << "add %ebx, %eax";
  EXPECT_EQ(decode({0x8B, 0x03}).value().raises, Raises::nothing) << "mov (%rbx), %eax";
  EXPECT_EQ(decode({0xF7, 0xF3}).value().raises, Raises::division) << "div %ebx";
  EXPECT_EQ(decode({0x41, 0xF6, 0xF8}).value().raises, Raises::division) << "idiv %r8b";
  EXPECT_EQ(decode({0xF7, 0xD8}).value().raises, Raises::others) << "neg %eax";
  EXPECT_EQ(decode({0xD8, 0xC1}).value().raises, Raises::x87) << "fadd %st(1), %st";
  EXPECT_EQ(decode({0x9B}).value().raises, Raises::x87) << "fwait";
  EXPECT_EQ(decode({0x0F, 0x58, 0xC1}).value().raises, Raises::others) << "addps";
  EXPECT_EQ(decode({0xC5, 0xF8, 0x58, 0xC1}).value().raises, Raises::others) << "vaddps";
  EXPECT_EQ(decode({0xF0, 0x01, 0x03}).value().raises, Raises::others) << "lock add";
  EXPECT_EQ(decode({0x8E, 0xD8}).value().raises, Raises::others) << "mov %eax, %ds";
  EXPECT_EQ(decode({0x40}, CodeMode::bits32).value().raises, Raises::nothing) << "inc %eax";
}

// SDM 2A CLFLUSH: subject to the checks of a byte load.
TEST(DecodeInstruction, AFlushReadsWithoutALoad) {
  for (const std::vector<std::uint8_t>& code :
       {std::vector<std::uint8_t>{0x0F, 0xAE, 0x7B, 0x08}, std::vector<std::uint8_t>{0x66, 0x0F, 0xAE, 0x7B, 0x08}}) {
    const auto i = decode(code);
    ASSERT_TRUE(i);
    EXPECT_FALSE(i->load);
    EXPECT_FALSE(i->store);
    EXPECT_TRUE(i->steppable);
    ASSERT_TRUE(i->read());
    EXPECT_EQ(i->read()->base, 3);
    EXPECT_EQ(i->read()->displacement, 8);
    EXPECT_EQ(i->read()->bytes, 1);
  }
}

TEST(DecodeInstruction, KnowsWhatDropsTranslations) {
  const auto drops = [](const std::vector<std::uint8_t>& code) {
    const auto i = decode(code);
    return i && i->system && changes_translations(*i->system);
  };
  EXPECT_TRUE(drops({0x0F, 0x22, 0xD8})) << "mov %rax, %cr3";
  EXPECT_TRUE(drops({0x41, 0x0F, 0x22, 0xD8})) << "mov %r8, %cr3";
  EXPECT_TRUE(drops({0x0F, 0x01, 0x38})) << "invlpg (%rax)";
  EXPECT_FALSE(drops({0x0F, 0x01, 0xF8})) << "swapgs";
  EXPECT_FALSE(drops({0x0F, 0x20, 0xD8})) << "mov %cr3, %rax";
  EXPECT_FALSE(drops({0x0F, 0x01, 0x10})) << "lgdt (%rax)";
  EXPECT_FALSE(drops({})) << "nothing";
}

}  // namespace
}  // namespace vmm::test
