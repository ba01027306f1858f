#pragma once
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/fake_cpu.hpp"
#include "pmu/pmu_vcpu.hpp"
#include "vpmu/msr.hpp"
#include "vpmu/pebs.hpp"

namespace vmm::test {

/// IA32_PERFEVTSELx: counts the event in user and kernel mode, without interrupts.
constexpr std::uint64_t select(std::uint16_t event) { return 0x43'0000U | event; }
inline constexpr std::uint64_t select_cycles = select(0x003C);

/// A guest with a DS area, a stack, an IDT with a #GP handler and a loop of code, on a vCPU with a virtual PMU. Time
/// passes as its instructions run; its TSC runs at 1 GHz. Each record, dropped record and PMI request kicks the vCPU,
/// so that a test regains control at once.
class ProfiledGuest final : public FakeGuest, public vpmu::TraceSink {
 public:
  static constexpr std::uint64_t code = 0xFFFF'FFFF'8100'0000;
  static constexpr std::uint64_t fault_handler = 0xFFFF'FFFF'8100'0800;
  static constexpr std::uint64_t data = 0xFFFF'8880'0000'1000;
  static constexpr std::uint64_t stack = 0xFFFF'C900'0000'0800;
  static constexpr std::uint64_t idt = 0xFFFF'FE00'0000'0000;
  static constexpr std::uint64_t ds_area = 0xFFFF'FE00'0001'0000;
  static constexpr std::uint64_t buffer = 0xFFFF'FE00'0002'0000;
  static constexpr std::uint64_t record_size = vpmu::record_size(vpmu::PebsFormat::format3);
  static constexpr std::uint64_t tsc = 0x1234'5678'9ABC;
  static constexpr unsigned lvtpc = 0x340;
  static constexpr std::uint32_t lvtpc_nmi = 0x400, lvtpc_mask = 0x1'0000;

  ScriptedTime time;
  FakeCpu cpu{*this, time};
  std::vector<std::string> warnings;
  Log log{[this](LogLevel, std::string_view line) { warnings.emplace_back(line); }, LogLevel::warning};
  std::unique_ptr<PmuVcpu> vcpu;

  explicit ProfiledGuest(PmuVcpuConfig config = {}) {
    for (const std::uint64_t page : {code, data, stack, idt, ds_area}) map(page, vpmu::page_size);
    map(buffer, 2 * vpmu::page_size);
    backend.registers = {.rax = 0xA, .rbx = data, .rsp = stack, .rip = code, .rflags = 0x246};
    backend.special.idt = {.base = idt, .limit = 0xFFF};
    store_word(idt + 13 * 16,
               (fault_handler & 0xFFFF) | (0x10ULL << 16) | (0x8EULL << 40) | ((fault_handler & 0xFFFF'0000) << 32));
    store_word(idt + 13 * 16 + 8, fault_handler >> 32);
    backend.msrs[0x10] = tsc;
    backend.set_apic_word(lvtpc, lvtpc_nmi);
    config.pmu.trace = this;
    config.source_services.make_timer = [this]() -> Result<std::unique_ptr<CpuTimer>> {
      return std::make_unique<FakeTimer>(time);
    };
    auto created = PmuVcpu::create(config, backend, memory, log);
    EXPECT_TRUE(created);
    if (created) vcpu = std::move(*created);
  }

  void on(const vpmu::TraceEvent& event) override {
    const bool is_news =
        !std::holds_alternative<vpmu::MsrWritten>(event) && !std::holds_alternative<vpmu::Overflowed>(event);
    if (is_news) cpu.kick();
  }

  /// A loop with a load at its second instruction.
  void place_loop() {
    std::uint64_t at = cpu.add(code, X86("nop"));
    at = cpu.add(at, X86("mov 16(%rbx), %rax"), [](FakeBackend& p) {
      p.registers.rax = 0x1111'2222'3333'4444;
      return std::nullopt;
    });
    at = cpu.add(at, X86("mov %rax, 24(%rbx)"));
    at = cpu.add(at, X86("nop"));
    cpu.add_jump(at, code);
  }
  static constexpr std::uint64_t load_at = code + 1;
  static constexpr std::uint64_t behind_load = code + 5;

  /// The guest's next run takes `after` and ends with this WRMSR, which is just before the current RIP.
  void will_write(vpmu::MsrIndex index, std::uint64_t value, nanoseconds after = {}) {
    will_access(FakeBackend::wrmsr(index.value(), value), after);
  }
  void will_read(vpmu::MsrIndex index, nanoseconds after = {}) {
    will_access(FakeBackend::rdmsr(index.value()), after);
  }
  /// Runs to an exit that the PMU does not handle itself.
  Exit run() const {
    auto exit = vcpu->run();
    EXPECT_TRUE(exit) << (exit ? "" : exit.error().what);
    return exit ? *exit : Exit{Shutdown{}};
  }
  /// Runs until `done()`, for at most `kicks` kicks.
  template <class Done>
  void run_until(Done done, unsigned kicks = 1000) {
    for (unsigned n = 0; n < kicks && !done(); ++n) ASSERT_TRUE(std::holds_alternative<Interrupted>(run()));
    ASSERT_TRUE(done());
  }
  /// Lets the guest run its script, and no further.
  void run_script() {
    backend.script.push_back(FakeBackend::ends_with(Interrupted{}));
    EXPECT_TRUE(std::holds_alternative<Interrupted>(run()));
  }

  /// The PEBS half of the DS area as Linux sets it up, with room for `records`.
  void set_ds(std::uint64_t threshold_records, std::uint64_t records, std::uint64_t reset0) {
    const std::uint64_t end = buffer + records * record_size;
    const std::array<std::uint64_t, 8> pebs{buffer, buffer, end, buffer + threshold_records * record_size,
                                            reset0, 0,      0,   0};
    store(ds_area + 0x20, std::as_bytes(std::span{pebs}));
  }
  /// Starts a precise session on PMC0 as Linux does: PEBS_ENABLE, counter, select, and GLOBAL_CTRL last.
  void will_start_pebs(std::uint64_t select, std::uint64_t counter) {
    will_write(vpmu::msr::IA32_DS_AREA, ds_area);
    will_write(vpmu::msr::IA32_PERF_GLOBAL_CTRL, 0);
    will_write(vpmu::msr::IA32_PEBS_ENABLE, 1);
    will_write(vpmu::msr::IA32_A_PMC0, counter);
    will_write(vpmu::msr::IA32_PERFEVTSEL0, select);
    will_write(vpmu::msr::IA32_PERF_GLOBAL_CTRL, 0x7'0000'000F);
  }
  /// A field of the record with that number.
  [[nodiscard]] std::uint64_t field(std::uint64_t record, vpmu::Slot slot) {
    return load_word(buffer + record * record_size + static_cast<std::uint64_t>(slot) * 8);
  }
  [[nodiscard]] std::uint64_t pebs_index() { return load_word(ds_area + 0x28); }

 private:
  void will_access(FakeBackend::Run access, nanoseconds after) {
    backend.script.emplace_back([this, access = std::move(access), after](FakeBackend& p) {
      time.pass(after);
      p.registers.rip -= 2;
      return access(p);
    });
  }

 public:
  [[nodiscard]] std::map<std::string, std::uint64_t> statistics() const {
    std::map<std::string, std::uint64_t> all;
    vcpu->visit_statistics([&](std::string_view name, std::uint64_t value) { all[std::string{name}] = value; });
    return all;
  }
  [[nodiscard]] std::uint64_t statistic(const std::string& name) const { return statistics().at(name); }
  /// The address of the breakpoint of ours (the RDPMC gate), 0 = none.
  [[nodiscard]] std::uint64_t gate() const {
    return (backend.guest_debug.control & KVM_GUESTDBG_USE_HW_BP) != 0 ? backend.guest_debug.arch.debugreg[0] : 0;
  }
};

}  // namespace vmm::test
