#include "decode/instruction.hpp"

#include <gtest/gtest.h>
#include <linux/kvm.h>

#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "exec/tests/fixtures/assembled.hpp"

namespace vmm::test {
namespace {

using vpmu::BranchKind;
using vpmu::GuestLinear;
using Code = std::vector<std::uint8_t>;

std::optional<Instruction> decode(const Code& code, CodeMode size = CodeMode::bits64) {
  return decode_instruction(std::as_bytes(std::span{code}), size);
}

/// The expected decoding of an instruction; by default 64-bit code that accesses no memory.
struct ExpectedDecoding {
  const char* name;
  Code code;
  bool load{}, store{};
  BranchKind branch{BranchKind::none};
  bool steppable{true};
  bool rep{};
  bool locked{};
  bool ends_block{};  ///< For other instructions than branches, which always do.
  CodeMode size{CodeMode::bits64};
  friend void PrintTo(const ExpectedDecoding& row, std::ostream* out) { *out << row.name; }
};

class Decoding : public testing::TestWithParam<ExpectedDecoding> {};
TEST_P(Decoding, TellsWhatTheInstructionDoes) {
  const ExpectedDecoding& row = GetParam();
  const auto i = decode(row.code, row.size);
  ASSERT_TRUE(i);
  EXPECT_EQ(i->length, row.code.size());
  EXPECT_EQ(i->load.has_value(), row.load);
  EXPECT_EQ(i->store.has_value(), row.store);
  EXPECT_EQ(i->branch, row.branch);
  EXPECT_EQ(i->steppable, row.steppable);
  EXPECT_EQ(i->rep, row.rep);
  EXPECT_EQ(i->locked, row.locked);
  EXPECT_EQ(i->ends_block, row.ends_block || row.branch != BranchKind::none);
}

TEST_P(Decoding, NeedsAllTheBytes) {
  Code code = GetParam().code;
  while (!code.empty()) {
    code.pop_back();
    EXPECT_FALSE(decode(code, GetParam().size)) << code.size() << " bytes";
  }
}

const std::vector<ExpectedDecoding> rows{
    {.name = "Nop", .code = X86("nop")},
    {.name = "LongNopTouchesNoMemory", .code = {0x0F, 0x1F, 0x44, 0x00, 0x00}},
    {.name = "MovRegisters", .code = X86("mov %rbx, %rax")},
    {.name = "Lea", .code = X86("lea (%rbx,%rcx), %rax")},
    {.name = "PrefetchFaultsOnNoMemory", .code = X86("prefetcht0 (%rax)")},
    {.name = "InvlpgTouchesNoMemory", .code = X86("invlpg (%rax)"), .steppable = false},
    {.name = "Load", .code = X86("mov (%rbx), %eax"), .load = true},
    {.name = "Store", .code = X86("mov %rax, (%rbx)"), .store = true},
    {.name = "ReadModifyWrite", .code = X86("add %rax, (%rbx)"), .load = true, .store = true},
    {.name = "CompareLoadsOnly", .code = X86("cmp %rax, (%rbx)"), .load = true},
    {.name = "LockedAdd", .code = X86("lock add %rax, (%rbx)"), .load = true, .store = true, .locked = true},
    {.name = "ExchangeLocksByItself", .code = X86("xchg %rax, (%rbx)"), .load = true, .store = true, .locked = true},
    {.name = "ExchangeOfRegistersLocksNothing", .code = {0x48, 0x87, 0xC3}},
    {.name = "Push", .code = X86("push %rax"), .store = true},
    {.name = "PushOfMemory", .code = X86("push (%rbx)"), .load = true, .store = true},
    {.name = "Pop", .code = X86("pop %rax"), .load = true},
    {.name = "Leave", .code = X86("leave"), .load = true},
    {.name = "MoveString", .code = X86("movsb"), .load = true, .store = true},
    {.name = "RepMoveString", .code = X86("rep movsq"), .load = true, .store = true, .rep = true},
    {.name = "RepneScanString", .code = X86("repne scasb"), .load = true, .rep = true},
    {.name = "LoadOfSixteenBytes", .code = X86("movups (%rbx), %xmm0"), .load = true},
    {.name = "JumpShort", .code = X86("jmp .+18"), .branch = BranchKind::near_rel_jmp},
    {.name = "JumpThroughRegister", .code = X86("jmp *%rax"), .branch = BranchKind::near_ind_jmp},
    {.name = "JumpThroughMemory", .code = X86("jmp *(%rbx)"), .load = true, .branch = BranchKind::near_ind_jmp},
    {.name = "JumpIfZero", .code = X86("je .+18"), .branch = BranchKind::conditional},
    {.name = "JumpIfZeroLong", .code = {0x0F, 0x84, 0x10, 0x00, 0x00, 0x00}, .branch = BranchKind::conditional},
    {.name = "Loop", .code = X86("1: loop 1b"), .branch = BranchKind::conditional},
    {.name = "JumpIfRcxIsZero", .code = X86("jrcxz .+4"), .branch = BranchKind::conditional},
    {.name = "Call", .code = X86("call .+21"), .store = true, .branch = BranchKind::near_rel_call},
    {.name = "CallThroughRegister", .code = X86("call *%rax"), .store = true, .branch = BranchKind::near_ind_call},
    {.name = "CallThroughMemory",
     .code = X86("call *(%rbx)"),
     .load = true,
     .store = true,
     .branch = BranchKind::near_ind_call},
    {.name = "Return", .code = X86("ret"), .load = true, .branch = BranchKind::near_ret},
    {.name = "ReturnAndPop", .code = X86("ret $8"), .load = true, .branch = BranchKind::near_ret},
    {.name = "Hlt", .code = X86("hlt"), .steppable = false, .ends_block = true},
    {.name = "PushFlagsWouldShowTheTrapFlag", .code = X86("pushf"), .store = true, .steppable = false},
    {.name = "PopFlagsWouldLoseTheTrapFlag", .code = X86("popf"), .load = true, .steppable = false},
    {.name = "MovToStackSegmentBlocksTheTrap", .code = X86("mov %eax, %ss"), .steppable = false},
    {.name = "MovToDs", .code = X86("mov %eax, %ds"), .steppable = false},
    {.name = "MovFromDs", .code = X86("mov %ds, %eax")},
    {.name = "Sti", .code = X86("sti"), .steppable = false},
    {.name = "Cpuid", .code = X86("cpuid"), .steppable = false},
    {.name = "Rdmsr", .code = X86("rdmsr"), .steppable = false},
    {.name = "Wrmsr", .code = X86("wrmsr"), .steppable = false},
    {.name = "Rdpmc", .code = X86("rdpmc"), .steppable = false},
    {.name = "Ud2", .code = X86("ud2"), .steppable = false},
    {.name = "In", .code = X86("in (%dx), %al"), .steppable = false},
    {.name = "OutString", .code = X86("outsb"), .load = true, .steppable = false},
    {.name = "GatherOfManyAddresses",
     .code = X86("vpgatherdd %xmm2, (%rbx,%xmm1), %xmm0"),
     .load = true,
     .steppable = false},
    {.name = "SaveOfAHalfKilobyte", .code = X86("fxsave (%rbx)"), .store = true, .steppable = false},
    {.name = "ReturnFarOf32BitCode",
     .code = X86_32("lret"),
     .load = true,
     .branch = BranchKind::far,
     .size = CodeMode::bits32},
    {.name = "IncrementOf32BitCode", .code = X86_32("inc %eax"), .size = CodeMode::bits32},
    {.name = "LoadOf16BitCode", .code = X86_16("mov (%bx), %ax"), .load = true, .size = CodeMode::bits16},
};
INSTANTIATE_TEST_SUITE_P(Of, Decoding, testing::ValuesIn(rows), [](const auto& row) { return row.param.name; });

/// SYSCALL, SYSRET, INT3, INT n and IRET leave the code segment; none may be single-stepped.
TEST(Decoding, SystemCallsAndReturnsAreFarAndNotSteppable) {
  for (const Code& code :
       {Code{X86("syscall")}, Code{X86("sysretq")}, Code{X86("int3")}, Code{X86("int $0x80")}, Code{X86("iretq")}}) {
    const auto i = decode(code);
    ASSERT_TRUE(i) << std::hex << +code[0];
    EXPECT_TRUE(i->ends_block) << std::hex << +code[0];
    EXPECT_FALSE(i->steppable) << std::hex << +code[0];
    EXPECT_EQ(i->branch, BranchKind::far) << std::hex << +code[0];
  }
}

TEST(Decoding, WhatTellsTheTimeOrWaitsIsNotQuiet) {
  const Code rdtsc = X86("rdtsc"), rdtscp = X86("rdtscp"), hlt = X86("hlt"), mwait = X86("mwait"),
             tpause = X86("tpause %ecx"), in = X86("in (%dx), %al"), outsb = X86("outsb"), rdmsr = X86("rdmsr"),
             wrmsr = X86("wrmsr"), vmcall = X86("vmcall"), xsetbv = X86("xsetbv"), mov_to_dr7 = X86("mov %rax, %dr7"),
             mov_to_cr4 = X86("mov %rax, %cr4"), syscall = X86("syscall");
  for (const Code& code :
       {rdtsc, rdtscp, hlt, mwait, tpause, in, outsb, rdmsr, wrmsr, vmcall, xsetbv, mov_to_dr7, mov_to_cr4, syscall})
    EXPECT_FALSE(decode(code).value().quiet) << disassemble(std::as_bytes(std::span{code}), CodeMode::bits64);
}

TEST(Decoding, WhatANativeKernelOftenLeavesToOthersIsQuiet) {
  const Code cpuid = X86("cpuid"), rdgsbase = X86("rdgsbase %rax"), wrgsbase = X86("wrgsbase %rax"),
             xsave = X86("xsave (%rbx)"), xrstor = X86("xrstor (%rbx)"), mov_from_dr6 = X86("mov %dr6, %rax"),
             add = X86("add %rax, (%rbx)");
  for (const Code& code : {cpuid, rdgsbase, wrgsbase, xsave, xrstor, mov_from_dr6, add})
    EXPECT_TRUE(decode(code).value().quiet) << disassemble(std::as_bytes(std::span{code}), CodeMode::bits64);
}

TEST(Decoding, InvalidBytesGiveNothing) {
  EXPECT_FALSE(decode({}));
  EXPECT_FALSE(decode({0x06})) << "PUSH ES, gone in 64-bit code";
  EXPECT_FALSE(decode({0xF0, 0x90})) << "LOCK NOP";
  EXPECT_FALSE(decode(Code(16, 0x66))) << "prefixes only";
  EXPECT_TRUE(decode({0x06}, CodeMode::bits32));
}

// Hostile code: whatever the bytes are, the decoder stays inside them.
TEST(Decoding, RandomBytesNeverDecodeBeyondTheirEnd) {
  std::mt19937_64 random{20160901};
  unsigned valid = 0;
  for (int n = 0; n < 200'000; ++n) {
    Code code(1 + random() % 15);
    for (auto& byte : code) byte = static_cast<std::uint8_t>(random());
    const auto size = static_cast<CodeMode>(random() % 3);
    const auto i = decode(code, size);
    if (!i) continue;
    ++valid;
    ASSERT_GT(i->length, 0U);
    ASSERT_LE(i->length, code.size());
  }
  EXPECT_GT(valid, 50'000U);
}

/// Registers with distinct values.
struct Machine {
  kvm_regs regs{.rax = 0x10,
                .rbx = 0x2000,
                .rcx = 0x3,
                .rdx = 0x40,
                .rsi = 0x5000,
                .rdi = 0x6000,
                .rsp = 0x7000,
                .rbp = 0x8000,
                .r8 = 0x80,
                .r9 = 0x90,
                .r10 = 0xA0,
                .r11 = 0xB0,
                .r12 = 0xC000,
                .r13 = 0xD000,
                .r14 = 0xE0,
                .r15 = 0xF0};
  kvm_sregs sregs{};
  GuestLinear ip{0xFFFF'FFFF'8100'0000};
  Machine() {
    sregs.fs.base = 0x1'0000'0000;
    sregs.gs.base = 0x2'0000'0000;
    sregs.ds.base = 0xBAD;  // ignored by 64-bit code
  }
  std::uint64_t load_of(const Code& code, CodeMode size = CodeMode::bits64) const {
    const auto i = decode(code, size);
    return i && i->load ? operand_address(*i->load, *i, ip, regs, sregs).value() : ~0ULL;
  }
  std::uint64_t store_of(const Code& code, CodeMode size = CodeMode::bits64) const {
    const auto i = decode(code, size);
    return i && i->store ? operand_address(*i->store, *i, ip, regs, sregs).value() : ~0ULL;
  }
};

TEST(OperandAddress, AddsBaseScaledIndexAndDisplacement) {
  const Machine m;
  EXPECT_EQ(m.load_of(X86("mov (%rbx), %eax")), 0x2000U) << "[rbx]";
  EXPECT_EQ(m.load_of(X86("mov -8(%rbx), %eax")), 0x1FF8U) << "[rbx - 8]";
  EXPECT_EQ(m.load_of(X86("mov (%rbx,%rcx,4), %eax")), 0x200CU) << "[rbx + rcx*4]";
  EXPECT_EQ(m.load_of(X86("mov 16(%r13,%r14,8), %eax")), 0xD710U) << "[r13 + r14*8 + 0x10]";
  EXPECT_EQ(m.load_of(X86("mov (%r12), %eax")), 0xC000U) << "[r12]";
  EXPECT_EQ(m.load_of(X86("mov 0x1234, %eax")), 0x1234U) << "[0x1234]";
  EXPECT_EQ(m.load_of(X86("mov 0xFFFFFFFF80000000, %eax")), 0xFFFF'FFFF'8000'0000U) << "sign-extended";
}

// SDM 2A 2.2.1.6: relative to the next instruction.
TEST(OperandAddress, RipRelativeCountsFromTheNextInstruction) {
  const Machine m;
  EXPECT_EQ(m.load_of(X86("mov 16(%rip), %eax")), m.ip.value() + 6 + 0x10);
  EXPECT_EQ(m.load_of(X86("mov -6(%rip), %eax")), m.ip.value()) << "negative";
}

TEST(OperandAddress, FsAndGsHaveABaseIn64BitCode) {
  const Machine m;
  EXPECT_EQ(m.load_of(X86("mov %fs:(%rbx), %eax")), 0x1'0000'2000U);
  EXPECT_EQ(m.load_of(X86("mov %gs:0x28, %eax")), 0x2'0000'0028U);
}

TEST(OperandAddress, AddressSizePrefixCutsTo32BitsBeforeTheSegmentIsAdded) {
  Machine m;
  m.regs.rbx = 0x7'FFFF'FFFF;
  EXPECT_EQ(m.load_of(X86("mov 1(%ebx), %eax")), 0U);
  EXPECT_EQ(m.load_of(X86("mov %gs:1(%ebx), %eax")), 0x2'0000'0000U);
}

TEST(OperandAddress, StackOperandsAreBelowOrAtTheStackPointer) {
  const Machine m;
  EXPECT_EQ(m.store_of(X86("push %rax")), 0x6FF8U) << "push rax";
  EXPECT_EQ(m.store_of(X86("push %ax")), 0x6FFEU) << "push ax";
  EXPECT_EQ(m.store_of(X86("call 1f; 1:")), 0x6FF8U) << "call";
  EXPECT_EQ(m.load_of(X86("pop %rax")), 0x7000U) << "pop rax";
  EXPECT_EQ(m.load_of(X86("ret")), 0x7000U) << "ret";
  EXPECT_EQ(m.load_of(X86("leave")), 0x8000U) << "leave reads where RBP points";
}

// SDM 1 6.2.3. Linkers pad calls with this prefix. When the push of such a call faulted, a guest's kernel once got only
// half of the address.
TEST(OperandAddress, AddressSizePrefixLeavesTheStackPointerWhole) {
  Machine m;
  m.regs.rsp = 0x7FFF'0000'7000;
  m.regs.rbp = 0x7FFF'0000'8000;
  m.regs.rbx = 0x1'0000'2000;
  EXPECT_EQ(m.store_of({0x67, 0xE8, 0x00, 0x00, 0x00, 0x00}), 0x7FFF'0000'6FF8U) << "call";
  EXPECT_EQ(m.store_of(X86("addr32 push %rax")), 0x7FFF'0000'6FF8U) << "push rax";
  EXPECT_EQ(m.load_of(X86("addr32 pop %rax")), 0x7FFF'0000'7000U) << "pop rax";
  EXPECT_EQ(m.load_of(X86("addr32 ret")), 0x7FFF'0000'7000U) << "ret";
  EXPECT_EQ(m.load_of(X86("addr32 leave")), 0x7FFF'0000'8000U) << "leave";
  EXPECT_EQ(m.load_of(X86("push (%ebx)")), 0x2000U) << "push [ebx]";
  EXPECT_EQ(m.store_of(X86("push (%ebx)")), 0x7FFF'0000'6FF8U) << "push [ebx]";
}

TEST(OperandAddress, PushOfMemoryLoadsOneAddressAndStoresAnother) {
  const Machine m;
  EXPECT_EQ(m.load_of(X86("push (%rbx)")), 0x2000U);
  EXPECT_EQ(m.store_of(X86("push (%rbx)")), 0x6FF8U);
}

TEST(OperandAddress, ExplicitStackPointerOperandIsNotMoved) {
  const Machine m;
  EXPECT_EQ(m.store_of(X86("mov %rax, (%rsp)")), 0x7000U) << "mov [rsp], rax";
}

TEST(OperandAddress, StringInstructionsLoadFromRsiAndStoreToRdi) {
  const Machine m;
  EXPECT_EQ(m.load_of(X86("movsb")), 0x5000U);
  EXPECT_EQ(m.store_of(X86("movsb")), 0x6000U);
}

TEST(OperandAddress, SizesOfOperandsAreInBytes) {
  EXPECT_EQ(decode(X86("mov (%rbx), %al"))->load->bytes, 1);
  EXPECT_EQ(decode(X86("mov (%rbx), %eax"))->load->bytes, 4);
  EXPECT_EQ(decode(X86("mov (%rbx), %rax"))->load->bytes, 8);
  EXPECT_EQ(decode(X86("movups (%rbx), %xmm0"))->load->bytes, 16);
}

// SDM 3A 3.2: outside 64-bit code the base of every segment counts.
TEST(OperandAddress, CodeOf32BitsAddsTheSegmentsBase) {
  Machine m;
  m.sregs.ds.base = 0x10'0000;
  m.sregs.ss.base = 0x20'0000;
  m.sregs.es.base = 0x30'0000;
  EXPECT_EQ(m.load_of(X86_32("mov (%ebx), %eax"), CodeMode::bits32), 0x10'2000U) << "[ebx] in DS";
  EXPECT_EQ(m.load_of(X86_32("mov 0(%ebp), %eax"), CodeMode::bits32), 0x20'8000U) << "[ebp] in SS";
  EXPECT_EQ(m.store_of(X86_32("push %eax"), CodeMode::bits32), 0x20'6FFCU) << "push eax";
  EXPECT_EQ(m.store_of(X86_32("movsb"), CodeMode::bits32), 0x30'6000U) << "movsb stores to ES";
}

// exec/tests/class_counts_test.cpp has all of them.
TEST(InstructionClasses, AreThoseOfTheEngine) {
  using vpmu::InstructionClass;
  EXPECT_EQ(decode(X86("mulps %xmm1, %xmm0"))->kind, InstructionClass::sse_packed_single_arithmetic);
  EXPECT_EQ(decode(X86("nop"))->kind, InstructionClass::nop);
}

// Optimization Reference Manual, macro-fusion.
TEST(Fusion, JoinsACompareAndTheBranchesThatItFeeds) {
  using vpmu::exec::FusionPart;
  const auto part = [](const Code& code) { return decode(code)->fusion; };
  const FusionPart cmp = part(X86("cmp %ebx, %eax")), test = part(X86("test %eax, %eax")), jz = part(X86("je 1f; 1:")),
                   jl = part(X86("jl 1f; 1:")), js = part(X86("js 1f; 1:")), jb = part(X86("jb 1f; 1:"));
  EXPECT_TRUE(fuses(cmp, jz, 0x1002));
  EXPECT_TRUE(fuses(cmp, jl, 0x1002));
  EXPECT_FALSE(fuses(cmp, js, 0x1002)) << "not with the sign alone";
  EXPECT_TRUE(fuses(test, js, 0x1002));
  EXPECT_FALSE(fuses(cmp, jz, 0x1040)) << "not across lines";
  EXPECT_FALSE(fuses(cmp, cmp, 0x1002));
  EXPECT_FALSE(fuses(part(X86("cmpl $0, (%rbx)")), jz, 0x1002)) << "not memory with an immediate";
  EXPECT_TRUE(fuses(part(X86("cmp $0, %eax")), jz, 0x1002));
  EXPECT_TRUE(fuses(part(X86("cmp (%rbx), %eax")), jz, 0x1002));
  EXPECT_FALSE(fuses(cmp, part(X86("jrcxz 1f; 1:")), 0x1002)) << "JRCXZ looks at no flag";
  const FusionPart add = part(X86("add %ebx, %eax")), dec = part(X86("dec %eax"));
  EXPECT_TRUE(fuses(add, jz, 0x1002));
  EXPECT_TRUE(fuses(dec, jz, 0x1002));
  EXPECT_FALSE(fuses(dec, jb, 0x1002)) << "it leaves the carry flag";
  EXPECT_FALSE(fuses(part(X86("add %ebx, (%rax)")), jz, 0x1002)) << "not what stores";
  EXPECT_TRUE(cmp.compares && test.compares);
  EXPECT_FALSE(add.compares || dec.compares) << "not on Nehalem";
}

}  // namespace
}  // namespace vmm::test
