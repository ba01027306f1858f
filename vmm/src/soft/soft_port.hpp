#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "decode/instruction.hpp"
#include "devices/mmio.hpp"
#include "exec/engine.hpp"
#include "memory/engine_ram.hpp"
#include "memory/host_code.hpp"
#include "processor/debug_registers.hpp"
#include "processor/guest_features.hpp"
#include "processor/system_unit.hpp"
#include "processor/virtual_time.hpp"
#include "snapshot/byte_stream.hpp"
#include "soft/soft_board.hpp"
#include "support/log.hpp"
#include "vcpu/port.hpp"

namespace vmm {

struct SoftStatistics {
  std::uint64_t instructions{};  ///< Retired, by the engine and by this class.
  std::uint64_t system{};        ///< Of these: system instructions.
  std::uint64_t mmio{};          ///< Accesses outside RAM.
  std::uint64_t exceptions{};
  std::uint64_t interrupts{};  ///< Including NMIs.
  std::map<std::string_view, std::uint64_t>
      unknown;  ///< Instructions that this vCPU does not support (#UD), by mnemonic.
};

/// The initial state of a vCPU without KVM.
struct SoftStart {
  std::uint32_t id{};      ///< Its APIC id, and its number on the board.
  bool waits_for_start{};  ///< In the wait-for-SIPI state, like all but the boot processor; the registers are ignored.
  kvm_sregs sregs{};
  kvm_regs regs{};
  vpmu::exec::Compiling compiling{};
  Log* log{};              ///< Gets each unknown instruction once; must outlive the port. May be null.
  MmioDevices* devices{};  ///< Handles accesses where there is no RAM; must outlive the port. May be null.
};

/// A vCPU without KVM: the engine runs the guest's code, and this class does what KVM does around it. Behaves like KVM
/// as far as the PMU code can see: MSRs that are not the processor's own exit, and guest debugging works as KVM's; but
/// RDPMC also exits.
///
/// Time is virtual: an instruction takes one tick of the TSC (MachineClock), so does entering a handler, and nothing
/// else takes any time. Two runs with the same input are identical. The vCPUs of a machine take turns (Turns): run()
/// waits for its own, which lasts until a later run() ends it.
class SoftPort final : public VcpuPort, private TurnTaker {
 public:
  static constexpr std::uint64_t default_tsc_khz = 2'500'000;

  /// `memory` and `board` must outlive it. Without `board` it is alone on a board of its own.
  SoftPort(LinearMemory& memory, CpuidTable cpuid, const SoftStart& start, SoftBoard* board = nullptr);
  SoftPort(const SoftPort&) = delete;
  SoftPort& operator=(const SoftPort&) = delete;
  SoftPort(SoftPort&&) = delete;
  SoftPort& operator=(SoftPort&&) = delete;
  ~SoftPort() override = default;

  /// Makes timers on the virtual time of this vCPU. They may not outlive it.
  [[nodiscard]] TimerFactory timers() { return time_.timers(); }
  /// run() returns TimeUp once the vCPU has run for `ticks` in total.
  void stop_after(std::uint64_t ticks) { stop_after_ = ticks; }
  /// When set, on any thread, run() returns Interrupted.
  [[nodiscard]] volatile std::uint8_t* kick_target() { return &kicked_; }
  [[nodiscard]] vpmu::exec::KickFlag kick_flag() const override { return vpmu::exec::KickFlag{kicked_}; }
  /// Somebody other than this vCPU has written to a page of RAM.
  void written(vpmu::GuestPhysical page);

