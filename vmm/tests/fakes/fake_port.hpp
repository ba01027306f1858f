#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "fakes/scripted_time.hpp"
#include "vcpu/port.hpp"

namespace vmm::test {

/// A vCPU made of plain members. Tests set registers directly, script what run() returns, and find the calls made of
/// it, in order, in `calls`. Reads of registers that KVM delivers with each exit are not recorded: on KVM they cost
/// nothing.
class FakePort final : public VcpuPort {
 public:
  /// One run of the guest: may change the port, and returns the exit that ends it.
  using Run = std::function<Exit(FakePort&)>;

  kvm_regs registers{};
  kvm_sregs special{.apic_base = 0xFEE0'0900};  ///< The APIC is on, in xAPIC mode.
  kvm_vcpu_events pending{};
  kvm_debugregs debug_registers{};
  vpmu::exec::VectorState vector_state;
  kvm_guest_debug guest_debug{};
  kvm_lapic_state apic{};
  std::map<std::uint32_t, std::uint64_t> msrs;
  std::map<std::uint32_t, std::uint64_t> dropped;  ///< Bits of MSRs that set_msr() takes and forgets.
  bool is_halted{};
  std::uint8_t kicked{};         ///< Not 0: somebody kicks the vCPU.
  std::uint64_t khz{1'000'000};  ///< One cycle per nanosecond.
  const ScriptedTime* time{};    ///< The time that passes in runs is the guest's; null = runs take none.
  bool is_watched{};
  std::optional<std::uint64_t> entered;  ///< entries().
  bool exits_on_detect{true};            ///< exits_on_general_detect().
  bool tells_devices{};                  ///< Whether run_to_device() does anything.
  Stored stores{Stored::done};           ///< The result of stores into the APIC.

  std::deque<Run> script;  ///< Runs to come.
  Run otherwise;           ///< What run() does when the script is empty; without it the test fails.
  std::vector<std::string> calls;
  std::set<std::string> broken;  ///< Calls that fail, by their first word in `calls`.

  /// The answer to the last MSR exit.
  struct {
    unsigned long long data{};
    std::uint8_t gp{};
  } reply;

  /// A run that ends in WRMSR; the instruction retires at the next run() or complete_exit(), as on KVM.
  static Run wrmsr(std::uint32_t index, std::uint64_t value) {
    return [=](FakePort& p) {
      p.reply = {};
      p.retire_later_ = [](FakePort& q) { q.registers.rip += 2; };
      return MsrWrite{index, value, MsrReason::filter, {p.reply.data, p.reply.gp}};
    };
  }
  /// A run that ends in RDMSR; RAX and RDX change when the instruction retires.
  static Run rdmsr(std::uint32_t index) {
    return [=](FakePort& p) {
      p.reply = {};
      p.retire_later_ = [](FakePort& q) {
        q.registers.rip += 2;
        q.registers.rax = q.reply.data & 0xFFFF'FFFF;
        q.registers.rdx = q.reply.data >> 32;
      };
      return MsrRead{index, MsrReason::filter, {p.reply.data, p.reply.gp}};
    };
  }
  static Run ends_with(Exit exit) {
    return [=](FakePort&) { return exit; };
  }

  [[nodiscard]] vpmu::exec::KickFlag kick_flag() const override { return vpmu::exec::KickFlag{kicked}; }
  Result<Exit> run() override {
    const nanoseconds begin = time != nullptr ? time->now : nanoseconds{};
    auto exit = run_untimed();
    if (time != nullptr) ran_ += time->now - begin;
    return exit;
  }
  Came run_to_device() override {
    if (!tells_devices) return Came::nowhere;
    came_to_.reset();
    came_to_.emplace(run());
    const bool device =
        *came_to_ && (std::holds_alternative<PortRead>(**came_to_) || std::holds_alternative<PortWrite>(**came_to_));
    return device ? Came::to_device : Came::elsewhere;
  }
  Result<Exit> exit() override {
    EXPECT_TRUE(came_to_) << "exit() without a run_to_device() that came elsewhere";
    return came_to_ ? *came_to_ : Result<Exit>{Shutdown{}};
  }
  [[nodiscard]] bool exits_on_general_detect() const override { return exits_on_detect; }
  Result<void> complete_exit() override {
    retire_open_exit();
    return note("complete_exit");
  }

  Result<kvm_regs> regs() override { return value_of("regs", registers); }
  Result<void> set_regs(const kvm_regs& regs) override {
    registers = regs;
    return note("set_regs");
  }
  Result<kvm_sregs> sregs() override { return value_of("sregs", special); }
  Result<void> set_sregs(const kvm_sregs& sregs) override {
    special = sregs;
    return note("set_sregs");
  }
  Result<void> forget_translations() override { return {}; }
  Result<kvm_vcpu_events> events() override { return value_of("events", pending); }
  Result<void> set_events(const kvm_vcpu_events& events) override {
    pending = events;
    return note("set_events");
  }
  Result<kvm_debugregs> debugregs() override {
    VMM_TRY(note("debugregs"));
    return debug_registers;
  }
  Result<void> set_debugregs(const kvm_debugregs& regs) override {
    debug_registers = regs;
    return note("set_debugregs");
  }
  Result<void> set_guest_debug(const kvm_guest_debug& debug) override {
    guest_debug = debug;
    return note("set_guest_debug");
  }
  Result<vpmu::exec::VectorState> vectors() override { return value_of("vectors", vector_state); }
  Result<void> set_vectors(const vpmu::exec::VectorState& state) override {
    vector_state = state;
    return note("set_vectors");
  }
  Result<bool> halted() override { return value_of("halted", is_halted); }
  Result<std::uint64_t> msr(std::uint32_t index) override {
    VMM_TRY(note(fmt::format("msr {:#x}", index)));
    return msrs[index];
  }
  Result<void> set_msr(std::uint32_t index, std::uint64_t value) override {
    VMM_TRY(note(fmt::format("set_msr {:#x} {:#x}", index, value)));
    msrs[index] = value & ~dropped[index];
    return {};
  }
  Result<kvm_lapic_state> lapic() override {
    VMM_TRY(note("lapic"));
    return apic;
  }
  Result<Stored> store_lvtpc(std::uint32_t value) override {
    VMM_TRY(note(fmt::format("store_lvtpc {:#x}", value)));
    if (stores == Stored::done) set_apic_word(0x340, value);
    return stores;
  }
  Result<void> nmi() override { return note("nmi"); }
  Result<void> interrupt(std::uint32_t apic_id, std::uint8_t vector) override {
    return note(fmt::format("interrupt {} {:#x}", apic_id, vector));
  }
  void watch_clock(bool on) override { is_watched = on; }
  [[nodiscard]] std::uint64_t unhalted_ticks() const override {
    return static_cast<std::uint64_t>(ran_.count()) * khz / 1'000'000;
  }
  void pass_time(std::uint64_t ticks) override {
    passed += ticks;
    if (passing) passing(ticks);
  }
  std::uint64_t passed{};
  std::function<void(std::uint64_t)> passing;  ///< Called by each pass_time().
  Result<std::uint64_t> tsc() override { return value_of("tsc", msrs[0x10]); }
  [[nodiscard]] std::uint64_t tsc_khz() const override { return khz; }

  [[nodiscard]] std::optional<std::uint64_t> entries() const override { return entered; }

  /// One 32-bit register of the xAPIC page.
  [[nodiscard]] std::uint32_t apic_word(unsigned offset) const {
    std::uint32_t word{};
    std::memcpy(&word, apic.regs + offset, sizeof word);
    return word;
  }
  void set_apic_word(unsigned offset, std::uint32_t word) { std::memcpy(apic.regs + offset, &word, sizeof word); }

  /// How often a call was made, by the first word of its line.
  [[nodiscard]] std::size_t count(std::string_view name) const {
    std::size_t n = 0;
    for (const std::string& call : calls)
      if (std::string_view{call}.substr(0, call.find(' ')) == name) ++n;
    return n;
  }

 private:
  Result<Exit> run_untimed() {
    calls.emplace_back("run");
    retire_open_exit();
    if (broken.contains("run")) return host_error("run is broken");
    if (script.empty() && otherwise) return otherwise(*this);
    if (script.empty()) {
      ADD_FAILURE() << "run() beyond the script";
      return host_error("nothing scripted");
    }
    const Run next = std::move(script.front());
    script.pop_front();
    return next(*this);
  }
  Result<void> note(std::string call) {
    const bool is_broken = broken.contains(call.substr(0, call.find(' ')));
    calls.push_back(std::move(call));
    if (is_broken) return host_error(calls.back() + " is broken");
    return {};
  }
  template <class T>
  Result<T> value_of(const char* name, const T& value) const {
    if (broken.contains(name)) return host_error(std::string{name} + " is broken");
    return value;
  }
  void retire_open_exit() {
    if (auto retire = std::exchange(retire_later_, nullptr)) retire(*this);
  }

  std::function<void(FakePort&)> retire_later_;
  std::optional<Result<Exit>> came_to_;
  nanoseconds ran_{};
};

}  // namespace vmm::test
