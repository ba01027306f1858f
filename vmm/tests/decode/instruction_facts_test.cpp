#include <gtest/gtest.h>

#include <vector>

#include "decode/instruction.hpp"
#include "exec/tests/fixtures/assembled.hpp"

// Fields of an Instruction that the rows of the test Decoding do not cover.
namespace vmm::test {
namespace {

std::optional<Instruction> decoded_bytes(const std::vector<std::uint8_t>& code, CodeMode mode = CodeMode::bits64) {
  return decode_instruction(std::as_bytes(std::span{code}), mode);
}

TEST(DecodeInstruction, KnowsWhatEmptiesCaches) {
  const auto empties = [](const std::vector<std::uint8_t>& code) {
    const auto i = decoded_bytes(code);
    return i && i->is(SystemOp::wbinvd);
  };
  EXPECT_TRUE(empties(X86("wbinvd"))) << "wbinvd";
  EXPECT_TRUE(empties(X86("invd"))) << "invd";
  EXPECT_FALSE(empties(X86("ud2"))) << "ud2";
  EXPECT_FALSE(empties({0x0F})) << "half of one";
  EXPECT_FALSE(empties({})) << "nothing";
}

TEST(DecodeInstruction, TellsWhatTheProcessorItselfDoes) {
  EXPECT_TRUE(decoded_bytes(X86("wrmsr")).value().is(SystemOp::wrmsr));
  EXPECT_TRUE(decoded_bytes(X86("wrmsr")).value().privileged);
  EXPECT_FALSE(decoded_bytes(X86("rdpmc")).value().privileged) << "rdpmc: CR4.PCE decides";
  EXPECT_FALSE(decoded_bytes(X86("outsb")).value().privileged) << "outsb: as OUT, by IOPL or the map of the TSS";
  EXPECT_EQ(decoded_bytes(X86("int $0x80")).value().system.value().immediate, 0x80) << "int $0x80";
  EXPECT_EQ(decoded_bytes(X86("mov %eax, %ss")).value().system.value().special, 2) << "mov %eax, %ss";
  EXPECT_FALSE(decoded_bytes(X86("add %ebx, %eax")).value().system) << "add";
  EXPECT_TRUE(decoded_bytes(X86("pushf")).value().stores_flags) << "pushf";
  EXPECT_FALSE(decoded_bytes(X86("popf")).value().stores_flags) << "popf";
  EXPECT_EQ(decoded_bytes(X86("repe cmpsb")).value().early_end, EarlyEnd::difference) << "repe cmpsb";
  EXPECT_EQ(decoded_bytes(X86("repne scasq")).value().early_end, EarlyEnd::equality) << "repne scasq";
  EXPECT_EQ(decoded_bytes(X86("cmpsb")).value().early_end, EarlyEnd::nothing) << "cmpsb";
  EXPECT_EQ(decoded_bytes(X86("rep movsb")).value().early_end, EarlyEnd::nothing) << "rep movsb";
  EXPECT_TRUE(decoded_bytes(X86("monitor")).value().never_there) << "monitor";
  EXPECT_FALSE(decoded_bytes(X86("cpuid")).value().never_there) << "cpuid";
  EXPECT_TRUE(decoded_bytes(X86("vpgatherdd %xmm1, 8(%rbx,%xmm2,4), %xmm0")).value().gather) << "vpgatherdd";
  EXPECT_FALSE(decoded_bytes(X86("mov (%rbx), %eax")).value().gather) << "mov";
  EXPECT_EQ(decoded_bytes(X86("iretq")).value().mnemonic, "iretq");
}

// SDM 3A table 6-1: faults caused by an instruction's computation, not by access to its operands.
TEST(DecodeInstruction, TellsWhatItMayRaise) {
  EXPECT_EQ(decoded_bytes(X86("add %ebx, %eax")).value().raises, Raises::nothing) << "add %ebx, %eax";
  EXPECT_EQ(decoded_bytes(X86("mov (%rbx), %eax")).value().raises, Raises::nothing) << "mov (%rbx), %eax";
  EXPECT_EQ(decoded_bytes(X86("div %ebx")).value().raises, Raises::division) << "div %ebx";
  EXPECT_EQ(decoded_bytes(X86("idiv %r8b")).value().raises, Raises::division) << "idiv %r8b";
  EXPECT_EQ(decoded_bytes(X86("neg %eax")).value().raises, Raises::others) << "neg %eax";
  EXPECT_EQ(decoded_bytes(X86("fadd %st(1), %st")).value().raises, Raises::x87) << "fadd %st(1), %st";
  EXPECT_EQ(decoded_bytes(X86("fwait")).value().raises, Raises::x87) << "fwait";
  EXPECT_EQ(decoded_bytes(X86("addps %xmm1, %xmm0")).value().raises, Raises::others) << "addps";
  EXPECT_EQ(decoded_bytes(X86("vaddps %xmm1, %xmm0, %xmm0")).value().raises, Raises::others) << "vaddps";
  EXPECT_EQ(decoded_bytes(X86("lock add %eax, (%rbx)")).value().raises, Raises::others) << "lock add";
  EXPECT_EQ(decoded_bytes(X86("mov %eax, %ds")).value().raises, Raises::others) << "mov %eax, %ds";
  EXPECT_EQ(decoded_bytes({0x40}, CodeMode::bits32).value().raises, Raises::nothing) << "inc %eax";
}

// SDM 2A CLFLUSH: subject to the checks of a byte load.
TEST(DecodeInstruction, AFlushReadsWithoutALoad) {
  for (const auto& code : {X86("clflush 8(%rbx)"), X86("clflushopt 8(%rbx)")}) {
    const auto i = decoded_bytes(code);
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
    const auto i = decoded_bytes(code);
    return i && i->system && changes_translations(*i->system);
  };
  EXPECT_TRUE(drops(X86("mov %rax, %cr3"))) << "mov %rax, %cr3";
  EXPECT_TRUE(drops(X86("mov %r8, %cr3"))) << "mov %r8, %cr3";
  EXPECT_TRUE(drops(X86("invlpg (%rax)"))) << "invlpg (%rax)";
  EXPECT_TRUE(drops(X86("mov %rax, %cr4"))) << "mov %rax, %cr4";
  EXPECT_FALSE(drops(X86("mov %rax, %cr0"))) << "mov %rax, %cr0";
  EXPECT_FALSE(drops(X86("swapgs"))) << "swapgs";
  EXPECT_FALSE(drops(X86("mov %cr3, %rax"))) << "mov %cr3, %rax";
  EXPECT_FALSE(drops(X86("lgdt (%rax)"))) << "lgdt (%rax)";
  EXPECT_FALSE(drops({})) << "nothing";
}

}  // namespace
}  // namespace vmm::test
