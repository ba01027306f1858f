#include "exec/host/host_assembler.hpp"

#include <Zydis/Zydis.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

namespace vpmu::exec::test {
namespace {

using Memory = HostAssembler::Memory;
constexpr HostRegister rax = 0, rcx = 1, rdx = 2, rbp = 5, rsp = 4, r9 = 9, r12 = 12, r13 = 13, r15 = 15;

/// What Zydis reads in the code, in Intel's notation.
std::vector<std::string> disassembled(std::span<const std::byte> code) {
  std::vector<std::string> all;
  for (std::size_t at = 0; at < code.size();) {
    ZydisDisassembledInstruction one;
    const auto* const from = code.data() + at;
    if (!ZYAN_SUCCESS(ZydisDisassembleIntel(ZYDIS_MACHINE_MODE_LONG_64, at, from, code.size() - at, &one))) {
      all.emplace_back("not an instruction");
      break;
    }
    all.emplace_back(one.text);
    at += one.info.length;
  }
  return all;
}

struct Case {
  std::string text;
  std::function<void(HostAssembler&)> write;
};

// Each mnemonic, with registers that need REX or VEX bits and without, and with the bases that need a SIB byte or a
// displacement. SDM 2A 2.1 to 2.3.
const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"mov rax, r12", [](auto& a) { a.mov(rax, r12); }},
      {"mov r15, [rax+0x10]", [](auto& a) { a.mov(r15, Memory{rax, 16}); }},
      {"mov [rbp], rcx", [](auto& a) { a.mov(Memory{rbp}, rcx); }},
      {"mov [r12-0x200], rdx", [](auto& a) { a.mov(Memory{r12, -512}, rdx); }},
      {"mov rcx, [r13+rdx*1]", [](auto& a) { a.mov(rcx, Memory{r13, 0, rdx}); }},
      {"mov rcx, [rcx+r9*1]", [](auto& a) { a.mov(rcx, Memory{rcx, 0, r9}); }},
      {"mov ecx, 0x12345678", [](auto& a) { a.mov_constant(rcx, 0x1234'5678); }},
      {"mov r9d, 0x01", [](auto& a) { a.mov_constant(r9, 1); }},
      {"mov rdx, 0xFFFFFFFFFFFFFFFE", [](auto& a) { a.mov_constant(rdx, ~1ULL); }},
      {"mov r15, 0x123456789ABCDEF0", [](auto& a) { a.mov_constant(r15, 0x1234'5678'9ABC'DEF0); }},
      {"mov qword ptr [rbp+0x08], 0x01", [](auto& a) { a.mov_constant(Memory{rbp, 8}, 1); }},
      {"mov r12w, ax", [](auto& a) { a.mov_16(r12, rax); }},
      {"mov [rbp+0x08], ecx", [](auto& a) { a.mov_32(Memory{rbp, 8}, rcx); }},
      {"mov ecx, [r13+rdx*1]", [](auto& a) { a.mov_32(rcx, Memory{r13, 0, rdx}); }},
      {"movzx ecx, byte ptr [rbp+0x08]", [](auto& a) { a.movzx_8(rcx, Memory{rbp, 8}); }},
      {"movzx edx, cl", [](auto& a) { a.movzx_8(rdx, rcx); }},
      {"movzx eax, word ptr [r9]", [](auto& a) { a.movzx_16(rax, Memory{r9}); }},
      {"lea rdx, [r9+r12*8+0x10]", [](auto& a) { a.lea(rdx, r9, r12, 3, 16); }},
      {"mov rcx, [rbp+rdx*8+0x100]", [](auto& a) { a.mov_indexed(rcx, rbp, rdx, 256); }},
      {"mov [rbp+r9*8+0x100], r15", [](auto& a) { a.store_indexed(rbp, r9, 256, r15); }},
      {"push r15", [](auto& a) { a.push(r15); }},
      {"pop rbp", [](auto& a) { a.pop(rbp); }},
      {"pushfq", [](auto& a) { a.pushfq(); }},
      {"popfq", [](auto& a) { a.popfq(); }},
      {"lahf", [](auto& a) { a.lahf(); }},
      {"sahf", [](auto& a) { a.sahf(); }},
      {"seto al", [](auto& a) { a.seto_al(); }},
      {"ldmxcsr [rax+0x18]", [](auto& a) { a.ldmxcsr(Memory{rax, 24}); }},
      {"stmxcsr [rsp]", [](auto& a) { a.stmxcsr(Memory{rsp}); }},
      {"fxsave64 [r9]", [](auto& a) { a.fxsave64(Memory{r9}); }},
      {"fxrstor64 [rcx]", [](auto& a) { a.fxrstor64(Memory{rcx}); }},
      {"fldcw [rsp+0x04]", [](auto& a) { a.fldcw(Memory{rsp, 4}); }},
      {"fnstcw [rsp+0x04]", [](auto& a) { a.fnstcw(Memory{rsp, 4}); }},
      {"fninit", [](auto& a) { a.fninit(); }},
      {"shrx rcx, r9, rbp", [](auto& a) { a.shrx(rcx, r9, rbp); }},
      {"shlx r9, r9, rcx", [](auto& a) { a.shift_by(r9, r9, rcx, 4, true); }},
      {"shrx eax, ecx, edx", [](auto& a) { a.shift_by(rax, rcx, rdx, 5, false); }},
      {"sarx r12d, r12d, ecx", [](auto& a) { a.shift_by(r12, r12, rcx, 7, false); }},
      {"sar r12, 0x01", [](auto& a) { a.shift_by_1(r12, 7, true); }},
      {"shr eax, 0x01", [](auto& a) { a.shift_by_1(rax, 5, false); }},
      {"rorx rcx, r9, 0x05", [](auto& a) { a.rorx(rcx, r9, 5); }},
      {"rorx r9, rcx, 0x05", [](auto& a) { a.rorx(r9, rcx, 5); }},
      {"pext rcx, rcx, rdx", [](auto& a) { a.pext(rcx, rcx, rdx); }},
      {"vmovdqu ymm15, [rbp+0x20]", [](auto& a) { a.vmovdqu_256(15, Memory{rbp, 32}); }},
      {"vmovdqu [r9], ymm0", [](auto& a) { a.vmovdqu_256(Memory{r9}, 0); }},
      {"vmovdqa [rcx], ymm9", [](auto& a) { a.vmovdqa_256(Memory{rcx}, 9); }},
      {"vmovdqa xmm1, [rcx]", [](auto& a) { a.vmovdqa_128(1, Memory{rcx}); }},
      {"vmovdqa [rcx], xmm12", [](auto& a) { a.vmovdqa_128(Memory{rcx}, 12); }},
      {"vmovdqa xmm12, xmm12", [](auto& a) { a.vmovdqa_128(12, HostRegister{12}); }},
      {"vmovaps xmm9, [rdi]", [](auto& a) { a.vmovaps_128(9, Memory{7}); }},
      {"vmovaps [rdi], xmm1", [](auto& a) { a.vmovaps_128(Memory{7}, 1); }},
      {"movaps xmm9, [rdi]", [](auto& a) { a.movaps(9, Memory{7}); }},
      {"movaps [rdi], xmm1", [](auto& a) { a.movaps(Memory{7}, 1); }},
      {"vinsertf128 ymm9, ymm9, xmmword ptr [rcx], 0x01", [](auto& a) { a.vinsertf128_upper(9, Memory{rcx}); }},
      {"vextractf128 [rcx], ymm2, 0x01", [](auto& a) { a.vextractf128_upper(Memory{rcx}, 2); }},
      {"vpxor xmm9, xmm2, xmm12", [](auto& a) { a.vpxor_128(9, 2, 12); }},
      {"vmovmskpd ecx, ymm15", [](auto& a) { a.vmovmskpd_ymm15(rcx); }},
      {"vzeroupper", [](auto& a) { a.vzeroupper(); }},
      {"add rcx, rax", [](auto& a) { a.add(rcx, rax); }},
      {"add rsp, 0x08", [](auto& a) { a.add(rsp, std::int8_t{8}); }},
      {"sub rsp, 0x08", [](auto& a) { a.sub(rsp, 8); }},
      {"cmp qword ptr [rbp+0x08], 0x00", [](auto& a) { a.cmp(Memory{rbp, 8}, 0); }},
      {"cmp rcx, 0xFF8", [](auto& a) { a.cmp(rcx, 0xFF8U); }},
      {"test rcx, rcx", [](auto& a) { a.test(rcx, rcx); }},
      {"cmp rcx, r12", [](auto& a) { a.cmp_with(rcx, r12); }},
      {"cmp [rbp+0x08], r9", [](auto& a) { a.cmp_with(Memory{rbp, 8}, r9); }},
      {"cmp byte ptr [rcx+0x30], 0x01", [](auto& a) { a.cmp_8(Memory{rcx, 48}, 1); }},
      {"neg r9", [](auto& a) { a.neg(r9); }},
      {"xor edx, 0x80", [](auto& a) { a.xor_32(rdx, 128U); }},
      {"add edx, eax", [](auto& a) { a.add_32(rdx, rax); }},
      {"add edx, 0x100", [](auto& a) { a.add_32(rdx, 256U); }},
      {"and edx, 0xFFF", [](auto& a) { a.and_32(rdx, 4095U); }},
      {"and rcx, 0xFFFFFFFFFFFFF000", [](auto& a) { a.and_constant(rcx, -4096); }},
      {"xor edx, edx", [](auto& a) { a.xor_32(rdx, rdx); }},
      {"shl rdx, 0x10", [](auto& a) { a.shl(rdx, 16); }},
      {"shr rdx, 0x0C", [](auto& a) { a.shr(rdx, 12); }},
      {"test al, al", [](auto& a) { a.test_al(); }},
      {"add al, 0x7F", [](auto& a) { a.add_al(0x7F); }},
      {"and ah, 0xEF", [](auto& a) { a.and_ah(0xEF); }},
      {"or ah, al", [](auto& a) { a.or_ah_al(); }},
      {"call [rbp+0x08]", [](auto& a) { a.call(Memory{rbp, 8}); }},
      {"jmp [rbp+0x08]", [](auto& a) { a.jmp(Memory{rbp, 8}); }},
      {"jmp rdx", [](auto& a) { a.jmp(rdx); }},
      {"jmp [rbp+rdx*8+0x100]", [](auto& a) { a.jmp_indexed(rbp, rdx, 256); }},
      {"ret", [](auto& a) { a.ret(); }},
  };
  return all;
}

TEST(HostAssembler, WritesWhatItsNamesSay) {
  ASSERT_GT(cases().size(), 60U);
  HostAssembler a;
  for (const Case& c : cases()) {
    a.clear();
    c.write(a);
    EXPECT_EQ(disassembled(a.finish()), std::vector{c.text});
  }
}

TEST(HostAssembler, SavesAndLoadsFlags) {
  HostAssembler a;
  a.save_flags(Memory{rbp, 8});
  a.load_flags(Memory{rbp, 8});
  EXPECT_EQ(disassembled(a.finish()),
            (std::vector<std::string>{"seto [rbp+0x08]", "lahf", "mov [rbp+0x09], ah", "movzx eax, byte ptr [rbp+0x08]",
                                      "mov ah, [rbp+0x09]", "add al, 0x7F", "sahf"}));
}

TEST(HostAssembler, JumpsByRcx) {
  HostAssembler a;
  const auto there = a.label();
  a.jump_unless_rcx_is_0(there);
  a.here(there);
  EXPECT_EQ(disassembled(a.finish()), (std::vector<std::string>{"jrcxz 0x0000000000000007", "jmp 0x0000000000000007"}));
}

TEST(HostAssembler, CountsAreAtALabel) {
  HostAssembler a;
  const auto counts = a.label();
  a.vpsubq_ymm15(counts);
  a.vpaddq_ymm15(counts);
  a.here(counts);
  // Zydis names the address of an operand that is relative to RIP.
  EXPECT_EQ(disassembled(a.finish()), (std::vector<std::string>{"vpsubq ymm15, ymm15, [0x0000000000000010]",
                                                                "vpaddq ymm15, ymm15, [0x0000000000000010]"}));
}

}  // namespace
}  // namespace vpmu::exec::test
