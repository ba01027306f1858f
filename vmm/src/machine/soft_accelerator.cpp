#include <fmt/format.h>
#include <fmt/ranges.h>

#include "machine/accelerator.hpp"
#include "model/clocks.hpp"
#include "model/guest_cpuid.hpp"
#include "model/model.hpp"
#include "model/own_part.hpp"
#include "pmu/task_counts.hpp"
#include "pmu/task_mark.hpp"
#include "processor/guest_features.hpp"
#include "soft/soft_backend.hpp"
#include "soft/soft_board.hpp"
#include "support/x86.hpp"
#include "vpmu/msr.hpp"

namespace vmm {
namespace {

/// After reset: the APIC is enabled; and the boot processor's flag. SDM 3A figure 10-5.
constexpr std::uint64_t apic_base_after_reset = x86::apic_base::base_after_reset | x86::apic_base::EN::mask;

class SoftProcessor final : public Processor {
 public:
  /// What all processors of a machine share.
  struct Parts {
    LinearMemory& memory;
    SoftBoard& board;
    MmioDevices& mmio;
    const MachineModel& model;
    std::uint64_t max_ticks;
    vpmu::exec::Compiling compiling;
    Log& log;
    TaskCounts* tasks;
  };
  SoftProcessor(const Parts& parts, CpuidTable cpuid, unsigned id) : parts_{parts}, cpuid_{std::move(cpuid)}, id_{id} {}
  Result<void> start_at(const StartRegisters& start) override {
    kvm_sregs reset{};
    reset.apic_base = apic_base_after_reset | x86::apic_base::BSP::mask;
    return make({.id = id_, .sregs = start_sregs(reset, start.mode), .regs = start_registers(start)});
  }
  /// For a processor that waits until another one starts it.
  Result<void> wait_for_start() {
    kvm_sregs reset{};
    reset.apic_base = apic_base_after_reset;
    return make({.id = id_, .waits_for_start = true, .sregs = reset});
  }
  Result<VcpuBackend*> open() override { return backend_.get(); }
  void close() override { parts_.board.turns.leave(id_); }
  void kicked() override { parts_.board.turns.kicked(id_); }
  void let_go() override { parts_.board.turns.let_go(id_); }
  [[nodiscard]] volatile std::uint8_t* kick_flag() override { return backend_->kick_target(); }
  [[nodiscard]] TimerFactory timers() override { return backend_->timers(); }
  Result<Bytes> save() override { return backend_->save(); }
  Result<void> restore(std::span<const std::byte> image) override { return backend_->restore(image); }
  void written(vpmu::GuestPhysical page) {
    if (backend_ != nullptr) backend_->written(page);
  }

 private:
  Result<void> make(SoftStart start) {
    start.tsc_khz = nominal_tsc_khz(parts_.model);
    start.compiling = parts_.compiling;
    start.log = &parts_.log;
    start.devices = &parts_.mmio;
    if (parts_.tasks != nullptr) {
      start.mark_leaf = task_mark_leaf;
      start.marked = [tasks = parts_.tasks, id = id_] { tasks->mark(id); };
    }
    backend_ = std::make_unique<SoftBackend>(parts_.memory, cpuid_, start, &parts_.board);
    backend_->stop_after(parts_.max_ticks);
    VMM_TRY(backend_->set_msr(vpmu::msr::MSR_PLATFORM_INFO.value(), platform_info(parts_.model, start.tsc_khz)));
    return backend_->set_msr(vpmu::msr::IA32_BIOS_SIGN_ID.value(), bios_sign_id(parts_.model));
  }

  Parts parts_;
  CpuidTable cpuid_;
  unsigned id_;
  std::unique_ptr<SoftBackend> backend_;
};

/// Sends messages to the I/O APIC object, from which the processors take them.
class SoftWires final : public DeviceWires {
 public:
  explicit SoftWires(IoApic& chip) : chip_{&chip} {}
  Result<void> send(const InterruptMessage& message) override {
    chip_->send(message.address, message.data);
    return {};
  }
  Result<void> wire_interrupt(const Fd& /*event*/, const std::optional<InterruptMessage>& /*message*/) override {
    return without_kvm();
  }
  Result<void> wire_store(vpmu::GuestPhysical /*at*/, const Fd& /*event*/, Wire /*wire*/) override {
    return without_kvm();
  }

