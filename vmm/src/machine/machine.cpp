#include "machine/machine.hpp"

#include <ctime>

#include <fmt/format.h>

#include "boot/acpi.hpp"
#include "boot/cpu_tables.hpp"
#include "boot/elf_image.hpp"
#include "boot/file.hpp"
#include "boot/layout.hpp"
#include "boot/linux_image.hpp"
#include "kvm/capabilities.hpp"
#include "kvm/kick.hpp"
#include "machine/guest_cpuid.hpp"
#include "machine/model.hpp"
#include "support/assert.hpp"
#include "vcpu/pmu_setup.hpp"

namespace vmm {
namespace {

// IA32_BIOS_SIGN_ID: the microcode revision is in the upper half. SDM 3A 9.11.7.1.
constexpr std::uint32_t msr_bios_sign_id = 0x8B;
// IA32_MTRR_DEF_TYPE: MTRRs on, everything write-back, as firmware leaves it. SDM 3A 11.11.2.1.
constexpr std::uint32_t msr_mtrr_def_type = 0x2FF;
constexpr std::uint64_t mtrr_on_write_back = 0x806;

/// Loads the kernel into fresh memory and says how the first vCPU starts.
Result<StartRegisters> load_guest(const GuestMemory& memory, const MachineConfig& config) {
  VMM_ASSIGN(const auto kernel, InputFile::open(config.kernel, "kernel"));
  const auto rsdp = write_acpi_tables(memory, config.cpus);
  VMM_ASSERT(write_cpu_tables(memory));
  if (is_elf_image(kernel.bytes())) {
    VMM_ASSIGN(const auto entry, load_elf(memory, kernel.bytes()));
    return StartRegisters{.rip = entry,
                          .rsp = layout::stack_top.value(),
                          .rdi = config.elf_arguments.rdi,
                          .rsi = config.elf_arguments.rsi};
  }
  std::optional<InputFile> initrd;
  if (!config.initrd.empty()) {
    VMM_ASSIGN(initrd, InputFile::open(config.initrd, "initrd"));
  }
  VMM_ASSIGN(const auto linux, load_linux(memory, kernel.bytes(), initrd ? initrd->bytes() : std::span<const std::byte>{},
                                          config.command_line, rsdp));
  return StartRegisters{.rip = linux.entry, .rsp = layout::stack_top.value(), .rsi = layout::zero_page.value()};
}

}  // namespace

/// A wire into the in-kernel interrupt controllers.
class Machine::Line final : public InterruptLine {
 public:
  Line(Machine& machine, std::uint32_t gsi) : machine_{&machine}, gsi_{gsi} {}
  void set(LineLevel level) override {
    const auto native = level == LineLevel::high ? Vm::Level::high : Vm::Level::low;
    if (auto done = machine_->vm_.set_line(gsi_, native); !done) {
      machine_->fail(std::move(done).error());
    }
  }

