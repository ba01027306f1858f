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
#include "vcpu/backend.hpp"

namespace vmm::test {

/// A vCPU made of plain members. Tests set registers directly, script what run() returns, and find the calls made of
/// it, in order, in `calls`. Reads of registers that KVM delivers with each exit are not recorded: on KVM they cost
/// nothing.
class FakeBackend final : public VcpuBackend {
 public:
  FakeBackend() : VcpuBackend{vpmu::exec::KickFlag{kicked}} { can_.tsc_khz = 1'000'000; }  // one cycle per nanosecond
  FakeBackend(const FakeBackend&) = delete;
  FakeBackend& operator=(const FakeBackend&) = delete;
  FakeBackend(FakeBackend&&) = delete;
  FakeBackend& operator=(FakeBackend&&) = delete;
  ~FakeBackend() override = default;

  /// abilities(), to be changed.
  VcpuAbilities& can{can_};
  /// One run of the guest: may change the back end, and returns the exit that ends it.
  using Run = std::function<Exit(FakeBackend&)>;

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
  std::uint8_t kicked{};       ///< Not 0: somebody kicks the vCPU.
  const ScriptedTime* time{};  ///< The time that passes in runs is the guest's; null = runs take none.
  bool is_watched{};
  std::optional<std::uint64_t> entered;  ///< entries().
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
    return [=](FakeBackend& p) {
      p.reply = {};
      p.retire_later_ = [](FakeBackend& q) { q.registers.rip += 2; };
      return MsrWrite{index, value, MsrReason::filter, {p.reply.data, p.reply.gp}};
    };
  }
  /// A run that ends in RDMSR; RAX and RDX change when the instruction retires.
  static Run rdmsr(std::uint32_t index) {
    return [=](FakeBackend& p) {
      p.reply = {};
      p.retire_later_ = [](FakeBackend& q) {
        q.registers.rip += 2;
        q.registers.rax = q.reply.data & 0xFFFF'FFFF;
        q.registers.rdx = q.reply.data >> 32;
      };
      return MsrRead{index, MsrReason::filter, {p.reply.data, p.reply.gp}};
    };
  }
  static Run ends_with(Exit exit) {
    return [=](FakeBackend&) { return exit; };
  }

  using VcpuBackend::run;
  Result<Exit> run(RunMode /*mode*/) override {
    const nanoseconds begin = time != nullptr ? time->now : nanoseconds{};
    auto exit = run_untimed();
    if (time != nullptr) ran_ += time->now - begin;
    return exit;
  }
  DeviceRun run_to_device() override {
    if (!tells_devices) return DeviceRun::not_run;
    came_to_.reset();
    came_to_.emplace(run());
    const bool device =
        *came_to_ && (std::holds_alternative<PortRead>(**came_to_) || std::holds_alternative<PortWrite>(**came_to_));
    return device ? DeviceRun::device_exit : DeviceRun::other_exit;
  }
  Result<Exit> exit() override {
    EXPECT_TRUE(came_to_) << "exit() without a run_to_device() that came elsewhere";
    return came_to_ ? *came_to_ : Result<Exit>{Shutdown{}};
  }
  Result<void> complete_exit() override {
    retire_open_exit();
    return note("complete_exit");
  }

  Result<void> read(RegistersTo to) override {
    struct Reader {
      FakeBackend& of;
      Result<void> operator()(kvm_regs* to) const { return of.tell("regs", of.registers, *to); }
      Result<void> operator()(kvm_sregs* to) const { return of.tell("sregs", of.special, *to); }
      Result<void> operator()(kvm_vcpu_events* to) const { return of.tell("events", of.pending, *to); }
      Result<void> operator()(vpmu::exec::VectorState* to) const { return of.tell("vectors", of.vector_state, *to); }
      Result<void> operator()(kvm_debugregs* to) const {
        *to = of.debug_registers;
        return of.note("debugregs");
      }
      Result<void> operator()(kvm_lapic_state* to) const {
        *to = of.apic;
        return of.note("lapic");
      }
    };
    return std::visit(Reader{*this}, to);
  }
  Result<void> write(RegistersFrom from) override {
    struct Writer {
      FakeBackend& of;
      Result<void> operator()(const kvm_regs* from) const { return of.take("set_regs", of.registers, *from); }
      Result<void> operator()(const kvm_sregs* from) const { return of.take("set_sregs", of.special, *from); }
      Result<void> operator()(const kvm_vcpu_events* from) const { return of.take("set_events", of.pending, *from); }
      Result<void> operator()(const kvm_debugregs* from) const {
        return of.take("set_debugregs", of.debug_registers, *from);
      }
      Result<void> operator()(const vpmu::exec::VectorState* from) const {
        return of.take("set_vectors", of.vector_state, *from);
      }
      Result<void> operator()(const kvm_guest_debug* from) const {
        return of.take("set_guest_debug", of.guest_debug, *from);
      }
    };
    return std::visit(Writer{*this}, from);
  }
  Result<void> forget_translations(const LostTranslations& /*lost*/) override { return {}; }
  Result<bool> halted() override { return value_of("halted", is_halted); }
  Result<void> read_msrs(std::span<const std::uint32_t> indices, std::span<std::uint64_t> values) override {
    for (std::size_t i = 0; i < indices.size(); ++i) {
      VMM_TRY(note(fmt::format("msr {:#x}", indices[i])));
      values[i] = msrs[indices[i]];
    }
    return {};
  }
  Result<void> set_msr(std::uint32_t index, std::uint64_t value) override {
    VMM_TRY(note(fmt::format("set_msr {:#x} {:#x}", index, value)));
    msrs[index] = value & ~dropped[index];
    return {};
  }
  Result<Stored> store_lvtpc(std::uint32_t value) override {
    VMM_TRY(note(fmt::format("store_lvtpc {:#x}", value)));
    if (stores == Stored::done) set_apic_word(0x340, value);
    return stores;
  }
  Result<void> raise(const RaisedInterrupt& interrupt) override {
    if (interrupt.nmi) return note("nmi");
    return note(fmt::format("interrupt {} {:#x}", interrupt.apic_id, interrupt.vector));
  }
  void watch_clock(bool on) override { is_watched = on; }
  [[nodiscard]] std::uint64_t unhalted_ticks() const override {
    return static_cast<std::uint64_t>(ran_.count()) * can_.tsc_khz / 1'000'000;
  }
  void pass_time(std::uint64_t ticks, std::uint64_t /*instructions*/) override {
    passed += ticks;
    if (passing) passing(ticks);
  }
  std::uint64_t passed{};
  std::function<void(std::uint64_t)> passing;  ///< Called by each pass_time().
  Result<std::uint64_t> tsc_after(std::uint64_t ticks) override {
    VMM_ASSIGN(const std::uint64_t now, value_of("tsc", msrs[0x10]));
    return now + ticks;
  }

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
  Result<void> take(const char* name, T& to, const T& from) {
    to = from;
    return note(name);
  }
  template <class T>
  Result<void> tell(const char* name, const T& value, T& to) const {
    VMM_ASSIGN(to, value_of(name, value));
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

  std::function<void(FakeBackend&)> retire_later_;
  std::optional<Result<Exit>> came_to_;
  nanoseconds ran_{};
};

}  // namespace vmm::test
