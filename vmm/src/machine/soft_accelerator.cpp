#include <fmt/format.h>
#include <fmt/ranges.h>

#include "machine/accelerator.hpp"
#include "machine/guest_cpuid.hpp"
#include "machine/model.hpp"
#include "soft/guest_features.hpp"
#include "soft/soft_port.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::bit;

/// After reset: enabled, the boot processor's. SDM 3A figure 10-5.
constexpr std::uint64_t apic_base_after_reset = 0xFEE0'0000 | bit(11) | bit(8);

class SoftProcessor final : public Processor {
 public:
  SoftProcessor(LinearMemory& memory, CpuidTable cpuid, IoApic& io_apic, MmioDevices& mmio, const MachineModel& model,
                std::uint64_t most_ticks, vpmu::exec::Compiling compiling, Log& log)
      : memory_{&memory},
        cpuid_{std::move(cpuid)},
        io_apic_{&io_apic},
        mmio_{&mmio},
        model_{&model},
        most_ticks_{most_ticks},
        compiling_{compiling},
        log_{&log} {}
  Result<void> start_at(const StartRegisters& start) override {
    kvm_sregs reset{};
    reset.apic_base = apic_base_after_reset;
    const SoftStart from{.sregs = long_mode(reset),
                         .regs = start_registers(start),
                         .compiling = compiling_,
                         .log = log_,
                         .devices = mmio_};
    port_ = std::make_unique<SoftPort>(*memory_, cpuid_, from, io_apic_);
    port_->stop_after(most_ticks_);
    return port_->set_msr(msr_bios_sign_id, bios_sign_id(*model_));
  }
  Result<VcpuPort*> open() override { return port_.get(); }
  [[nodiscard]] volatile std::uint8_t* kick_flag() override { return port_->kick_target(); }
  [[nodiscard]] TimerFactory timers() override { return port_->timers(); }
  [[nodiscard]] SoftPort* port() const { return port_.get(); }

 private:
  LinearMemory* memory_;
  CpuidTable cpuid_;
  IoApic* io_apic_;
  MmioDevices* mmio_;
  const MachineModel* model_;
  std::uint64_t most_ticks_;
  vpmu::exec::Compiling compiling_;
  Log* log_;
  std::unique_ptr<SoftPort> port_;
};

/// Messages go through the I/O APIC, which the processor looks at.
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
      : memory_{&needs.linear},
        model_{needs.resolved.model},
        bare_metal_{needs.config.bare_metal},
        threads_per_core_{needs.config.threads_per_core},
        epoch_{needs.config.epoch},
        most_ticks_{needs.config.most_ticks},
        compiling_{needs.config.compiling},
        mmio_{&needs.mmio},
        log_{&needs.log} {}

  Result<std::unique_ptr<Processor>> add_processor(unsigned id) override {
    const CpuidTable supported = supported_features();
    const CpuidRequest request{.model = *model_,
                               .supported = supported,
                               .tsc_deadline = true,
                               .tsc_hz = SoftPort::default_tsc_khz * 1000,
                               .cpus = 1,
                               .bare_metal = bare_metal_,
                               .threads_per_core = threads_per_core_};
    tell_of_lost_features();
    auto processor = std::make_unique<SoftProcessor>(*memory_, guest_cpuid(request, id), io_apic_, *mmio_, *model_,
                                                     most_ticks_, compiling_, *log_);
    processor_ = processor.get();
    return processor;
  }
  Result<void> set_line(std::uint32_t gsi, LineLevel level) override {
    io_apic_.set_line(gsi, level);
    return {};
  }
  [[nodiscard]] DeviceWires& wires() override { return wires_; }
  [[nodiscard]] std::time_t time_of_day() const override {
    return epoch_ + static_cast<std::time_t>(processor_->port()->wall_ticks() / (SoftPort::default_tsc_khz * 1000));
  }
  void written(vpmu::GuestPhysical page) override {
    if (processor_ != nullptr && processor_->port() != nullptr) processor_->port()->written(page);
  }

 private:
  void tell_of_lost_features() {
    const auto lost = lost_features(feature_table(*model_));
    if (lost.empty()) return;
    log_->warning("a {} has {}, which this host's CPU lacks: the guest's CPUID leaves that out", model_->name,
                  fmt::join(lost, ", "));
  }

  LinearMemory* memory_;
  const MachineModel* model_;
  bool bare_metal_;
  unsigned threads_per_core_;
  std::time_t epoch_;
  std::uint64_t most_ticks_;
  vpmu::exec::Compiling compiling_;
  MmioDevices* mmio_;
  Log* log_;
  IoApic io_apic_;
  SoftWires wires_{io_apic_};
  SoftProcessor* processor_{};
};

}  // namespace

Result<std::unique_ptr<Accelerator>> make_soft_accelerator(const AcceleratorNeeds& needs) {
  if (needs.config.cpus != 1)
    return usage_error(fmt::format("{} processors, but without KVM a machine has one", needs.config.cpus),
                       "give --cpus 1, or --accel kvm on a host with KVM");
  return std::make_unique<SoftAccelerator>(needs);
}

}  // namespace vmm
