// Events of loads and stores, on every model: MEM_UOPS_RETIRED of Sandy Bridge to Broadwell counts micro-operations,
// MEM_INST_RETIRED of the others instructions. SDM 3B tables 19-5 to 19-29.
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/fake_guest.hpp"
#include "fakes/guest_code.hpp"
#include "fakes/model_cpuid.hpp"
#include "pmu/pmu_vcpu.hpp"
#include "soft/soft_backend.hpp"
#include "vpmu/msr.hpp"

namespace vmm::test::memory_uops {
namespace {

constexpr std::uint64_t code = 0x40'0000, stack = 0x50'0000, data = 0x60'0000, tables = 0x70'0000;

/// What an instruction does to memory: micro-operations of each kind.
struct Case {
  std::string_view name;
  std::vector<std::uint8_t> code;
  unsigned loads{}, stores{};
  bool narrow{};  ///< 32-bit code.
  bool avx2{};    ///< For models with AVX2, if this CPU has it.
};

// RSI and RDI are in `data`, whose bytes are all 0; RCX is 10 and AL is 0. SDM 2A CMPS, ENTER, IRET, 2B PUSHA, POPA.
const std::array cases{
    Case{"mov rax, [rsi]", X86("mov (%rsi), %rax"), 1, 0},
    Case{"mov [rdi], rax", X86("mov %rax, (%rdi)"), 0, 1},
    Case{"add [rdi], rax", X86("add %rax, (%rdi)"), 1, 1},
    Case{"push rax", X86("push %rax"), 0, 1},
    Case{"pop rax", X86("pop %rax"), 1, 0},
    Case{"push [rsi]", X86("push (%rsi)"), 1, 1},
    Case{"pop [rdi]", X86("pop (%rdi)"), 1, 1},
    Case{"xchg [rdi], rax", X86("xchg %rax, (%rdi)"), 1, 1},
    Case{"call [rsi]", X86("call *(%rsi)"), 1, 1},
    Case{"ret", X86("ret"), 1, 0},
    Case{"cmpxchg8b [rdi]", X86("cmpxchg8b (%rdi)"), 1, 1},
    Case{"cmpxchg16b [rdi]", X86("cmpxchg16b (%rdi)"), 2, 2},
    Case{"lock cmpxchg16b [rdi]", X86("lock cmpxchg16b (%rdi)"), 2, 2},
    Case{"enter 16, 0", X86("enter $0x10, $0"), 0, 1},
    Case{"leave", X86("leave"), 1, 0},
    Case{"movsb", X86("movsb"), 1, 1},
    Case{"cmpsb", X86("cmpsb"), 2, 0},
    Case{"lodsb", X86("lodsb"), 1, 0},
    Case{"stosb", X86("stosb"), 0, 1},
    Case{"scasb", X86("scasb"), 1, 0},
    Case{"rep movsb", X86("rep movsb"), 10, 10},
    Case{"rep movsq", X86("rep movsq"), 10, 10},
    Case{"rep stosd", X86("rep stosl"), 0, 10},
    Case{"rep lodsb", X86("rep lodsb"), 10, 0},
    Case{"repe cmpsb", X86("repe cmpsb"), 20, 0},
    Case{"repne cmpsb", X86("repne cmpsb"), 2, 0},  // the first ones are equal
    Case{"repe scasb", X86("repe scasb"), 10, 0},
    Case{"repne scasb", X86("repne scasb"), 1, 0},
    Case{"iretq", X86("iretq"), 5, 0},
    Case{"pushad", X86_32("pusha"), 0, 8, true},
    Case{"popad", X86_32("popa"), 7, 0, true},
    Case{"push [esi]", X86_32("push (%esi)"), 1, 1, true},
    Case{"rep movsb, 32-bit", X86_32("rep movsb"), 10, 10, true},
    Case{"repe cmpsd, 32-bit", X86_32("repe cmpsl"), 20, 0, true},
    Case{"vpgatherdd xmm0, [rsi + xmm2 * 4], xmm1", X86("vpgatherdd %xmm1, (%rsi,%xmm2,4), %xmm0"), 3, 0, false, true},
};

/// Counts two events while one instruction runs; the last instruction is `out 0x80`. Code that is the same in 32 and 64
/// bits.
class CountsOne : public GuestCode {
 public:
  CountsOne(const Case& c, std::array<std::uint32_t, 2> selects, std::uint32_t first_count) {
    for (unsigned n = 0; n < selects.size(); ++n) {
      write_msr32(vpmu::msr::IA32_PMC0.value() + n, first_count);
      write_msr32(vpmu::msr::IA32_PERFEVTSEL0.value() + n, selects[n] | 0x43'0000);
    }
    write_msr32(vpmu::msr::IA32_PERF_GLOBAL_CTRL.value(), 3);
    move32(rcx, 10);
    move32(rax, 0);
    at_ = size();
    for (const std::uint8_t byte : c.code) add({byte});
    end_ = size();
    write_msr32(vpmu::msr::IA32_PERF_GLOBAL_CTRL.value(), 0);
    add(X86("out %al, $0x80"));
  }
  /// Where the instruction is, and what follows it.
  [[nodiscard]] std::uint64_t at() const { return code + at_; }
  [[nodiscard]] std::uint64_t behind() const { return code + end_; }

 private:
  void move32(std::uint8_t reg, std::uint32_t value) {
    add({static_cast<std::uint8_t>(0xB8 + reg)});
    add_word(value, 4);
  }
  void write_msr32(std::uint32_t index, std::uint32_t value) {
    move32(rcx, index);
    move32(rax, value);
    move32(rdx, 0);
    add(X86("wrmsr"));
  }
  std::size_t at_{}, end_{};
};

/// Runs a case on a model.
class CaseRun {
 public:
  CaseRun(const MachineModel& model, const Case& c, std::array<std::uint32_t, 2> selects, std::uint32_t first_count)
      : program_{c, selects, first_count} {
    for (const std::uint64_t at : {code, stack, data, tables}) guest_.map(at, vpmu::page_size);
    guest_.store(code, std::as_bytes(std::span{program_.bytes()}));
    guest_.store_word(tables + 0x10, 0x00AF'9B00'0000'FFFF);
    guest_.store_word(tables + 0x18, 0x00CF'9300'0000'FFFF);
    auto& sregs = guest_.backend.special;
    sregs.gdt = {.base = tables, .limit = 0x1F};
    sregs.apic_base = 0xFEE0'0900;
    if (c.narrow) {
      sregs.cs.l = 0;
      sregs.cs.db = 1;
    }
    if (c.avx2) sregs.cr4 |= vpmu::bit(9) | vpmu::bit(18);  // OSFXSR, OSXSAVE
    set_up_operands(c);
    backend_.emplace(guest_.memory, cpuid_of(model.name), SoftStart{.sregs = sregs, .regs = guest_.backend.registers});
    if (c.avx2) backend_->set_vectors(three_of_four());
    auto vcpu = PmuVcpu::create({.pmu = {.generation = model.generation},
                                 .source = "exact",
                                 .source_services = {.make_timer = backend_->timers()}},
                                *backend_, guest_.memory, log_);
    EXPECT_TRUE(vcpu);
    vcpu_ = std::move(*vcpu);
  }
  bool reaches_its_end() {
    for (unsigned n = 0; n < 100; ++n) {
      const auto exit = vcpu_->run();
      if (!exit) return false;
      if (const auto* out = std::get_if<PortWrite>(&*exit)) return out->port == 0x80;
    }
    return false;
  }
  [[nodiscard]] std::uint64_t count(unsigned n) const {
    return vcpu_->pmu().rdmsr(vpmu::MsrIndex{vpmu::msr::IA32_PMC0.value() + n}).value;
  }

 private:
  /// XMM1 selects three elements of a gather.
  static vpmu::exec::VectorState three_of_four() {
    vpmu::exec::VectorState v;
    v.xcr0 = 7;
    for (const std::size_t element : {0U, 1U, 3U})
      v.legacy[vpmu::exec::VectorState::xmm_at + 16 + 4 * element + 3] = std::byte{0x80};
    return v;
  }
  void set_up_operands(const Case& c) {
    auto& regs = guest_.backend.registers;
    regs.rip = code;
    regs.rsp = stack + 0x800;
    regs.rbp = stack + 0x900;
    regs.rsi = data;
    regs.rdi = data + 0x400;
    if (c.name == "call [rsi]") guest_.store_word(data, program_.behind());
    if (c.name == "ret") guest_.store_word(regs.rsp, program_.behind());
    if (c.name != "iretq") return;
    const std::array<std::uint64_t, 5> frame{program_.behind(), 0x10, 2, regs.rsp, 0x18};
    for (unsigned n = 0; n < frame.size(); ++n) guest_.store_word(regs.rsp + 8ULL * n, frame[n]);
  }

  CountsOne program_;
  FakeGuest guest_;
  Log log_{[](LogLevel, std::string_view) {}, LogLevel::error};
  std::optional<SoftBackend> backend_;
  std::unique_ptr<PmuVcpu> vcpu_;
};

/// The model's event for loads, and for stores.
std::array<std::uint32_t, 2> events_of(vpmu::Generation g) {
  return g < vpmu::Generation::sandy_bridge ? std::array{0x010BU, 0x020BU} : std::array{0x81D0U, 0x82D0U};
}

// The counters begin at 0, or just before they overflow: then the instructions run one by one.
TEST(MemoryUops, CountAsTheModelDoes) {
  std::set<std::string_view> models;
  for (const MachineModel& model : all_machine_models()) {
    const vpmu::Generation g = model.generation;
    const bool by_uop = g >= vpmu::Generation::sandy_bridge && g < vpmu::Generation::skylake;
    models.insert(model.name);
    const bool has_avx2 = GuestFeatures{cpuid_of(model.name)}.has(vpmu::exec::CpuFeature::avx2);
    for (const Case& c : cases) {
      if (c.avx2 && !has_avx2) continue;
      for (const std::uint32_t first : {0U, ~0U, ~0U - 3}) {
        CaseRun run{model, c, events_of(g), first};
        ASSERT_TRUE(run.reaches_its_end()) << model.name << ' ' << c.name;
        const auto counted = [&](unsigned n) { return (run.count(n) - first) & vpmu::low_bits(32); };
        EXPECT_EQ(counted(0), by_uop ? c.loads : std::min(c.loads, 1U)) << model.name << ' ' << c.name << ' ' << first;
        EXPECT_EQ(counted(1), by_uop ? c.stores : std::min(c.stores, 1U))
            << model.name << ' ' << c.name << ' ' << first;
      }
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_EQ(models.size(), 24U);
}

}  // namespace
}  // namespace vmm::test::memory_uops