 private:
  Machine* machine_;
  std::uint32_t gsi_;
};

Machine::Machine(Vm vm, GuestMemory memory, Hooks hooks, Log& log)
    : vm_{std::move(vm)},
      memory_{std::move(memory)},
      hooks_{std::move(hooks)},
      log_{&log},
      ram_access_{memory_},
      linear_{ram_access_} {}

Machine::~Machine() {
  request_stop(StopReason::user);
  for (auto& vcpu : vcpus_) {
    vcpu->join();
  }
}

Result<std::unique_ptr<Machine>> Machine::create(const MachineConfig& config, Hooks hooks, Log& log) {
  VMM_ASSIGN(const auto resolved, resolve(config));
  VMM_ASSIGN(auto memory, GuestMemory::create(config.memory_bytes));
  VMM_ASSIGN(const auto start, load_guest(memory, config));
  VMM_ASSIGN(const auto system, System::open(config.kvm_device));
  VMM_TRY(require_capabilities(system));
  VMM_TRY(install_kick_handler());
  VMM_ASSIGN(auto vm, system.create_vm());
  std::unique_ptr<Machine> machine{new Machine{std::move(vm), std::move(memory), std::move(hooks), log}};
  VMM_TRY(machine->add_chips(vpmu::describe(resolved.generation), config.rdpmc));
  machine->add_devices();
  VMM_TRY(machine->add_vcpus(system, config, resolved));
  VMM_TRY(enter_long_mode(machine->vcpus_.front()->vcpu(), start));
  return machine;
}

Result<void> Machine::add_chips(const vpmu::GenerationDesc& generation, RdpmcMethod rdpmc) {
  VMM_TRY(vm_.set_reserved_pages(layout::kvm_reserved));
  VMM_TRY(vm_.create_irqchip());
  VMM_TRY(vm_.create_pit());
  // Without it KVM polls in a halted vCPU, and the thread's CPU time would include the guest's idle time.
  if (vm_.check(KVM_CAP_HALT_POLL) != 0) {
    VMM_TRY(vm_.enable(KVM_CAP_HALT_POLL, {0}));
  }
  VMM_TRY(prepare_vm_for_pmu(vm_, generation, rdpmc));
  return memory_.attach(vm_);
}

void Machine::add_devices() {
  const auto add = [this](std::uint16_t first, std::uint16_t count, std::unique_ptr<PortDevice> device) {
    ports_.add(first, count, *device);
    devices_.push_back(std::move(device));
  };
  serial_line_ = std::make_unique<Line>(*this, Serial16550::com1_line);
  serial_ = std::make_unique<Serial16550>(hooks_.console, *serial_line_);
  ports_.add(Serial16550::com1_port, Serial16550::port_count, *serial_);
  add(IgnoredPort::post_port, 1, std::make_unique<IgnoredPort>());
  add(AcpiPower::first_port, AcpiPower::port_count, std::make_unique<AcpiPower>(*this));
  add(Rtc::first_port, Rtc::port_count, std::make_unique<Rtc>([] { return std::time(nullptr); }));
  add(ResetPort::port, 1, std::make_unique<ResetPort>(*this));
  add(PanicPort::port, 1, std::make_unique<PanicPort>(*this));
  add(KeyboardController::data_port, 1, std::make_unique<KeyboardController>(*this));
  add(KeyboardController::command_port, 1, std::make_unique<KeyboardController>(*this));
}

Result<void> Machine::add_vcpus(const System& system, const MachineConfig& config, const ResolvedConfig& resolved) {
  const auto& model = machine_model(resolved.generation);
  VMM_ASSIGN(const auto supported, system.supported_cpuid());
  const bool tsc_deadline = vm_.check(KVM_CAP_TSC_DEADLINE_TIMER) != 0;
  const PmuVcpuConfig pmu{.pmu = {.generation = resolved.generation, .policies = config.pmu_policies},
                          .source = resolved.source,
                          .unknown_msr = config.unknown_msr,
                          .lvtpc_masked = config.lvtpc_masked,
                          .rdpmc = config.rdpmc};
  VcpuServices services{.vm = vm_,
                              .memory = linear_,
                              .ports = ports_,
                              .machine = *this,
                              .fail = [this](Error error) { fail(std::move(error)); },
                              .log = *log_,
                              .pmu_time = config.pmu_time};
  for (unsigned id = 0; id < config.cpus; ++id) {
    VMM_ASSIGN(auto vcpu, vm_.create_vcpu(id));
    VMM_ASSIGN(const auto khz, vcpu.tsc_khz());
    if (config.cpus > 1) {
      if (!clocks_) clocks_.emplace(khz / 2);  // half a millisecond
      clocks_->join([this, id] { vcpus_[id]->kick_if_running(); });
      services.clocks = &*clocks_;
    }
    const CpuidRequest request{.model = model,
                               .supported = supported,
                               .tsc_deadline = tsc_deadline,
                               .tsc_hz = std::uint64_t{khz} * 1000,
                               .cpus = config.cpus};
    VMM_TRY(vcpu.set_cpuid(guest_cpuid(request, id)));
    VMM_TRY(vcpu.set_msr(msr_bios_sign_id, std::uint64_t{model.microcode} << 32U));
    VMM_TRY(vcpu.set_msr(msr_mtrr_def_type, mtrr_on_write_back));
    vcpus_.push_back(std::make_unique<VcpuThread>(services, std::move(vcpu), pmu));
  }
  return {};
}

void Machine::start() {
  started_ = std::chrono::steady_clock::now();
  for (auto& vcpu : vcpus_) {
    vcpu->start();
  }
}

void Machine::request_stop(StopReason reason) {
  {
    const std::scoped_lock lock{mutex_};
    if (reason_) {
      return;
    }
    reason_ = reason;
  }
  for (auto& vcpu : vcpus_) {
    vcpu->ask_to_stop();
  }
  if (hooks_.stop_requested) {
    hooks_.stop_requested();
  }
}

void Machine::fail(Error error) {
  {
    const std::scoped_lock lock{mutex_};
    if (!failure_) {
      failure_ = std::move(error);
    }
  }
  request_stop(StopReason::host_failure);
}

StopReason Machine::wait() {
  for (auto& vcpu : vcpus_) {
    vcpu->join();
  }
  const std::scoped_lock lock{mutex_};
  VMM_ASSERT(reason_.has_value());
  return *reason_;
}

std::optional<StopReason> Machine::stop_reason() const {
  const std::scoped_lock lock{mutex_};
  return reason_;
}

std::optional<Error> Machine::failure() const {
  const std::scoped_lock lock{mutex_};
  return failure_;
}

MachineStatistics Machine::statistics() {
  const auto running = std::chrono::steady_clock::now() - started_;
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(running).count();
  MachineStatistics all;
  all.machine = {{"uptime_ms", static_cast<std::uint64_t>(milliseconds)},
                 {"memory.bytes", memory_.bytes()},
                 {"ports.unclaimed", ports_.unclaimed()}};
  for (auto& vcpu : vcpus_) {
    all.vcpus.push_back(vcpu->statistics());
  }
  return all;
}

}  // namespace vmm