  /// Also returns Hlt, when all vCPUs of the machine are halted and nothing can wake any of them. If only a device can
  /// wake one, it waits.
  Result<Exit> run() override;
  [[nodiscard]] bool exits_on_rdpmc() const override { return true; }
  [[nodiscard]] bool has(vpmu::exec::CpuFeature feature) const override { return features_.has(feature); }
  [[nodiscard]] bool runs_alone() const override { return true; }
  Result<void> complete_exit() override;
  Result<kvm_regs> regs() override { return s_.regs; }
  Result<void> set_regs(const kvm_regs& regs) override;
  Result<kvm_sregs> sregs() override { return s_.sregs; }
  Result<void> set_sregs(const kvm_sregs& sregs) override;
  Result<void> forget_translations() override;
  Result<kvm_vcpu_events> events() override { return s_.events; }
  Result<void> set_events(const kvm_vcpu_events& events) override;
  Result<kvm_debugregs> debugregs() override { return s_.debug; }
  Result<void> set_debugregs(const kvm_debugregs& regs) override;
  Result<void> set_guest_debug(const kvm_guest_debug& debug) override;
  Result<vpmu::exec::VectorState> vectors() override { return s_.vectors; }
  Result<void> set_vectors(const vpmu::exec::VectorState& state) override {
    s_.vectors = state;
    return {};
  }
  Result<bool> halted() override { return s_.halted; }
  Result<std::uint64_t> msr(std::uint32_t index) override;
  Result<void> set_msr(std::uint32_t index, std::uint64_t value) override;
  Result<kvm_lapic_state> lapic() override { return s_.apic.page(); }
  Result<Stored> store_lvtpc(std::uint32_t value) override;
  void set_lapic(const kvm_lapic_state& state) { s_.apic.set_page(state); }
  Result<void> nmi() override;
  Result<void> interrupt(std::uint32_t apic_id, std::uint8_t vector) override;
  void watch_clock(bool on) override { time_.watch(on); }
  [[nodiscard]] std::uint64_t unhalted_ticks() const override { return time_.unhalted(); }
  void pass_time(std::uint64_t ticks) override;
  std::optional<std::uint64_t> quiet_for() override;
  std::uint64_t look_around(std::uint64_t left) override;
  Result<std::uint64_t> tsc() override { return time_.tsc(); }
  Result<std::uint64_t> tsc_after(std::uint64_t instructions) override { return time_.tsc_after(instructions); }
  [[nodiscard]] std::uint64_t tsc_khz() const override { return time_.tsc_khz(); }

  /// The whole state as bytes, between two runs of which the last returned Interrupted or TimeUp. Without decoded code,
  /// translations, statistics and its users' timers.
  [[nodiscard]] Bytes save() const;
  /// The reverse, before the first run. Fails with kind usage if the bytes do not have this form, describe an
  /// impossible state, or features that the vCPU lacks; it must not run then.
  Result<void> restore(std::span<const std::byte> image);
  void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const override;

 private:
  /// While `open`, a scratch page replaces pages without RAM: so the engine itself runs a device access.
  class Ram final : public vpmu::exec::Ram {
   public:
    explicit Ram(const LinearMemory& memory) : ram_{memory} {}
    std::optional<std::uint64_t> read_word(vpmu::GuestPhysical at, unsigned bytes) override {
      return ram_.read_word(at, bytes);
    }
    bool exchange_word(vpmu::GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) override {
      return ram_.exchange_word(at, bytes, expected, desired);
    }
    std::byte* page(vpmu::GuestPhysical page) override;
    void will_write(vpmu::GuestPhysical page) override;
    void close() { ram_.close(); }

    /// Page-aligned, as the engine requires.
    alignas(vpmu::page_size) std::array<std::byte, vpmu::page_size> scratch{};
    bool open{};

   private:
    EngineRam ram_;
  };
  /// Reads the TSC and holds the vector state; leaves every system instruction but RDTSC and RDTSCP to SystemUnit.
  class Platform final : public vpmu::exec::NoPlatform {
   public:
    explicit Platform(SoftPort& port) : port_{&port} {}
    vpmu::exec::Answer rdtsc(std::uint64_t& value) override;
    vpmu::exec::Answer rdtscp(std::uint64_t& value, std::uint64_t& aux) override;
    bool has(vpmu::exec::CpuFeature feature) override { return port_->has(feature); }
    bool runs_alone() override { return port_->runs_alone(); }
    vpmu::exec::VectorState* vectors() override { return &port_->s_.vectors; }

