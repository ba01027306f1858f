// The features of a vCPU without KVM are those of its model: instructions, registers, and faults for what it lacks.
#include <array>

#include "exec/host_form.hpp"
#include "fakes/model_cpuid.hpp"
#include "soft/system_fixture.hpp"

namespace vmm::test {
namespace {

using vpmu::exec::CpuFeature;
using vpmu::exec::host_has;

constexpr std::uint64_t osfxsr = vpmu::bit(9), fsgsbase = vpmu::bit(16), osxsave = vpmu::bit(18), smep = vpmu::bit(20),
                        smap = vpmu::bit(21), cr0_em = vpmu::bit(2);

/// vCPUs with the CPUID of a model.
class Features : public SystemInstructions {
 protected:
  void be(std::string_view model) {
    ASSERT_NE(find_machine_model(model), nullptr);
    cpuid_ = cpuid_of(model);
  }
  std::uint64_t after_cpuid(std::uint64_t leaf, std::uint64_t subleaf, __u64 kvm_regs::* reg) {
    guest_.port.registers.rax = leaf;
    guest_.port.registers.rcx = subleaf;
    return run({0x0F, 0xA2, 0xF4}).regs().value().*reg;
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
  expect("skylake", "pcid", false);
}

// An instruction works if and only if CPUID reports it.
TEST_F(Features, AnInstructionIsThereWhereCpuidTellsOfIt) {
  struct Row {
    std::vector<std::uint8_t> code;
    std::string_view without, with;
    bool host{true};
  };
  const std::array rows{
      Row{{0x66, 0x0F, 0x38, 0xDB, 0xC1}, "nehalem", "westmere", host_has(CpuFeature::aes)},          // aesimc
      Row{{0xC5, 0xF8, 0x57, 0xC1}, "nehalem", "sandybridge", host_has(CpuFeature::avx)},             // vxorps
      Row{{0xC4, 0xE2, 0x79, 0x13, 0xC1}, "sandybridge", "ivybridge", host_has(CpuFeature::f16c)},    // vcvtph2ps
      Row{{0xC5, 0xFD, 0xEF, 0xC1}, "ivybridge", "haswell", host_has(CpuFeature::avx2)},              // vpxor %ymm
      Row{{0xC4, 0xE2, 0xF1, 0xB8, 0xC2}, "ivybridge", "haswell", host_has(CpuFeature::fma)},         // vfmadd231pd
      Row{{0xC4, 0xE2, 0x78, 0xF3, 0xC9}, "ivybridge", "haswell", host_has(CpuFeature::bmi1)},        // blsr
      Row{{0xC4, 0xE2, 0x7B, 0xF7, 0xC0}, "ivybridge", "haswell", host_has(CpuFeature::bmi2)},        // shrx
      Row{{0x0F, 0x38, 0xF0, 0x04, 0x24}, "ivybridge", "haswell", host_has(CpuFeature::movbe)},       // movbe
      Row{{0xF3, 0x0F, 0x38, 0xF6, 0xC1}, "haswell", "broadwell", host_has(CpuFeature::adx)},         // adox
      Row{{0xC4, 0xE2, 0x75, 0x8C, 0x04, 0x24}, "ivybridge", "haswell", host_has(CpuFeature::avx2)},  // vpmaskmovd
      Row{{0xC4, 0xE2, 0x6D, 0x90, 0x04, 0x0C}, "ivybridge", "haswell", host_has(CpuFeature::avx2)},  // vpgatherdd
      Row{{0x0F, 0xC7, 0xF0}, "sandybridge", "ivybridge"},                                            // rdrand
      Row{{0x0F, 0xC7, 0xF8}, "haswell", "broadwell"},                                                // rdseed
      Row{{0x0F, 0x01, 0xCA}, "haswell", "broadwell"},                                                // clac
      Row{{0xF3, 0x48, 0x0F, 0xAE, 0xC0}, "sandybridge", "ivybridge"},                                // rdfsbase
      Row{{0x0F, 0xAE, 0x24, 0x24}, "westmere", "sandybridge"},                                       // xsave
      Row{{0x0F, 0xAE, 0x34, 0x24}, "westmere", "sandybridge"},                                       // xsaveopt
      Row{{0x0F, 0xC7, 0x24, 0x24}, "broadwell", "skylake"},                                          // xsavec
      Row{{0x0F, 0xC7, 0x2C, 0x24}, "broadwell", "skylake"},                                          // xsaves
      Row{{0x66, 0x0F, 0xAE, 0x3C, 0x24}, "broadwell", "skylake"},                                    // clflushopt
  };
  guest_.port.registers.rsp = stack_top - 1024;
  for (const Row& row : rows) {
    // mov $7, %eax; xor %edx, %edx; xor %ecx, %ecx; xsetbv
    const std::vector<std::uint8_t> enable{0xB8, 7, 0, 0, 0, 0x31, 0xD2, 0x31, 0xC9, 0x0F, 0x01, 0xD1};
    const bool has_xsave = row.with != "westmere";
    SCOPED_TRACE(testing::Message() << row.with << ", row " << &row - rows.data());
    guest_.port.special.cr4 = vpmu::bit(5) | osfxsr | osxsave;
    be(row.without);
    expect_stopped_in_handler(run(row.code), vector_ud);
    be(row.with);
    guest_.port.special.cr4 = vpmu::bit(5) | osfxsr | fsgsbase | (has_xsave ? osxsave : 0);
    std::vector<std::uint8_t> code = has_xsave ? enable : std::vector<std::uint8_t>{};
    code.insert(code.end(), row.code.begin(), row.code.end());
    EXPECT_EQ(runs(code), row.host);
  }
  EXPECT_TRUE(lines_.empty()) << lines_[0];
}

// SDM 2A LZCNT, 2B TZCNT: on processors without them the prefix is ignored, and BSR and BSF give other results.
TEST_F(Features, LzcntAndTzcntAreBsrAndBsfWhereTheyAreNot) {
  guest_.port.registers.rcx = 0x100;
  const std::vector<std::uint8_t> code{
      0xF3, 0x0F, 0xBD, 0xC1, 0xF3, 0x0F, 0xBC, 0xD9,
      0x31, 0xD2, 0xF3, 0x0F, 0xBC, 0xCA, 0xF4};  // lzcnt %ecx, %eax; tzcnt %ecx, %ebx; of 0: %ecx
  be("nehalem");
  EXPECT_EQ(run(code).regs()->rax, 8U);
  EXPECT_EQ(port_->regs()->rbx, 8U);
  EXPECT_EQ(port_->regs()->rcx, 0x100U) << "BSF of 0 leaves the register alone";
  be("haswell");
  EXPECT_EQ(run(code).regs()->rax, 23U);
  EXPECT_EQ(port_->regs()->rbx, 8U);
  EXPECT_EQ(port_->regs()->rcx, host_has(CpuFeature::bmi1) ? 32U : 0x100U);
}

// SDM 2A CPUID: ECX.OSXSAVE of leaf 1, and EBX of leaf DH.
TEST_F(Features, CpuidFollowsWhatTheKernelHasSwitchedOn) {
  be("skylake");
  EXPECT_EQ(after_cpuid(1, 0, &kvm_regs::rcx) & vpmu::bit(27), 0U);
  EXPECT_EQ(after_cpuid(1, 0, &kvm_regs::rdx) & vpmu::bit(9), vpmu::bit(9));
  guest_.port.special.apic_base = 0xFEE0'0100;
  EXPECT_EQ(after_cpuid(1, 0, &kvm_regs::rdx) & vpmu::bit(9), 0U) << "the APIC is disabled";
  guest_.port.special.apic_base = 0xFEE0'0900;
  EXPECT_EQ(after_cpuid(0xD, 0, &kvm_regs::rbx), 576U);
  EXPECT_EQ(after_cpuid(0xD, 0, &kvm_regs::rcx), host_has(CpuFeature::avx) ? 832U : 576U);
  guest_.port.special.cr4 |= osxsave;
  EXPECT_EQ(after_cpuid(1, 0, &kvm_regs::rcx) & vpmu::bit(27), vpmu::bit(27));
  if (!host_has(CpuFeature::avx)) return;
  // mov $7, %eax; xor %edx, %edx; xor %ecx, %ecx; xsetbv; mov $0xD, %eax; cpuid; hlt
  EXPECT_EQ(run({0xB8, 7, 0, 0, 0, 0x31, 0xD2, 0x31, 0xC9, 0x0F, 0x01, 0xD1, 0xB8, 0x0D, 0, 0, 0, 0x0F, 0xA2, 0xF4})
                .regs()
                ->rbx,
            832U);
}

// SDM 2D XSETBV.
TEST_F(Features, OnlyWhatThereIsCanBeEnabledInXcr0) {
  be("haswell");
  const auto xsetbv = [&](std::uint64_t value, std::uint64_t index = 0) -> SoftPort& {
    guest_.port.registers.rax = value & 0xFFFF'FFFF;
    guest_.port.registers.rdx = value >> 32;
    guest_.port.registers.rcx = index;
    return run({0x0F, 0x01, 0xD1, 0xF4});
  };
  expect_stopped_in_handler(xsetbv(3), vector_ud);
  guest_.port.special.cr4 |= osxsave;
  EXPECT_EQ(xsetbv(3).regs()->rip, code_at + 4);
  EXPECT_EQ(port_->vectors()->xcr0, 3U);
  for (const std::uint64_t wrong : {0ULL, 2ULL, 5ULL, 9ULL, 0x1'0000'0003ULL})
    expect_stopped_in_handler(xsetbv(wrong), vector_gp);
  EXPECT_EQ(port_->vectors()->xcr0, 1U) << "as after reset";
  expect_stopped_in_handler(xsetbv(3, 1), vector_gp);
  in_ring_3({0x0F, 0x01, 0xD1});
  SoftPort& program = begin();
  finish(program);
  expect_stopped_in_handler(program, vector_gp);
}

// SDM 2D XGETBV.
TEST_F(Features, Xcr0IsReadWhereThereIsSuchARegister) {
  const auto xgetbv = [&](std::uint64_t index) -> SoftPort& {
    guest_.port.registers.rcx = index;
    return run({0x0F, 0x01, 0xD0, 0xF4});
  };
  be("haswell");
  expect_stopped_in_handler(xgetbv(0), vector_ud);
  guest_.port.special.cr4 |= osxsave;
  EXPECT_EQ(xgetbv(0).regs()->rax, 1U);
  for (const std::uint64_t wrong : {1ULL, 2ULL, 63ULL, 0xFFFF'FFFFULL})
    expect_stopped_in_handler(xgetbv(wrong), vector_gp);
  be("skylake");
  EXPECT_EQ(xgetbv(1).regs()->rip, code_at + 4);
  expect_stopped_in_handler(xgetbv(2), vector_gp);
}

// SDM 3A 2.5: a bit of CR4 whose feature is not there is reserved.
TEST_F(Features, ControlBitsGoWithFeatures) {
  const auto can_set = [&](std::string_view model, std::uint64_t bits) {
    be(model);
    guest_.port.registers.rax = guest_.port.special.cr4 | bits;
    return runs({0x0F, 0x22, 0xE0});  // mov %rax, %cr4
  };
  EXPECT_FALSE(can_set("nehalem", osxsave));
  EXPECT_TRUE(can_set("sandybridge", osxsave));
  EXPECT_FALSE(can_set("sandybridge", smep));
  EXPECT_FALSE(can_set("sandybridge", fsgsbase));
  EXPECT_TRUE(can_set("ivybridge", smep | fsgsbase));
  EXPECT_FALSE(can_set("haswell", smap));
  EXPECT_TRUE(can_set("broadwell", smap));
  for (const unsigned bit : {0U, 1U, 6U, 11U, 12U, 13U, 14U, 17U, 22U, 24U})
    EXPECT_FALSE(can_set("skylake", vpmu::bit(bit))) << "nobody has bit " << bit;
}

// SDM 3A 4.6.1: the kernel cannot access user pages (unless STAC allows data accesses) or execute them.
TEST_F(Features, SmepAndSmapKeepTheKernelFromUserPages) {
  be("skylake");
  guest_.port.special.cr4 |= smap | smep;
  guest_.port.registers.rbx = user_at;
  EXPECT_TRUE(runs({0x0F, 0x01, 0xCB, 0x8B, 0x03, 0x0F, 0x01, 0xCA}));  // stac; mov (%rbx), %eax; clac
  SoftPort& load = run({0x0F, 0x01, 0xCB, 0x0F, 0x01, 0xCA, 0x8B, 0x03});
  expect_stopped_in_handler(load, vector_pf);
  EXPECT_EQ(load.sregs()->cr2, user_at);
  SoftPort& jump = run({0xFF, 0xE3});  // jmp *%rbx
  expect_stopped_in_handler(jump, vector_pf);
  EXPECT_EQ(jump.sregs()->cr2, user_at);
}

// SDM 3A 2.5, SDM 2A tables 2-15 to 2-28: whether instructions of a disabled unit raise #UD or #NM.
TEST_F(Features, UnitsThatAreOffRaiseUdOrNm) {
  be("skylake");
  const std::vector<std::uint8_t> fld1{0xD9, 0xE8}, paddd{0x66, 0x0F, 0xFE, 0xC1}, vaddps{0xC5, 0xF4, 0x58, 0xC1},
      xsave{0x0F, 0xAE, 0x24, 0x24}, maskmovdqu{0x66, 0x0F, 0xF7, 0xC1};
  const auto raised = [&](const std::vector<std::uint8_t>& code, std::uint64_t cr0, std::uint64_t cr4) {
    guest_.port.special.cr0 = FakeGuest::cr0_paging | cr0;
    guest_.port.special.cr4 = vpmu::bit(5) | cr4;
    return (run(code).regs()->rip - handler_of(0)) / 16;
  };
  for (const std::uint64_t off : {cr0_ts, cr0_em}) EXPECT_EQ(raised(fld1, off, osfxsr), vector_nm);
  for (const auto& code : {paddd, maskmovdqu}) {
    EXPECT_EQ(raised(code, cr0_ts, osfxsr), vector_nm);
    EXPECT_EQ(raised(code, cr0_em | cr0_ts, osfxsr), vector_ud);
    EXPECT_EQ(raised(code, cr0_ts, 0), vector_ud);
  }
  EXPECT_EQ(raised(xsave, cr0_ts, osxsave), vector_nm);
  EXPECT_EQ(raised(xsave, cr0_ts, 0), vector_ud);
  if (!host_has(CpuFeature::avx)) return;
  EXPECT_EQ(raised(vaddps, 0, osxsave), vector_ud) << "XCR0 has not enabled it";
  EXPECT_EQ(raised(vaddps, 0, 0), vector_ud);
  EXPECT_TRUE(lines_.empty()) << lines_[0];
}

// A vCPU without KVM runs the same each time, and so must its random numbers be.
TEST_F(Features, RandomNumbersAreTheSameInEachRun) {
  be("broadwell");
  const std::vector<std::uint8_t> code{
      0xF8, 0x48, 0x0F, 0xC7, 0xF0, 0x0F, 0x92, 0xC1,
      0x48, 0x0F, 0xC7, 0xFB, 0x0F, 0xC7, 0xF2, 0xF4};  // clc; rdrand %rax; setb %cl; rdseed %rbx; rdrand %edx
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
  guest_.port.special.cr4 |= fsgsbase;
  guest_.port.registers.rax = 0x7FFF'1234'5678;
  in_ring_3({0xF3, 0x48, 0x0F, 0xAE, 0xD8, 0xF3, 0x48, 0x0F, 0xAE, 0xCB, 0xF3, 0x0F, 0xAE, 0xC9, 0xF3, 0x0F, 0xAE, 0xD0,
             0xCC});  // wrgsbase %rax; rdgsbase %rbx; rdgsbase %ecx; wrfsbase %eax
  SoftPort& port = begin();
  finish(port);
  expect_stopped_in_handler(port, vector_bp);
  EXPECT_EQ(port.regs()->rbx, 0x7FFF'1234'5678U);
  EXPECT_EQ(port.regs()->rcx, 0x1234'5678U);
  EXPECT_EQ(port.sregs()->gs.base, 0x7FFF'1234'5678U);
  EXPECT_EQ(port.sregs()->fs.base, 0x1234'5678U);
  guest_.port.registers.rax = 0x8000'0000'0000;
  in_ring_3({0xF3, 0x48, 0x0F, 0xAE, 0xD8});
  SoftPort& wrong = begin();
  finish(wrong);
  expect_stopped_in_handler(wrong, vector_gp);
}

// SDM 2B RDTSCP; SDM 3C table 35-2: IA32_TSC_AUX is there with it, and IA32_XSS with XSAVES.
TEST_F(Features, MsrsGoWithFeatures) {
  be("skylake");
  guest_.store_code(code_at, {0x0F, 0x01, 0xF9, 0xF4});
  SoftPort& port = begin();
  ASSERT_TRUE(port.set_msr(0xC000'0103, 0x42));
  EXPECT_TRUE(port.msr(0xDA0));
  finish(port);
  EXPECT_EQ(port.regs()->rcx, 0x42U);
  be("haswell");
  EXPECT_FALSE(begin().msr(0xDA0));
  cpuid_ = {};
  EXPECT_FALSE(begin().msr(0xC000'0103));
}

// SDM 3B 17.2.4: a data breakpoint of the guest's own, at an element that a gather loads and at one that it does not.
TEST_F(Features, GathersMeetTheGuestsDataBreakpoints) {
  if (!host_has(CpuFeature::avx2)) GTEST_SKIP() << "no AVX2 here";
  be("haswell");
  guest_.port.special.cr4 |= osfxsr | osxsave;
  guest_.port.registers.rbx = data_at;
  guest_.store_code(code_at, {0xC4, 0xE2, 0x75, 0x90, 0x04, 0x93, 0xF4});  // vpgatherdd %ymm1, (%rbx,%ymm2,4), %ymm0
  vpmu::exec::VectorState state;
  state.xcr0 = 7;
  const std::array<std::int32_t, 4> mask{-1, -1, 0, -1}, index{0, 7, 9, -1 + 64};
  std::memcpy(state.legacy.data() + vpmu::exec::VectorState::xmm_at + 16, mask.data(), sizeof mask);
  std::memcpy(state.legacy.data() + vpmu::exec::VectorState::xmm_at + 32, index.data(), sizeof index);
  for (const auto& [element, hit] : {std::pair{7U, true}, {63U, true}, {9U, false}, {8U, false}}) {
    SoftPort& port = begin();
    ASSERT_TRUE(port.set_vectors(state));
    kvm_debugregs debug{};
    debug.db[0] = data_at + 4ULL * element;
    debug.dr7 = 0x400 | 1 | 0x3U << 16 | 0x3U << 18;  // L0, reads and writes, four bytes
    ASSERT_TRUE(port.set_debugregs(debug));
    finish(port);
    EXPECT_EQ(port.regs()->rip, hit ? handler_of(1) + 1 : code_at + 7) << element;
    EXPECT_EQ(port.debugregs()->dr6 & 0xF, hit ? 1U : 0U) << element;
  }
}

// Registers decide which bytes these instructions access. The first unmapped one faults, and nothing is changed.
TEST_F(Features, WhatReachesAPartFaultsWhereItDoes) {
  if (!host_has(CpuFeature::avx2)) GTEST_SKIP() << "no AVX2 here";
  be("haswell");
  guest_.port.special.cr4 |= osfxsr | osxsave;
  const auto runs_with = [&](const std::vector<std::uint8_t>& code, const vpmu::exec::VectorState& state) -> SoftPort& {
    guest_.store_code(code_at, code);
    SoftPort& port = begin();
    EXPECT_TRUE(port.set_vectors(state));
    finish(port);
    return port;
  };
  vpmu::exec::VectorState state;
  state.xcr0 = 7;
  const std::uint64_t end = data_at + vpmu::page_size;
  const auto set = [&](unsigned number, const std::array<std::int32_t, 8>& words) {
    std::memcpy(state.legacy.data() + vpmu::exec::VectorState::xmm_at + 16 * number, words.data(), 16);
    std::memcpy(state.upper[number].data(), words.data() + 4, 16);
  };
  guest_.port.registers.rbx = end - 16;
  const std::vector<std::uint8_t> vmaskmov{0xC4, 0xE2, 0x75, 0x8C, 0x03, 0xF4};  // vpmaskmovd (%rbx), %ymm1, %ymm0
  const std::vector<std::uint8_t> vgather{0xC4, 0xE2, 0x75, 0x90,
                                          0x04, 0x93, 0xF4};  // vpgatherdd %ymm1, (%rbx,%ymm2,4), %ymm0
  const std::vector<std::uint8_t> vmaskstore{0xC4, 0xE2, 0x75, 0x8E, 0x03, 0xF4};  // vpmaskmovd %ymm0, %ymm1, (%rbx)
  set(1, {-1, -1, -1, -1, 0, 0, 0, 0});
  EXPECT_EQ(runs_with(vmaskmov, state).regs()->rip, code_at + vmaskmov.size()) << "what is masked off may be nowhere";
  set(1, {-1, -1, -1, -1, 0, -1, 0, 0});
  for (const auto& code : {vmaskmov, vmaskstore}) {
    SoftPort& port = runs_with(code, state);
    expect_stopped_in_handler(port, vector_pf);
    EXPECT_EQ(port.sregs()->cr2, end);
    EXPECT_EQ(pushed(5), code == vmaskstore ? 2U : 0U) << "the error code: W";
  }
  set(2, {0, 1, 2, 3, 1000, 1001, -2, 0});
  set(1, {-1, -1, -1, -1, 0, 0, -1, 0});
  EXPECT_EQ(runs_with(vgather, state).regs()->rip, code_at + vgather.size());
  set(1, {-1, 0, 0, 0, 0, -1, 0, 0});
  SoftPort& port = runs_with(vgather, state);
  expect_stopped_in_handler(port, vector_pf);
  EXPECT_EQ(port.sregs()->cr2, end - 16 + 4 * 1001);
  EXPECT_EQ(port.vectors()->upper, state.upper);
  EXPECT_EQ(port.vectors()->legacy, state.legacy);
  // XSAVE of an area of 832 bytes, at the last 576 bytes of a page.
  guest_.port.registers.rbx = end - 576;
  guest_.port.registers.rax = 7;
  const std::vector<std::uint8_t> xsave{0x0F, 0xAE, 0x23, 0xF4};
  SoftPort& saved = runs_with(xsave, state);
  expect_stopped_in_handler(saved, vector_pf);
  EXPECT_EQ(saved.sregs()->cr2, end);
  guest_.port.registers.rax = 3;
  EXPECT_EQ(runs_with(xsave, state).regs()->rip, code_at + xsave.size());
  guest_.port.registers.rbx = end - 568;
  expect_stopped_in_handler(runs_with(xsave, state), vector_gp);
}

}  // namespace
}  // namespace vmm::test