 private:
  static Failure without_kvm() { return host_error("a device is wired to KVM, in a machine without it"); }
  IoApic* chip_;
};

class SoftAccelerator final : public Accelerator {
 public:
  explicit SoftAccelerator(const AcceleratorNeeds& needs)
      : model_{needs.resolved.model},
        caches_{changed_caches(*model_, needs.config.source_options.changes)},
        core_khz_{core_khz(needs.config.source_options)},
        cpus_{needs.config.cpus},
        bare_metal_{needs.config.bare_metal},
        threads_per_core_{needs.config.threads_per_core},
        epoch_{needs.config.epoch},
        restores_{!needs.config.restore.empty()},
        log_{&needs.log},
        board_{&io_apic_, needs.config.schedule.value_or(Schedule{}), threads_per_core_, core_khz_},
        parts_{.memory = needs.linear,
               .board = board_,
               .mmio = needs.mmio,
               .model = *model_,
               .max_ticks = needs.config.max_ticks,
               .compiling = needs.config.source_options.compiling,
               .log = needs.log,
               .tasks = needs.config.tasks} {}

  Result<std::unique_ptr<Processor>> add_processor(unsigned id) override {
    const CpuidTable supported = supported_features();
    const CpuidRequest request{.model = *model_,
                               .supported = supported,
                               .tsc_deadline = true,
                               .tsc_hz = nominal_tsc_khz(*model_) * 1000,
                               .cpus = cpus_,
                               .bare_metal = bare_metal_,
                               .counts_performance = true,
                               .threads_per_core = threads_per_core_,
                               .core_khz = core_khz_,
                               .caches = caches_};
    if (id == 0) tell_of_lost_features();
    auto processor = std::make_unique<SoftProcessor>(parts_, guest_cpuid(request, id), id);
    if (id != 0 || restores_) VMM_TRY(processor->wait_for_start());
    processors_.push_back(processor.get());
    return processor;
  }
  [[nodiscard]] std::optional<std::uint64_t> untold_tsc_khz() const override {
    const std::uint64_t khz = nominal_tsc_khz(*model_);
    return crystal_ratio(*model_, khz * 1000) ? std::nullopt : std::optional{khz};
  }
  Result<void> set_line(std::uint32_t gsi, LineLevel level) override {
    io_apic_.set_line(gsi, level);
    return {};
  }
  [[nodiscard]] DeviceWires& wires() override { return wires_; }
  [[nodiscard]] std::time_t time_of_day() const override {
    return epoch_ + static_cast<std::time_t>(board_.clock.now() / (nominal_tsc_khz(*model_) * 1000));
  }
  Result<Bytes> save_chips() override {
    ByteWriter out;
    out.put(board_.clock.image());
    out.put(board_.turns.image());
    io_apic_.save(out);
    return out.take();
  }
  Result<void> restore_chips(std::span<const std::byte> image) override {
    ByteReader in{image};
    const auto clock = in.get<MachineClock::Image>();
    const auto turns = in.get<RoundRobin::Image>();
    if (io_apic_.restore(in) && in.done() && board_.clock.restore(clock, board_.turns.processors()) &&
        board_.turns.restore(turns))
      return {};
    return usage_error("the snapshot's state of the chips is cut short, or has another format than this version's",
                       snapshot_advice);
  }
  void written(vpmu::GuestPhysical page) override {
    for (SoftProcessor* const processor : processors_) processor->written(page);
  }

 private:
  void tell_of_lost_features() {
    const auto lost = lost_features(feature_table(*model_));
    if (lost.empty()) return;
    log_->warning("a {} has {}, which this host's CPU lacks: the guest's CPUID leaves that out", model_->name,
                  fmt::join(lost, ", "));
  }

  const MachineModel* model_;
  std::array<CacheShape, 4> caches_;
  std::uint64_t core_khz_;
  unsigned cpus_;
  bool bare_metal_;
  unsigned threads_per_core_;
  std::time_t epoch_;
  bool restores_;
  Log* log_;
  IoApic io_apic_;
  SoftWires wires_{io_apic_};
  SoftBoard board_;
  SoftProcessor::Parts parts_;
  std::vector<SoftProcessor*> processors_;
};

}  // namespace

Result<std::unique_ptr<Accelerator>> make_soft_accelerator(const AcceleratorNeeds& needs) {
  return std::make_unique<SoftAccelerator>(needs);
}

}  // namespace vmm