   private:
    SoftPort* port_;
  };
  /// What is at a page without RAM.
  enum class Device : std::uint8_t { others, local_apic, io_apic };
  /// The instruction of an exit that waits for its answer.
  struct Open {
    enum class Kind : std::uint8_t { none, read, wrmsr, in, out } kind{};
    std::uint8_t length{};
    unsigned long long data{};
    std::uint8_t gp{};
    std::array<std::byte, 4> port{};
    std::uint8_t bytes{};
    bool trap{};  ///< The guest single-steps: #DB after it.
  };

  std::optional<Exit> take_events();
  std::optional<Exit> take(Exception exception, EventKind kind, std::uint8_t length = 0);
  std::optional<Exit> run_some(std::uint64_t most);
  std::optional<Exit> run_watched(const Watch& watch);
  std::optional<Exit> run_system(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  std::optional<Exit> run_what_the_engine_left(vpmu::exec::Stop why);
  std::optional<Exit> run_into_fault(const std::optional<Instruction>& i, std::span<const std::byte> code,
                                     vpmu::exec::Stop why);
  std::optional<Exit> refuse(const Instruction& i, std::span<const std::byte> code, vpmu::exec::Stop why);
  std::optional<Exit> access_device(const Access& access, const Instruction& i, std::span<const std::byte> code);
  [[nodiscard]] Device device_at(vpmu::GuestPhysical page) const;
  void read_device(Device device, vpmu::GuestPhysical at, std::span<std::byte> out);
  void write_device(Device device, vpmu::GuestPhysical at, std::span<const std::byte> in);
  bool is_ready() override;
  std::uint64_t until_ready() override;
  [[nodiscard]] bool may_be_woken() override;
  void kick() override;
  void take_turn();
  [[nodiscard]] bool rest();
  void take_start();
  [[nodiscard]] bool is_woken() const;
  [[nodiscard]] bool is_at_rest() const;
  [[nodiscard]] std::uint64_t until_due() const;
  std::optional<Exit> run_iteration(const Instruction& i);
  [[nodiscard]] bool guest_traps(const Watch& watch, const std::optional<Instruction>& i) const;
  std::optional<Exit> debug_hit(const Watch& watch, std::uint64_t hits);
  [[nodiscard]] std::vector<Access> accesses(const Instruction& i) const;
  [[nodiscard]] std::vector<Access> gathered(const Gather& g, std::uint64_t base, unsigned scale) const;
  [[nodiscard]] std::vector<Access> reached(const Instruction& i) const;
  [[nodiscard]] std::optional<Exception> feature_fault(const Instruction& i, std::span<const std::byte> code) const;
  vpmu::exec::Stop run_engine(std::uint64_t instructions);
  Exception fetch_fault(std::uint64_t at);
  void complete(std::uint8_t length);

  LinearMemory* memory_;
  CpuidTable cpuid_;
  GuestFeatures features_;
  std::unique_ptr<SoftBoard> own_board_;
  SoftBoard* board_;
  VirtualTime time_;
  SoftState s_;
  GuestView view_;
  InterruptUnit interrupts_;
  MsrUnit msrs_;
  SystemUnit system_;
  Ram ram_;
  Platform platform_;
  MappedHostCode host_code_;
  vpmu::exec::Engine engine_;
  std::uint64_t entered_at_{};  ///< engine_.passed() at the start of its current run.
  bool flush_{true};            ///< The engine's translations may be stale.
  bool stale_{true};            ///< The engine's copy of the registers is out of date.
  Open open_;
  kvm_guest_debug guest_debug_{};
  bool took_debug_{};          ///< The last exception was #DB, and not by INT 1.
  std::uint64_t held_hits_{};  ///< Data breakpoints hit by MOV SS: reported after the next instruction.
  bool branch_steps_{};        ///< DEBUGCTL.BTF, from set_msr().
  std::uint64_t stop_after_{~0ULL};
  volatile std::uint8_t kicked_{};
  std::uint64_t seen_changes_{};  ///< Turns::changes() at the last look.
  SoftStatistics statistics_{};
  Log* log_;
  MmioDevices* devices_;
};

}  // namespace vmm
