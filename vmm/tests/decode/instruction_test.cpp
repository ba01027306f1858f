#include "decode/instruction.hpp"

#include <gtest/gtest.h>
#include <linux/kvm.h>

#include <ostream>
#include <random>
#include <string>
#include <vector>

namespace vmm::test {
namespace {

using vpmu::BranchKind;
using vpmu::GuestLinear;
using Code = std::vector<std::uint8_t>;

std::optional<Instruction> decode(const Code& code, CodeMode size = CodeMode::bits64) {
  return decode_instruction(std::as_bytes(std::span{code}), size);
}

/// The expected decoding of an instruction; by default 64-bit code that accesses no memory.
struct Row {
  const char* name;
  Code code;
  bool load{}, store{};
  BranchKind branch{BranchKind::none};
  bool steppable{true};
  bool rep{};
  bool locked{};
  bool ends_block{};  ///< For other instructions than branches, which always do.
  CodeMode size{CodeMode::bits64};
  friend void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }
};

class Decoding : public testing::TestWithParam<Row> {};
TEST_P(Decoding, TellsWhatTheInstructionDoes) {
  const Row& row = GetParam();
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

const std::vector<Row> rows{
    {.name = "Nop", .code = {0x90}},
    {.name = "LongNopTouchesNoMemory", .code = {0x0F, 0x1F, 0x44, 0x00, 0x00}},
    {.name = "MovRegisters", .code = {0x48, 0x89, 0xD8}},
    {.name = "Lea", .code = {0x48, 0x8D, 0x04, 0x0B}},
    {.name = "PrefetchTouchesNoMemory", .code = {0x0F, 0x18, 0x08}},
    {.name = "InvlpgTouchesNoMemory", .code = {0x0F, 0x01, 0x38}, .steppable = false},
    {.name = "Load", .code = {0x8B, 0x03}, .load = true},
    {.name = "Store", .code = {0x48, 0x89, 0x03}, .store = true},
    {.name = "ReadModifyWrite", .code = {0x48, 0x01, 0x03}, .load = true, .store = true},
    {.name = "CompareLoadsOnly", .code = {0x48, 0x39, 0x03}, .load = true},
    {.name = "LockedAdd", .code = {0xF0, 0x48, 0x01, 0x03}, .load = true, .store = true, .locked = true},
    {.name = "ExchangeLocksByItself", .code = {0x48, 0x87, 0x03}, .load = true, .store = true, .locked = true},
    {.name = "ExchangeOfRegistersLocksNothing", .code = {0x48, 0x87, 0xC3}},
    {.name = "Push", .code = {0x50}, .store = true},
    {.name = "PushOfMemory", .code = {0xFF, 0x33}, .load = true, .store = true},
    {.name = "Pop", .code = {0x58}, .load = true},
    {.name = "Leave", .code = {0xC9}, .load = true},
    {.name = "MoveString", .code = {0xA4}, .load = true, .store = true},
    {.name = "RepMoveString", .code = {0xF3, 0x48, 0xA5}, .load = true, .store = true, .rep = true},
    {.name = "RepneScanString", .code = {0xF2, 0xAE}, .load = true, .rep = true},
    {.name = "LoadOfSixteenBytes", .code = {0x0F, 0x10, 0x03}, .load = true},
    {.name = "JumpShort", .code = {0xEB, 0x10}, .branch = BranchKind::near_rel_jmp},
    {.name = "JumpThroughRegister", .code = {0xFF, 0xE0}, .branch = BranchKind::near_ind_jmp},
    {.name = "JumpThroughMemory", .code = {0xFF, 0x23}, .load = true, .branch = BranchKind::near_ind_jmp},
    {.name = "JumpIfZero", .code = {0x74, 0x10}, .branch = BranchKind::conditional},
    {.name = "JumpIfZeroLong", .code = {0x0F, 0x84, 0x10, 0x00, 0x00, 0x00}, .branch = BranchKind::conditional},
    {.name = "Loop", .code = {0xE2, 0xFE}, .branch = BranchKind::conditional},
    {.name = "JumpIfRcxIsZero", .code = {0xE3, 0x02}, .branch = BranchKind::conditional},
    {.name = "Call", .code = {0xE8, 0x10, 0x00, 0x00, 0x00}, .store = true, .branch = BranchKind::near_rel_call},
    {.name = "CallThroughRegister", .code = {0xFF, 0xD0}, .store = true, .branch = BranchKind::near_ind_call},
    {.name = "CallThroughMemory",
     .code = {0xFF, 0x13},
     .load = true,
     .store = true,
     .branch = BranchKind::near_ind_call},
    {.name = "Return", .code = {0xC3}, .load = true, .branch = BranchKind::near_ret},
    {.name = "ReturnAndPop", .code = {0xC2, 0x08, 0x00}, .load = true, .branch = BranchKind::near_ret},
    {.name = "Hlt", .code = {0xF4}, .steppable = false, .ends_block = true},
    {.name = "PushFlagsWouldShowTheTrapFlag", .code = {0x9C}, .store = true, .steppable = false},
    {.name = "PopFlagsWouldLoseTheTrapFlag", .code = {0x9D}, .load = true, .steppable = false},
    {.name = "MovToStackSegmentBlocksTheTrap", .code = {0x8E, 0xD0}, .steppable = false},
    {.name = "MovToDs", .code = {0x8E, 0xD8}, .steppable = false},
    {.name = "MovFromDs", .code = {0x8C, 0xD8}},
    {.name = "Sti", .code = {0xFB}, .steppable = false},
    {.name = "Cpuid", .code = {0x0F, 0xA2}, .steppable = false},
    {.name = "Rdmsr", .code = {0x0F, 0x32}, .steppable = false},
    {.name = "Wrmsr", .code = {0x0F, 0x30}, .steppable = false},
    {.name = "Rdpmc", .code = {0x0F, 0x33}, .steppable = false},
    {.name = "Ud2", .code = {0x0F, 0x0B}, .steppable = false},
    {.name = "In", .code = {0xEC}, .steppable = false},
    {.name = "OutString", .code = {0x6E}, .load = true, .steppable = false},
    {.name = "GatherOfManyAddresses", .code = {0xC4, 0xE2, 0x69, 0x90, 0x04, 0x0B}, .load = true, .steppable = false},
    {.name = "SaveOfAHalfKilobyte", .code = {0x0F, 0xAE, 0x03}, .store = true, .steppable = false},
    {.name = "ReturnFarOf32BitCode", .code = {0xCB}, .load = true, .branch = BranchKind::far, .size = CodeMode::bits32},
    {.name = "IncrementOf32BitCode", .code = {0x40}, .size = CodeMode::bits32},
    {.name = "LoadOf16BitCode", .code = {0x8B, 0x07}, .load = true, .size = CodeMode::bits16},
};
INSTANTIATE_TEST_SUITE_P(Of, Decoding, testing::ValuesIn(rows), [](const auto& row) { return row.param.name; });

/// SYSCALL, SYSRET, INT3, INT n and IRET leave the code segment; none may be single-stepped.
TEST(Decoding, SystemCallsAndReturnsAreFarAndNotSteppable) {
  for (const Code& code : {Code{0x0F, 0x05}, Code{0x48, 0x0F, 0x07}, Code{0xCC}, Code{0xCD, 0x80}, Code{0x48, 0xCF}}) {
    const auto i = decode(code);
    ASSERT_TRUE(i) << std::hex << +code[0];
    EXPECT_TRUE(i->ends_block) << std::hex << +code[0];
    EXPECT_FALSE(i->steppable) << std::hex << +code[0];
    EXPECT_EQ(i->branch, BranchKind::far) << std::hex << +code[0];
  }
}

TEST(Decoding, WhatTellsTheTimeOrWaitsIsNotQuiet) {
  const Code rdtsc{0x0F, 0x31}, rdtscp{0x0F, 0x01, 0xF9}, hlt{0xF4}, mwait{0x0F, 0x01, 0xC9},
      tpause{0x66, 0x0F, 0xAE, 0xF1}, in{0xEC}, outsb{0x6E}, rdmsr{0x0F, 0x32}, wrmsr{0x0F, 0x30},
      vmcall{0x0F, 0x01, 0xC1}, xsetbv{0x0F, 0x01, 0xD1}, mov_to_dr7{0x0F, 0x23, 0xF8}, mov_to_cr4{0x0F, 0x22, 0xE0},
      syscall{0x0F, 0x05};
  for (const Code& code :
       {rdtsc, rdtscp, hlt, mwait, tpause, in, outsb, rdmsr, wrmsr, vmcall, xsetbv, mov_to_dr7, mov_to_cr4, syscall})
    EXPECT_FALSE(decode(code).value().quiet) << disassemble(std::as_bytes(std::span{code}), CodeMode::bits64);
}

TEST(Decoding, WhatANativeKernelOftenLeavesToOthersIsQuiet) {
  const Code cpuid{0x0F, 0xA2}, rdgsbase{0xF3, 0x48, 0x0F, 0xAE, 0xC8}, wrgsbase{0xF3, 0x48, 0x0F, 0xAE, 0xD8},
      xsave{0x0F, 0xAE, 0x23}, xrstor{0x0F, 0xAE, 0x2B}, mov_from_dr6{0x0F, 0x21, 0xF0}, add{0x48, 0x01, 0x03};
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
  EXPECT_EQ(m.load_of({0x8B, 0x03}), 0x2000U) << "[rbx]";
  EXPECT_EQ(m.load_of({0x8B, 0x43, 0xF8}), 0x1FF8U) << "[rbx - 8]";
  EXPECT_EQ(m.load_of({0x8B, 0x04, 0x8B}), 0x200CU) << "[rbx + rcx*4]";
  EXPECT_EQ(m.load_of({0x43, 0x8B, 0x44, 0xF5, 0x10}), 0xD710U) << "[r13 + r14*8 + 0x10]";
  EXPECT_EQ(m.load_of({0x41, 0x8B, 0x04, 0x24}), 0xC000U) << "[r12]";
  EXPECT_EQ(m.load_of({0x8B, 0x04, 0x25, 0x34, 0x12, 0x00, 0x00}), 0x1234U) << "[0x1234]";
  EXPECT_EQ(m.load_of({0x8B, 0x04, 0x25, 0x00, 0x00, 0x00, 0x80}), 0xFFFF'FFFF'8000'0000U) << "sign-extended";
}

// SDM 2A 2.2.1.6: relative to the next instruction.
TEST(OperandAddress, RipRelativeCountsFromTheNextInstruction) {
  const Machine m;
  EXPECT_EQ(m.load_of({0x8B, 0x05, 0x10, 0x00, 0x00, 0x00}), m.ip.value() + 6 + 0x10);
  EXPECT_EQ(m.load_of({0x8B, 0x05, 0xFA, 0xFF, 0xFF, 0xFF}), m.ip.value()) << "negative";
}

TEST(OperandAddress, FsAndGsHaveABaseIn64BitCode) {
  const Machine m;
  EXPECT_EQ(m.load_of({0x64, 0x8B, 0x03}), 0x1'0000'2000U);
  EXPECT_EQ(m.load_of({0x65, 0x8B, 0x04, 0x25, 0x28, 0x00, 0x00, 0x00}), 0x2'0000'0028U);
}

TEST(OperandAddress, AddressSizePrefixCutsTo32BitsBeforeTheSegmentIsAdded) {
  Machine m;
  m.regs.rbx = 0x7'FFFF'FFFF;
  EXPECT_EQ(m.load_of({0x67, 0x8B, 0x43, 0x01}), 0U);
  EXPECT_EQ(m.load_of({0x65, 0x67, 0x8B, 0x43, 0x01}), 0x2'0000'0000U);
}

TEST(OperandAddress, StackOperandsAreBelowOrAtTheStackPointer) {
  const Machine m;
  EXPECT_EQ(m.store_of({0x50}), 0x6FF8U) << "push rax";
  EXPECT_EQ(m.store_of({0x66, 0x50}), 0x6FFEU) << "push ax";
  EXPECT_EQ(m.store_of({0xE8, 0x00, 0x00, 0x00, 0x00}), 0x6FF8U) << "call";
  EXPECT_EQ(m.load_of({0x58}), 0x7000U) << "pop rax";
  EXPECT_EQ(m.load_of({0xC3}), 0x7000U) << "ret";
  EXPECT_EQ(m.load_of({0xC9}), 0x8000U) << "leave reads where RBP points";
}

// SDM 1 6.2.3. Linkers pad calls with this prefix. When the push of such a call faulted, a guest's kernel once got only
// half of the address.
TEST(OperandAddress, AddressSizePrefixLeavesTheStackPointerWhole) {
  Machine m;
  m.regs.rsp = 0x7FFF'0000'7000;
  m.regs.rbp = 0x7FFF'0000'8000;
  m.regs.rbx = 0x1'0000'2000;
  EXPECT_EQ(m.store_of({0x67, 0xE8, 0x00, 0x00, 0x00, 0x00}), 0x7FFF'0000'6FF8U) << "call";
  EXPECT_EQ(m.store_of({0x67, 0x50}), 0x7FFF'0000'6FF8U) << "push rax";
  EXPECT_EQ(m.load_of({0x67, 0x58}), 0x7FFF'0000'7000U) << "pop rax";
  EXPECT_EQ(m.load_of({0x67, 0xC3}), 0x7FFF'0000'7000U) << "ret";
  EXPECT_EQ(m.load_of({0x67, 0xC9}), 0x7FFF'0000'8000U) << "leave";
  EXPECT_EQ(m.load_of({0x67, 0xFF, 0x33}), 0x2000U) << "push [ebx]";
  EXPECT_EQ(m.store_of({0x67, 0xFF, 0x33}), 0x7FFF'0000'6FF8U) << "push [ebx]";
}

TEST(OperandAddress, PushOfMemoryLoadsOneAddressAndStoresAnother) {
  const Machine m;
  EXPECT_EQ(m.load_of({0xFF, 0x33}), 0x2000U);
  EXPECT_EQ(m.store_of({0xFF, 0x33}), 0x6FF8U);
}

TEST(OperandAddress, ExplicitStackPointerOperandIsNotMoved) {
  const Machine m;
  EXPECT_EQ(m.store_of({0x48, 0x89, 0x04, 0x24}), 0x7000U) << "mov [rsp], rax";
}

TEST(OperandAddress, StringInstructionsLoadFromRsiAndStoreToRdi) {
  const Machine m;
  EXPECT_EQ(m.load_of({0xA4}), 0x5000U);
  EXPECT_EQ(m.store_of({0xA4}), 0x6000U);
}

TEST(OperandAddress, SizesOfOperandsAreInBytes) {
  EXPECT_EQ(decode({0x8A, 0x03})->load->bytes, 1);
  EXPECT_EQ(decode({0x8B, 0x03})->load->bytes, 4);
  EXPECT_EQ(decode({0x48, 0x8B, 0x03})->load->bytes, 8);
  EXPECT_EQ(decode({0x0F, 0x10, 0x03})->load->bytes, 16);
}

// SDM 3A 3.2: outside 64-bit code the base of every segment counts.
TEST(OperandAddress, CodeOf32BitsAddsTheSegmentsBase) {
  Machine m;
  m.sregs.ds.base = 0x10'0000;
  m.sregs.ss.base = 0x20'0000;
  m.sregs.es.base = 0x30'0000;
  EXPECT_EQ(m.load_of({0x8B, 0x03}, CodeMode::bits32), 0x10'2000U) << "[ebx] in DS";
  EXPECT_EQ(m.load_of({0x8B, 0x45, 0x00}, CodeMode::bits32), 0x20'8000U) << "[ebp] in SS";
  EXPECT_EQ(m.store_of({0x50}, CodeMode::bits32), 0x20'6FFCU) << "push eax";
  EXPECT_EQ(m.store_of({0xA4}, CodeMode::bits32), 0x30'6000U) << "movsb stores to ES";
}

// SDM 1 5.2, 5.4 to 5.11; AVX forms are none of these.
TEST(InstructionClasses, GoByWhatTheInstructionComputesIn) {
  using vpmu::InstructionClass;
  struct Case {
    const char* name;
    Code code;
    InstructionClass kind;
  };
  for (const Case& c : {Case{"nop", {0x90}, InstructionClass::nop},
                        Case{"nopw", {0x0F, 0x1F, 0x00}, InstructionClass::nop},
                        Case{"mov", {0x8B, 0x03}, InstructionClass::other},
                        Case{"movsd (string)", {0xA5}, InstructionClass::other},
                        Case{"fld1", {0xD9, 0xE8}, InstructionClass::other},
                        Case{"faddp", {0xDE, 0xC1}, InstructionClass::x87_operation},
                        Case{"fyl2x", {0xD9, 0xF1}, InstructionClass::x87_operation},
                        Case{"fnstcw", {0xD9, 0x3C, 0x24}, InstructionClass::other},
                        Case{"paddd mm", {0x0F, 0xFE, 0xC1}, InstructionClass::mmx},
                        Case{"emms", {0x0F, 0x77}, InstructionClass::mmx},
                        Case{"mulps", {0x0F, 0x59, 0xC1}, InstructionClass::sse_packed_single},
                        Case{"mulss", {0xF3, 0x0F, 0x59, 0xC1}, InstructionClass::sse_scalar_single},
                        Case{"mulpd", {0x66, 0x0F, 0x59, 0xC1}, InstructionClass::sse_packed_double},
                        Case{"movsd xmm", {0xF2, 0x0F, 0x10, 0x03}, InstructionClass::sse_scalar_double},
                        Case{"cvtsi2ss", {0xF3, 0x0F, 0x2A, 0xC0}, InstructionClass::sse_scalar_single},
                        Case{"cvttsd2si", {0xF2, 0x0F, 0x2C, 0xC0}, InstructionClass::sse_scalar_double},
                        Case{"movddup", {0xF2, 0x0F, 0x12, 0xC1}, InstructionClass::sse_packed_double},
                        Case{"paddd xmm", {0x66, 0x0F, 0xFE, 0xC1}, InstructionClass::sse_integer},
                        Case{"pmaxsd", {0x66, 0x0F, 0x38, 0x3D, 0xC1}, InstructionClass::sse_integer},
                        Case{"vmulps", {0xC5, 0xF0, 0x59, 0xC2}, InstructionClass::other}}) {
    const auto i = decode(c.code);
    ASSERT_TRUE(i) << c.name;
    EXPECT_EQ(i->kind, c.kind) << c.name;
  }
}

// Optimization Reference Manual, macro-fusion of Nehalem.
TEST(Fusion, JoinsACompareAndTheBranchesThatItFeeds) {
  const auto part = [](const Code& code) { return decode(code)->fusion; };
  const FusionPart cmp = part({0x39, 0xD8}), test = part({0x85, 0xC0}), jz = part({0x74, 0x00}),
                   jl = part({0x7C, 0x00}), js = part({0x78, 0x00});
  EXPECT_TRUE(fuses(cmp, jz, 0x1002));
  EXPECT_TRUE(fuses(cmp, jl, 0x1002));
  EXPECT_FALSE(fuses(cmp, js, 0x1002)) << "not with the sign alone";
  EXPECT_TRUE(fuses(test, js, 0x1002));
  EXPECT_FALSE(fuses(cmp, jz, 0x1040)) << "not across lines";
  EXPECT_FALSE(fuses(cmp, cmp, 0x1002));
  EXPECT_FALSE(fuses(part({0x83, 0x3B, 0x00}), jz, 0x1002)) << "not memory with an immediate";
  EXPECT_TRUE(fuses(part({0x83, 0xF8, 0x00}), jz, 0x1002));
  EXPECT_FALSE(fuses(cmp, part({0xE3, 0x00}), 0x1002)) << "JRCXZ looks at no flag";
  EXPECT_FALSE(fuses(part({0x01, 0xD8}), jz, 0x1002)) << "ADD: not on Nehalem";
}

}  // namespace
}  // namespace vmm::test
