// The features of a vCPU without KVM are those of its model: instructions, registers, and faults for what it lacks.
#include <array>
#include <bit>

#include "exec/host/host_form.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/model_cpuid.hpp"
#include "soft/system_fixture.hpp"
#include "support/x86.hpp"

namespace vmm::test {
namespace {

using vpmu::exec::CpuFeature;
using vpmu::exec::host_has;

constexpr std::uint64_t fsgsbase = vpmu::bit(16), smep = vpmu::bit(20), smap = vpmu::bit(21);

/// vCPUs with the CPUID of a model.
class Features : public SystemInstructions {
 protected:
  void be(std::string_view model) {
    ASSERT_NE(find_machine_model(model), nullptr);
    cpuid_ = cpuid_of(model);
  }
  std::uint64_t after_cpuid(std::uint64_t leaf, std::uint64_t subleaf, __u64 kvm_regs::* reg) {
    guest_.backend.registers.rax = leaf;
    guest_.backend.registers.rcx = subleaf;
    return run(X86("cpuid; hlt")).regs().value().*reg;
  }
  /// Whether the instruction completes in ring 0.
  bool runs(std::vector<std::uint8_t> code) {
    code.push_back(0xF4);
    return run(code).regs()->rip == code_at + code.size();
  }
};

// SDM 2A CPUID, tables 3-8 and 3-10: each microarchitecture's features, as far as we show them and this host has them.
TEST_F(Features, AreThoseOfTheModel) {
  const auto expect = [&](std::string_view model, std::string_view name, bool has) {
    be(model);
    const auto names = feature_names(cpuid_);
    EXPECT_EQ(std::ranges::find(names, name) != names.end(), has) << model << ' ' << name;
  };
  expect("nehalem", "sse4_2", host_has(CpuFeature::sse42));
  expect("nehalem", "xsave", false);
  expect("nehalem", "aes", false);
  expect("westmere", "aes", host_has(CpuFeature::aes));
  expect("sandybridge", "avx", host_has(CpuFeature::avx));
  expect("sandybridge", "xsaveopt", true);
  expect("sandybridge", "f16c", false);
  expect("ivybridge", "rdrand", true);
  expect("ivybridge", "avx2", false);
  expect("haswell", "avx2", host_has(CpuFeature::avx2));
  expect("haswell", "bmi2", host_has(CpuFeature::bmi2));
  expect("haswell", "smap", false);
  expect("broadwell", "smap", true);
  expect("broadwell", "xsavec", false);
  expect("skylake", "xsaves", true);
  expect("nehalem", "pcid", false);
  expect("westmere", "pcid", true);
  expect("ivybridge", "invpcid", false);
  expect("haswell", "invpcid", true);
}

// An instruction works if and only if CPUID reports it.
TEST_F(Features, AnInstructionIsThereWhereCpuidTellsOfIt) {
  struct Row {
    std::vector<std::uint8_t> code;
    std::string_view without, with;
    bool host{true};
  };
  const std::array rows{
      Row{X86("aesimc %xmm1, %xmm0"), "nehalem", "westmere", host_has(CpuFeature::aes)},
      Row{X86("vxorps %xmm1, %xmm0, %xmm0"), "nehalem", "sandybridge", host_has(CpuFeature::avx)},
      Row{X86("vcvtph2ps %xmm1, %xmm0"), "sandybridge", "ivybridge", host_has(CpuFeature::f16c)},
      Row{X86("vpxor %ymm1, %ymm0, %ymm0"), "ivybridge", "haswell", host_has(CpuFeature::avx2)},
      Row{X86("vfmadd231pd %xmm2, %xmm1, %xmm0"), "ivybridge", "haswell", host_has(CpuFeature::fma)},
      Row{X86("blsr %ecx, %eax"), "ivybridge", "haswell", host_has(CpuFeature::bmi1)},
      Row{X86("shrx %eax, %eax, %eax"), "ivybridge", "haswell", host_has(CpuFeature::bmi2)},
      Row{X86("movbe (%rsp), %eax"), "ivybridge", "haswell", host_has(CpuFeature::movbe)},
      Row{X86("adox %ecx, %eax"), "haswell", "broadwell", host_has(CpuFeature::adx)},
      Row{X86("vpmaskmovd (%rsp), %ymm1, %ymm0"), "ivybridge", "haswell", host_has(CpuFeature::avx2)},
      Row{X86("vpgatherdd %ymm2, (%rsp,%ymm1), %ymm0"), "ivybridge", "haswell", host_has(CpuFeature::avx2)},
      Row{X86("rdrand %eax"), "sandybridge", "ivybridge"},
      Row{X86("rdseed %eax"), "haswell", "broadwell"},
      Row{X86("clac"), "haswell", "broadwell"},
      Row{X86("rdfsbase %rax"), "sandybridge", "ivybridge"},
      Row{X86("xsave (%rsp)"), "westmere", "sandybridge"},
      Row{X86("xsaveopt (%rsp)"), "westmere", "sandybridge"},
      Row{X86("xsavec (%rsp)"), "broadwell", "skylake"},
      Row{X86("xsaves (%rsp)"), "broadwell", "skylake"},
      Row{X86("clflushopt (%rsp)"), "broadwell", "skylake"},
  };
  guest_.backend.registers.rsp = stack_top - 1024;
  for (const Row& row : rows) {
    const std::vector<std::uint8_t> enable = X86("mov $7, %eax; xor %edx, %edx; xor %ecx, %ecx; xsetbv");
    const bool has_xsave = row.with != "westmere";
    SCOPED_TRACE(testing::Message() << row.with << ", row " << &row - rows.data());
    guest_.backend.special.cr4 = vpmu::bit(5) | x86::cr4::OSFXSR::mask | x86::cr4::OSXSAVE::mask;
    be(row.without);
    expect_stopped_in_handler(run(row.code), x86::vector::UD);
    be(row.with);
    guest_.backend.special.cr4 =
        vpmu::bit(5) | x86::cr4::OSFXSR::mask | fsgsbase | (has_xsave ? x86::cr4::OSXSAVE::mask : 0);
    std::vector<std::uint8_t> code = has_xsave ? enable : std::vector<std::uint8_t>{};
    code.insert(code.end(), row.code.begin(), row.code.end());
    EXPECT_EQ(runs(code), row.host);
  }
  EXPECT_TRUE(lines_.empty()) << lines_[0];
}

// SDM 2A LZCNT, 2B TZCNT: on processors without them the prefix is ignored, and BSR and BSF give other results.
TEST_F(Features, LzcntAndTzcntAreBsrAndBsfWhereTheyAreNot) {
  guest_.backend.registers.rcx = 0x100;
  const std::vector<std::uint8_t> code =
      X86("lzcnt %ecx, %eax; tzcnt %ecx, %ebx; xor %edx, %edx; tzcnt %edx, %ecx; hlt");
  be("nehalem");
  EXPECT_EQ(run(code).regs()->rax, 8U);
  EXPECT_EQ(backend_->regs()->rbx, 8U);
  EXPECT_EQ(backend_->regs()->rcx, 0x100U) << "BSF of 0 leaves the register alone";
  be("haswell");
  EXPECT_EQ(run(code).regs()->rax, 23U);
  EXPECT_EQ(backend_->regs()->rbx, 8U);
  EXPECT_EQ(backend_->regs()->rcx, host_has(CpuFeature::bmi1) ? 32U : 0x100U);
}

// SDM 2A CPUID: ECX.OSXSAVE of leaf 1, and EBX of leaf DH.
TEST_F(Features, CpuidFollowsWhatTheKernelHasSwitchedOn) {
  be("skylake");
  EXPECT_EQ(after_cpuid(1, 0, &kvm_regs::rcx) & vpmu::bit(27), 0U);
  EXPECT_EQ(after_cpuid(1, 0, &kvm_regs::rdx) & vpmu::bit(9), vpmu::bit(9));
  guest_.backend.special.apic_base = 0xFEE0'0100;
  EXPECT_EQ(after_cpuid(1, 0, &kvm_regs::rdx) & vpmu::bit(9), 0U) << "the APIC is disabled";
  guest_.backend.special.apic_base = 0xFEE0'0900;
  EXPECT_EQ(after_cpuid(0xD, 0, &kvm_regs::rbx), 576U);
  EXPECT_EQ(after_cpuid(0xD, 0, &kvm_regs::rcx), host_has(CpuFeature::avx) ? 832U : 576U);
  guest_.backend.special.cr4 |= x86::cr4::OSXSAVE::mask;
  EXPECT_EQ(after_cpuid(1, 0, &kvm_regs::rcx) & vpmu::bit(27), vpmu::bit(27));
  if (!host_has(CpuFeature::avx)) return;
  EXPECT_EQ(run(X86("mov $7, %eax; xor %edx, %edx; xor %ecx, %ecx; xsetbv; mov $0xD, %eax; cpuid; hlt")).regs()->rbx,
            832U);
}

// SDM 2D XSETBV.
TEST_F(Features, OnlyWhatThereIsCanBeEnabledInXcr0) {
  be("haswell");
  const auto xsetbv = [&](std::uint64_t value, std::uint64_t index = 0) -> SoftBackend& {
    guest_.backend.registers.rax = value & 0xFFFF'FFFF;
    guest_.backend.registers.rdx = value >> 32;
    guest_.backend.registers.rcx = index;
    return run(X86("xsetbv; hlt"));
  };
  expect_stopped_in_handler(xsetbv(3), x86::vector::UD);
  guest_.backend.special.cr4 |= x86::cr4::OSXSAVE::mask;
  EXPECT_EQ(xsetbv(3).regs()->rip, code_at + 4);
  EXPECT_EQ(backend_->vectors()->xcr0, 3U);
  for (const std::uint64_t wrong : {0ULL, 2ULL, 5ULL, 9ULL, 0x1'0000'0003ULL})
    expect_stopped_in_handler(xsetbv(wrong), x86::vector::GP);
  EXPECT_EQ(backend_->vectors()->xcr0, 1U) << "as after reset";
  expect_stopped_in_handler(xsetbv(3, 1), x86::vector::GP);
  in_ring_3(X86("xsetbv"));
  SoftBackend& program = begin();
  finish(program);
  expect_stopped_in_handler(program, x86::vector::GP);
}

// SDM 2D XGETBV.
TEST_F(Features, Xcr0IsReadWhereThereIsSuchARegister) {
  const auto xgetbv = [&](std::uint64_t index) -> SoftBackend& {
    guest_.backend.registers.rcx = index;
    return run(X86("xgetbv; hlt"));
  };
  be("haswell");
  expect_stopped_in_handler(xgetbv(0), x86::vector::UD);
  guest_.backend.special.cr4 |= x86::cr4::OSXSAVE::mask;
  EXPECT_EQ(xgetbv(0).regs()->rax, 1U);
  for (const std::uint64_t wrong : {1ULL, 2ULL, 63ULL, 0xFFFF'FFFFULL})
    expect_stopped_in_handler(xgetbv(wrong), x86::vector::GP);
  be("skylake");
  EXPECT_EQ(xgetbv(1).regs()->rip, code_at + 4);
  expect_stopped_in_handler(xgetbv(2), x86::vector::GP);
}

// SDM 3A 4.10.1, 4.10.4.1; 2B MOV to control registers.
TEST_F(Features, PcidsAreEnabledInOrder) {
  be("skylake");
  const std::uint64_t root = guest_.backend.special.cr3;
  auto& rax = guest_.backend.registers.rax;
  auto& rbx = guest_.backend.registers.rbx;
  rax = guest_.backend.special.cr4 | x86::cr4::PCIDE::mask;
  rbx = root | 5 | x86::cr3::KEEPS::mask;
  ASSERT_TRUE(runs(X86("mov %rax, %cr4; mov %rbx, %cr3")));
  EXPECT_EQ(backend_->sregs()->cr3, root | 5) << "bit 63 is not stored";
  EXPECT_EQ(run(X86("mov %rax, %cr4; mov %rbx, %cr3; mov %cr3, %rax; hlt")).regs()->rax, root | 5);
  rbx = guest_.backend.special.cr0 & ~x86::cr0::PG::mask;
  expect_stopped_in_handler(run(X86("mov %rax, %cr4; mov %rbx, %cr0")), x86::vector::GP);
  guest_.backend.special.cr3 |= 8;  // PWT, without PCIDs
  expect_stopped_in_handler(run(X86("mov %rax, %cr4")), x86::vector::GP);
  guest_.backend.special.cr3 = root;
  rbx = root | x86::cr3::KEEPS::mask;
  expect_stopped_in_handler(run(X86("mov %rbx, %cr3")), x86::vector::GP);
}

// SDM 2A INVPCID: what is #GP, and with which CR4.PCIDE.
TEST_F(Features, InvpcidChecksItsOperands) {
  struct Row {
    std::uint64_t type, pcid, linear;
    bool without, with;  ///< CR4.PCIDE.
  };
  constexpr std::uint64_t not_canonical = 1ULL << 47;
  const std::array rows{Row{0, 0, 0, true, true},
                        Row{0, 5, 0x1000, false, true},
                        Row{0, 0, not_canonical, false, false},
                        Row{0, 0x1000, 0, false, false},
                        Row{1, 0, not_canonical, true, true},
                        Row{1, 5, 0, false, true},
                        Row{2, 5, not_canonical, true, true},
                        Row{3, 5, 0, true, true},
                        Row{2, 0x1000, 0, false, false},
                        Row{4, 0, 0, false, false},
                        Row{1ULL << 32, 0, 0, false, false}};
  guest_.backend.registers.rsp = stack_top - 64;
  const std::uint64_t cr4 = guest_.backend.special.cr4;
  for (const Row& row : rows)
    for (const bool pcids : {false, true}) {
      be("haswell");
      guest_.backend.special.cr4 = cr4 | (pcids ? x86::cr4::PCIDE::mask : 0);
      guest_.backend.registers.rax = row.type;
      guest_.backend.registers.rbx = row.pcid;
      guest_.backend.registers.rcx = row.linear;
      EXPECT_EQ(runs(X86("push %rcx; push %rbx; invpcid (%rsp), %rax")), pcids ? row.with : row.without)
          << row.type << ' ' << row.pcid << ' ' << row.linear << ' ' << pcids;
    }
  be("ivybridge");
  guest_.backend.registers.rax = guest_.backend.registers.rbx = guest_.backend.registers.rcx = 0;
  expect_stopped_in_handler(run(X86("push %rcx; push %rbx; invpcid (%rsp), %rax")), x86::vector::UD);
}

// SDM 2A INVPCID: type 0 is for one address, types 2 and 3 for all. The type is in RAX, the descriptor on the stack.
TEST_F(Features, InvpcidLosesWhatItNames) {
  be("haswell");
  const auto seen = [&](std::uint64_t type, std::uint64_t linear) {
    guest_.backend.registers.rax = type;
    guest_.backend.registers.r8 = linear;
    return seen_after_remapping(X86("push %r8; push $0; invpcid (%rsp), %rax"));
  };
  EXPECT_EQ(seen(0, data_at + 8), remapped);
  EXPECT_EQ(seen(0, data_at + vpmu::page_size), as_before) << "a TLB has it";
  EXPECT_EQ(seen(2, 0), remapped);
  EXPECT_EQ(seen(3, 0), remapped);
}

// SDM 3A 2.5: a bit of CR4 whose feature is not there is reserved.
TEST_F(Features, ControlBitsGoWithFeatures) {
  const auto can_set = [&](std::string_view model, std::uint64_t bits) {
    be(model);
    guest_.backend.registers.rax = guest_.backend.special.cr4 | bits;
    return runs(X86("mov %rax, %cr4"));
  };
  EXPECT_FALSE(can_set("nehalem", x86::cr4::OSXSAVE::mask));
  EXPECT_TRUE(can_set("sandybridge", x86::cr4::OSXSAVE::mask));
  EXPECT_FALSE(can_set("sandybridge", smep));
  EXPECT_FALSE(can_set("sandybridge", fsgsbase));
  EXPECT_TRUE(can_set("ivybridge", smep | fsgsbase));
  EXPECT_FALSE(can_set("haswell", smap));
  EXPECT_TRUE(can_set("broadwell", smap));
  EXPECT_FALSE(can_set("nehalem", x86::cr4::PCIDE::mask));
  EXPECT_TRUE(can_set("westmere", x86::cr4::PCIDE::mask));
  for (const unsigned bit : {0U, 1U, 6U, 11U, 12U, 13U, 14U, 22U, 24U})
    EXPECT_FALSE(can_set("skylake", vpmu::bit(bit))) << "nobody has bit " << bit;
}

// SDM 3A 4.6.1: the kernel cannot access user pages (unless STAC allows data accesses) or execute them.
TEST_F(Features, SmepAndSmapKeepTheKernelFromUserPages) {
  be("skylake");
  guest_.backend.special.cr4 |= smap | smep;
  guest_.backend.registers.rbx = user_at;
  EXPECT_TRUE(runs(X86("stac; mov (%rbx), %eax; clac")));
  SoftBackend& load = run(X86("stac; clac; mov (%rbx), %eax"));
  expect_stopped_in_handler(load, x86::vector::PF);
  EXPECT_EQ(load.sregs()->cr2, user_at);
  SoftBackend& jump = run(X86("jmp *%rbx"));
  expect_stopped_in_handler(jump, x86::vector::PF);
  EXPECT_EQ(jump.sregs()->cr2, user_at);
}

// SDM 3A 2.5, SDM 2A tables 2-15 to 2-28: whether instructions of a disabled unit raise #UD or #NM.
TEST_F(Features, UnitsThatAreOffRaiseUdOrNm) {
  be("skylake");
  const std::vector<std::uint8_t> fld1 = X86("fld1"), paddd = X86("paddd %xmm1, %xmm0"),
                                  vaddps = X86("vaddps %ymm1, %ymm1, %ymm0"), xsave = X86("xsave (%rsp)"),
                                  maskmovdqu = X86("maskmovdqu %xmm1, %xmm0"), maskmovq = X86("maskmovq %mm1, %mm0"),
                                  paddd_of_mmx = X86("paddd %mm1, %mm0"), emms = X86("emms");
  const auto raised = [&](const std::vector<std::uint8_t>& code, std::uint64_t cr0, std::uint64_t cr4) {
    guest_.backend.special.cr0 = FakeGuest::cr0_paging | cr0;
    guest_.backend.special.cr4 = vpmu::bit(5) | cr4;
    return (run(code).regs()->rip - handler_of(0)) / 16;
  };
  for (const std::uint64_t off : {x86::cr0::TS::mask, x86::cr0::EM::mask})
    EXPECT_EQ(raised(fld1, off, x86::cr4::OSFXSR::mask), x86::vector::NM);
  for (const auto& code : {maskmovq, paddd_of_mmx, emms}) {
    EXPECT_EQ(raised(code, x86::cr0::TS::mask, 0), x86::vector::NM);
    EXPECT_EQ(raised(code, x86::cr0::EM::mask | x86::cr0::TS::mask, 0), x86::vector::UD);
  }
  for (const auto& code : {paddd, maskmovdqu}) {
    EXPECT_EQ(raised(code, x86::cr0::TS::mask, x86::cr4::OSFXSR::mask), x86::vector::NM);
    EXPECT_EQ(raised(code, x86::cr0::EM::mask | x86::cr0::TS::mask, x86::cr4::OSFXSR::mask), x86::vector::UD);
    EXPECT_EQ(raised(code, x86::cr0::TS::mask, 0), x86::vector::UD);
  }
  EXPECT_EQ(raised(xsave, x86::cr0::TS::mask, x86::cr4::OSXSAVE::mask), x86::vector::NM);
  EXPECT_EQ(raised(xsave, x86::cr0::TS::mask, 0), x86::vector::UD);
  if (!host_has(CpuFeature::avx)) return;
  EXPECT_EQ(raised(vaddps, 0, x86::cr4::OSXSAVE::mask), x86::vector::UD) << "XCR0 has not enabled it";
  EXPECT_EQ(raised(vaddps, 0, 0), x86::vector::UD);
  EXPECT_TRUE(lines_.empty()) << lines_[0];
}

// A vCPU without KVM runs the same each time, and so must its random numbers be.
TEST_F(Features, RandomNumbersAreTheSameInEachRun) {
  be("broadwell");
  const std::vector<std::uint8_t> code = X86("clc; rdrand %rax; setb %cl; rdseed %rbx; rdrand %edx; hlt");
  const auto first = run(code).regs();
  EXPECT_EQ(first->rcx & 0xFF, 1U) << "CF: there was one";
  EXPECT_NE(first->rax, first->rbx);
  EXPECT_NE(first->rax >> 32, 0U);
  EXPECT_EQ(first->rdx >> 32, 0U);
  const auto second = run(code).regs();
  EXPECT_EQ(first->rax, second->rax);
  EXPECT_EQ(first->rbx, second->rbx);
  EXPECT_EQ(first->rdx, second->rdx);
}

// SDM 2B RDFSBASE, 2D WRGSBASE.
TEST_F(Features, BasesAreReadAndWrittenByPrograms) {
  be("ivybridge");
  guest_.backend.special.cr4 |= fsgsbase;
  guest_.backend.registers.rax = 0x7FFF'1234'5678;
  in_ring_3(X86("wrgsbase %rax; rdgsbase %rbx; rdgsbase %ecx; wrfsbase %eax; int3"));
  SoftBackend& backend = begin();
  finish(backend);
  expect_stopped_in_handler(backend, x86::vector::BP);
  EXPECT_EQ(backend.regs()->rbx, 0x7FFF'1234'5678U);
  EXPECT_EQ(backend.regs()->rcx, 0x1234'5678U);
  EXPECT_EQ(backend.sregs()->gs.base, 0x7FFF'1234'5678U);
  EXPECT_EQ(backend.sregs()->fs.base, 0x1234'5678U);
  guest_.backend.registers.rax = 0x8000'0000'0000;
  in_ring_3(X86("wrgsbase %rax"));
  SoftBackend& wrong = begin();
  finish(wrong);
  expect_stopped_in_handler(wrong, x86::vector::GP);
}

// SDM 2B RDTSCP; SDM 3C table 35-2: IA32_TSC_AUX is there with it, and IA32_XSS with XSAVES.
TEST_F(Features, MsrsGoWithFeatures) {
  be("skylake");
  guest_.store_code(code_at, X86("rdtscp; hlt"));
  SoftBackend& backend = begin();
  ASSERT_TRUE(backend.set_msr(0xC000'0103, 0x42));
  EXPECT_TRUE(backend.msr(0xDA0));
  finish(backend);
  EXPECT_EQ(backend.regs()->rcx, 0x42U);
  be("haswell");
  EXPECT_FALSE(begin().msr(0xDA0));
  cpuid_ = {};
  EXPECT_FALSE(begin().msr(0xC000'0103));
}

// SDM 3B 17.2.4: a data breakpoint of the guest's own, at an element that a gather loads and at one that it does not.
TEST_F(Features, GathersMeetTheGuestsDataBreakpoints) {
  if (!host_has(CpuFeature::avx2)) GTEST_SKIP() << "no AVX2 here";
  be("haswell");
  guest_.backend.special.cr4 |= x86::cr4::OSFXSR::mask | x86::cr4::OSXSAVE::mask;
  guest_.backend.registers.rbx = data_at;
  guest_.store_code(code_at, X86("vpgatherdd %ymm1, (%rbx,%ymm2,4), %ymm0; hlt"));
  vpmu::exec::VectorState state;
  state.xcr0 = 7;
  const std::array<std::int32_t, 4> mask{-1, -1, 0, -1}, index{0, 7, 9, -1 + 64};
  std::memcpy(state.legacy.data() + vpmu::exec::VectorState::xmm_at + 16, mask.data(), sizeof mask);
  std::memcpy(state.legacy.data() + vpmu::exec::VectorState::xmm_at + 32, index.data(), sizeof index);
  for (const auto& [element, hit] : {std::pair{7U, true}, {63U, true}, {9U, false}, {8U, false}}) {
    SoftBackend& backend = begin();
    ASSERT_TRUE(backend.set_vectors(state));
    kvm_debugregs debug{};
    debug.db[0] = data_at + 4ULL * element;
    debug.dr7 = 0x400 | 1 | 0x3U << 16 | 0x3U << 18;  // L0, reads and writes, four bytes
    ASSERT_TRUE(backend.set_debugregs(debug));
    finish(backend);
    EXPECT_EQ(backend.regs()->rip, hit ? handler_of(1) + 1 : code_at + 7) << element;
    EXPECT_EQ(backend.debugregs()->dr6 & 0xF, hit ? 1U : 0U) << element;
  }
}

// Registers decide which bytes these instructions access. The first unmapped one faults, and nothing is changed.
TEST_F(Features, WhatReachesAPartFaultsWhereItDoes) {
  if (!host_has(CpuFeature::avx2)) GTEST_SKIP() << "no AVX2 here";
  be("haswell");
  guest_.backend.special.cr4 |= x86::cr4::OSFXSR::mask | x86::cr4::OSXSAVE::mask;
  const auto runs_with = [&](const std::vector<std::uint8_t>& code,
                             const vpmu::exec::VectorState& state) -> SoftBackend& {
    guest_.store_code(code_at, code);
    SoftBackend& backend = begin();
    EXPECT_TRUE(backend.set_vectors(state));
    finish(backend);
    return backend;
  };
  vpmu::exec::VectorState state;
  state.xcr0 = 7;
  const std::uint64_t end = data_at + vpmu::page_size;
  const auto set = [&](unsigned number, const std::array<std::int32_t, 8>& words) {
    std::memcpy(state.legacy.data() + vpmu::exec::VectorState::xmm_at + 16 * number, words.data(), 16);
    std::memcpy(state.upper[number].data(), words.data() + 4, 16);
  };
  guest_.backend.registers.rbx = end - 16;
  const std::vector<std::uint8_t> vmaskmov = X86("vpmaskmovd (%rbx), %ymm1, %ymm0; hlt");
  const std::vector<std::uint8_t> vgather = X86("vpgatherdd %ymm1, (%rbx,%ymm2,4), %ymm0; hlt");
  const std::vector<std::uint8_t> vmaskstore = X86("vpmaskmovd %ymm0, %ymm1, (%rbx); hlt");
  set(1, {-1, -1, -1, -1, 0, 0, 0, 0});
  EXPECT_EQ(runs_with(vmaskmov, state).regs()->rip, code_at + vmaskmov.size()) << "what is masked off may be nowhere";
  set(1, {-1, -1, -1, -1, 0, -1, 0, 0});
  for (const auto& code : {vmaskmov, vmaskstore}) {
    SoftBackend& backend = runs_with(code, state);
    expect_stopped_in_handler(backend, x86::vector::PF);
    EXPECT_EQ(backend.sregs()->cr2, end);
    EXPECT_EQ(pushed(5), code == vmaskstore ? 2U : 0U) << "the error code: W";
  }
  set(2, {0, 1, 2, 3, 1000, 1001, -2, 0});
  set(1, {-1, -1, -1, -1, 0, 0, -1, 0});
  EXPECT_EQ(runs_with(vgather, state).regs()->rip, code_at + vgather.size());
  set(1, {-1, 0, 0, 0, 0, -1, 0, 0});
  SoftBackend& backend = runs_with(vgather, state);
  expect_stopped_in_handler(backend, x86::vector::PF);
  EXPECT_EQ(backend.sregs()->cr2, end - 16 + 4 * 1001);
  EXPECT_EQ(backend.vectors()->upper, state.upper);
  EXPECT_EQ(backend.vectors()->legacy, state.legacy);
  // XSAVE of an area of 832 bytes, at the last 576 bytes of a page.
  guest_.backend.registers.rbx = end - 576;
  guest_.backend.registers.rax = 7;
  const std::vector<std::uint8_t> xsave = X86("xsave (%rbx); hlt");
  SoftBackend& saved = runs_with(xsave, state);
  expect_stopped_in_handler(saved, x86::vector::PF);
  EXPECT_EQ(saved.sregs()->cr2, end);
  guest_.backend.registers.rax = 3;
  EXPECT_EQ(runs_with(xsave, state).regs()->rip, code_at + xsave.size());
  guest_.backend.registers.rbx = end - 568;
  expect_stopped_in_handler(runs_with(xsave, state), x86::vector::GP);
}

// SDM 3A 6.15, interrupts 16 and 19; SDM 1 8.7, 11.5.2: SSE faults at the instruction, x87 at the next one that waits.
TEST_F(Features, FloatingPointExceptionsThatAreUnmasked) {
  be("skylake");
  using vpmu::exec::VectorState;
  constexpr std::uint32_t flag = 4, mask = flag << 7;  // ZE and ZM of MXCSR; FCW has ZM where MXCSR has ZE
  const std::vector<std::uint8_t> divss = X86("divss %xmm1, %xmm0; hlt");
  const std::vector<std::uint8_t> fdiv = X86("fld1; fldz; fdivrp %st, %st(1); fnstsw %ax; fld1; hlt");
  constexpr std::uint64_t waits_at = 8;
  VectorState state;
  const auto one = std::bit_cast<std::uint32_t>(1.0F);  // compared by its bytes
  std::memcpy(state.legacy.data() + VectorState::xmm_at, &one, sizeof one);
  const auto runs = [&](const std::vector<std::uint8_t>& code, std::uint64_t cr4) -> SoftBackend& {
    guest_.backend.special.cr4 = x86::cr4::PAE::mask | x86::cr4::OSFXSR::mask | cr4;
    guest_.store_code(code_at, code);
    SoftBackend& backend = begin();
    EXPECT_TRUE(backend.set_vectors(state));
    finish(backend);
    return backend;
  };
  constexpr unsigned rip = 4;
  EXPECT_EQ(runs(divss, x86::cr4::OSXMMEXCPT::mask).regs()->rip, code_at + divss.size()) << "masked";
  EXPECT_EQ(runs(fdiv, 0).regs()->rip, code_at + fdiv.size());
  state.set_mxcsr(VectorState::initial_mxcsr & ~mask);
  state.set_fcw(VectorState::initial_fcw & ~std::uint16_t{flag});
  SoftBackend& sse = runs(divss, x86::cr4::OSXMMEXCPT::mask);
  expect_stopped_in_handler(sse, x86::vector::XM);
  EXPECT_EQ(pushed(rip), code_at);
  EXPECT_EQ(sse.vectors()->mxcsr(), state.mxcsr() | flag);
  EXPECT_EQ(std::memcmp(sse.vectors()->legacy.data() + VectorState::xmm_at, &one, sizeof one), 0) << "no result";
  expect_stopped_in_handler(runs(divss, 0), x86::vector::UD);
  SoftBackend& x87 = runs(fdiv, 0);
  expect_stopped_in_handler(x87, x86::vector::MF);
  EXPECT_EQ(pushed(rip), code_at + waits_at);
  EXPECT_EQ(x87.regs()->rax & 0x80FF, 0x8080 | flag) << "B, ES and ZE";
  EXPECT_TRUE(lines_.empty()) << lines_[0];
}

}  // namespace
}  // namespace vmm::test
