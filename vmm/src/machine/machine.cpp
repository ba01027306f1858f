#include "machine/machine.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "boot/acpi.hpp"
#include "boot/cpu_tables.hpp"
#include "boot/elf_image.hpp"
#include "boot/layout.hpp"
#include "boot/linux_image.hpp"
#include "boot/multiboot_image.hpp"
#include "files/input_file.hpp"
#include "kvm/kick.hpp"
#include "machine/settle.hpp"
#include "passthrough/passed_vcpu.hpp"
#include "support/assert.hpp"

namespace vmm {
namespace {

static_assert(MachineConfig::most_cpus <= MachineImage::most_vcpus);

/// Far larger than any kernel; an initial RAM disk may be as large as memory.
constexpr std::uint64_t longest_kernel = 1ULL << 30U;

Result<std::vector<std::byte>> read_image(const std::string& path, const std::string& name, std::uint64_t most) {
  return read_whole_file(path, {.what = "the " + name, .advice = "give a readable file with --" + name}, most);
}

/// Empty if there is none.
Result<std::shared_ptr<const std::vector<std::byte>>> read_initrd(const MachineConfig& config) {
  if (config.initrd_content) return config.initrd_content;
  auto initrd = std::make_shared<std::vector<std::byte>>();
  if (config.initrd.empty()) return initrd;
  VMM_ASSIGN(*initrd, read_image(config.initrd, "initrd", std::max(longest_kernel, config.memory_bytes)));
  return initrd;
}

Result<StartRegisters> load_multiboot_guest(const GuestMemory& memory, const MachineConfig& config,
                                            std::span<const std::byte> kernel) {
  VMM_ASSIGN(const auto module, read_initrd(config));
  VMM_ASSIGN(const auto loaded, load_multiboot(memory, kernel, *module, config.command_line));
  return StartRegisters{.mode = StartRegisters::Mode::bits32,
                        .rip = loaded.entry,
                        .rax = multiboot_boot_magic,
                        .rbx = loaded.info.value(),
                        .rsp = layout::stack_top.value()};
}

/// Loads the kernel into fresh memory and returns how the first vCPU starts.
Result<StartRegisters> load_guest(const GuestMemory& memory, const MachineConfig& config, PciBridge bridge) {
  VMM_ASSIGN(const auto kernel, read_image(config.kernel, "kernel", longest_kernel));
  const auto rsdp = write_acpi_tables(memory, config.cpus, bridge);
  VMM_ASSERT(write_cpu_tables(memory));
  if (is_multiboot_image(kernel)) return load_multiboot_guest(memory, config, kernel);
  if (is_elf_image(kernel)) {
    if (!config.initrd.empty() || !config.command_line.empty())
      return usage_error(fmt::format("{} is an ELF file, which gets neither an initial RAM disk nor a command line",
                                     printable(config.kernel)),
                         "leave out --initrd and --append, or give a bzImage with --kernel");
    VMM_ASSIGN(const auto loaded, load_elf(memory, kernel));
    return StartRegisters{.rip = loaded.entry,
                          .rsp = layout::stack_top.value(),
                          .rdi = config.elf_arguments.rdi,
                          .rsi = config.elf_arguments.rsi};
  }
  VMM_ASSIGN(const auto initrd, read_initrd(config));
  VMM_ASSIGN(const auto linux, load_linux(memory, kernel, *initrd, config.command_line, rsdp));
  return StartRegisters{.rip = linux.entry, .rsp = layout::stack_top.value(), .rsi = layout::zero_page.value()};
}

/// Fails unless the machine continues on the accelerator that it ran on. Without KVM, takes over its configuration.
Result<void> match_accelerator(const MachineImage& image, MachineConfig& config) {
  const bool without_kvm = config.accel == Accel::soft;
  if (image.without_kvm != without_kvm)
    return usage_error(fmt::format("the machine saved in {} ran {} KVM", printable(config.restore),
                                   image.without_kvm ? "without" : "on"),
                       fmt::format("give --accel {} with --restore", image.without_kvm ? "soft" : "kvm"));
  if (!without_kvm) return {};
  config.epoch = image.epoch;
  const Schedule schedule{.turn = image.turn, .seed = image.turn_seed};
  if (!schedule.is_possible())
    return usage_error(
        fmt::format("the snapshot has an impossible length of vCPU turns: {} instructions", schedule.turn),
        snapshot_advice);
  if (!config.schedule) config.schedule = schedule;
  return {};
}

}  // namespace

/// A wire into the interrupt controllers.
class Machine::Line final : public InterruptLine {
 public:
  Line(Machine& machine, std::uint32_t gsi) : machine_{&machine}, gsi_{gsi} {}
  void set(LineLevel level) override {
    if (auto done = machine_->accelerator_->set_line(gsi_, level); !done) {
      machine_->fail(std::move(done).error());
    }
  }

 private:
  Machine* machine_;
  std::uint32_t gsi_;
};

Machine::Machine(GuestMemory memory, Hooks hooks, Log& log)
    : memory_{std::move(memory)},
      hooks_{std::move(hooks)},
      log_{&log},
      ram_access_{memory_},
      linear_{ram_access_, [this](vpmu::GuestPhysical page) { accelerator_->written(page); }} {}

Machine::~Machine() {
  request_stop(StopReason::user);
  for (auto& vcpu : vcpus_) {
    vcpu->join();
  }
}

Result<std::unique_ptr<Machine>> Machine::create(const MachineConfig& given, Hooks hooks, Log& log) {
  MachineConfig config = given;
  VMM_ASSIGN(const Settled settled, settle(config));
  for (const std::string& line : settled.lines()) log.info("{}", line);
  std::optional<SnapshotReader> snapshot;
  const MachineImage* image = nullptr;
  if (!config.restore.empty()) {
    VMM_ASSIGN(auto opened, SnapshotReader::open(config.restore));
    image = &snapshot.emplace(std::move(opened)).image();
    config.model = image->model;
    config.memory_bytes = image->memory_bytes;
    config.cpus = image->cpus;
    config.threads_per_core = image->threads_per_core;
    config.bare_metal = image->bare_metal;
    VMM_TRY(match_accelerator(*image, config));
  }
  VMM_ASSIGN(const auto resolved, resolve(config));
  const bool has_bus = static_cast<bool>(hooks.make_devices);
  VMM_ASSIGN(auto memory, GuestMemory::create(config.memory_bytes, has_bus ? GuestBacking::shared : GuestBacking::own));
  StartRegisters start;
  if (image) {
    VMM_TRY(snapshot->read_memory(memory));
  } else {
    VMM_ASSIGN(start, load_guest(memory, config, has_bus ? PciBridge::present : PciBridge::absent));
  }
  VMM_TRY(install_kick_handler());
  std::unique_ptr<Machine> machine{new Machine{std::move(memory), std::move(hooks), log}};
  const AcceleratorNeeds needs{.config = config,
                               .resolved = resolved,
                               .memory = machine->memory_,
                               .linear = machine->linear_,
                               .mmio = machine->pci_,
                               .log = log};
  const auto make = config.accel == Accel::kvm ? make_kvm_accelerator : make_soft_accelerator;
  VMM_ASSIGN(machine->accelerator_, make(needs));
  machine->add_devices(config);
  if (has_bus) {
    VMM_ASSIGN(auto devices, machine->hooks_.make_devices(machine->memory_));
    if (devices.size() >= PciBus::most_devices)
      return usage_error(
          fmt::format("{} devices, but a PCI bus has room for {}", devices.size(), PciBus::most_devices - 1),
          "share fewer directories");
    machine->add_virtio(std::move(devices));
  }
  VMM_TRY(machine->add_vcpus(config, resolved, start, image));
  if (image) VMM_TRY(machine->restore(*image));
  return machine;
}

void Machine::add_devices(const MachineConfig& config) {
  const auto add = [this](std::uint16_t first, std::uint16_t count, std::unique_ptr<PortDevice> device) {
    ports_.add(first, count, *device);
    devices_.push_back(std::move(device));
  };
  serial_line_ = std::make_unique<Line>(*this, Serial16550::com1_line);
  serial_ = std::make_unique<Serial16550>(hooks_.console, *serial_line_);
  ports_.add(Serial16550::com1_port, Serial16550::port_count, *serial_);
  add(IgnoredPort::post_port, 1, std::make_unique<IgnoredPort>());
  auto power = std::make_unique<AcpiPower>(*this);
  power_ = power.get();
  add(AcpiPower::first_port, AcpiPower::port_count, std::move(power));
  auto rtc = std::make_unique<Rtc>([this] { return accelerator_->time_of_day(); });
  rtc_ = rtc.get();
  add(Rtc::first_port, Rtc::port_count, std::move(rtc));
  auto firmware_config = std::make_unique<FirmwareConfig>(config.memory_bytes, config.cpus);
  firmware_config_ = firmware_config.get();
  add(FirmwareConfig::selector_port, 2, std::move(firmware_config));
  add(ExitPort::port, 1, std::make_unique<ExitPort>(*this));
  add(ResetPort::port, 1, std::make_unique<ResetPort>(*this));
  add(PanicPort::port, 1, std::make_unique<PanicPort>(*this));
  add(KeyboardController::data_port, 1, std::make_unique<KeyboardController>(*this));
  add(KeyboardController::command_port, 1, std::make_unique<KeyboardController>(*this));
}

void Machine::add_virtio(std::vector<std::unique_ptr<virtio::Device>> devices) {
  ports_.add(PciBus::address_port, PciBus::address_ports, pci_);
  ports_.add(PciBus::data_port, PciBus::data_ports, pci_);
  auto window = static_cast<std::uint32_t>(layout::pci_window.value());
  for (auto& device : devices) {
    const virtio::PciDevice::Machine machine{
        .written =
            [this](vpmu::GuestPhysical at, std::uint64_t bytes) {
              const std::uint64_t first = at.value() / vpmu::page_size,
                                  end = (at.value() + bytes - 1) / vpmu::page_size;
              for (std::uint64_t page = first; bytes != 0 && page <= end; ++page)
                accelerator_->written(vpmu::GuestPhysical{page * vpmu::page_size});
            },
        .failed = [this](Error error) { fail(std::move(error)); },
        .refused = [this](const Error& error) { log_->warning("a virtio device needs a reset: {}", describe(error)); },
        .attention =
            [this] {
              attention_ = true;
              vcpus_.front()->kick_if_running();
            }};
    auto function = std::make_unique<virtio::PciDevice>(std::move(device), window, accelerator_->wires(), machine);
    virtio_.push_back(function.get());
    pci_.add(std::move(function));
    window += virtio::PciDevice::window_bytes;
  }
}

Result<void> Machine::add_vcpus(const MachineConfig& config, const ResolvedConfig& resolved,
                                const StartRegisters& start, const MachineImage* image) {
  made_as_ = {.model = config.model,
              .memory_bytes = config.memory_bytes,
              .cpus = config.cpus,
              .threads_per_core = config.threads_per_core,
              .bare_metal = config.bare_metal,
              .without_kvm = config.accel == Accel::soft,
              .epoch = config.epoch,
              .turn = config.schedule.value_or(Schedule{}).turn,
              .turn_seed = config.schedule.value_or(Schedule{}).seed};
  const VcpuServices services{.memory = linear_,
                              .ports = ports_,
                              .mmio = pci_,
                              .machine = *this,
                              .fail = [this](Error error) { fail(std::move(error)); },
                              .log = *log_,
                              .attention = attention_,
                              .attend =
                                  [this] {
                                    for (virtio::PciDevice* const device : virtio_) device->attend();
                                  },
                              .time_up =
                                  [this] {
                                    if (!hooks_.time_up) return request_stop(StopReason::user);
                                    hooks_.time_up();
                                  },
                              .confine = hooks_.confine_vcpu};
  const bool passes_through = resolved.passes_through();
  if (!passes_through)
    uncore_ =
        std::make_unique<PackageUncore>(*vpmu::describe(resolved.model->generation).uncore, config.threads_per_core,
                                        config.cpus, [this](unsigned id) { vcpus_[id]->kick_if_running(); });
  const PerfHostFactory perf_hosts = linux_perf_hosts();
  for (unsigned id = 0; id < config.cpus; ++id) {
    VMM_ASSIGN(auto processor, accelerator_->add_processor(id));
    if (id == 0 && image == nullptr) VMM_TRY(processor->start_at(start));
    const Bytes vcpu_image = image == nullptr ? Bytes{} : image->vcpus[id];
    if (passes_through) {
      vcpus_.push_back(std::make_unique<VcpuThread>(
          services, id, std::move(processor), [](VcpuPort& port) { return std::make_unique<PassedVcpu>(port); },
          vcpu_image));
      continue;
    }
    const PmuVcpuConfig pmu{
        .pmu = {.generation = resolved.model->generation,
                .smt = config.threads_per_core == 2,
                .policies = config.pmu_policies},
        .uncore = {.package = uncore_.get(), .id = id},
        .source = resolved.source,
        .source_options = config.source_options,
        .source_services = {.make_timer = processor->timers(),
                            .make_perf_host = perf_hosts,
                            .caches = config.accel == Accel::soft && config.cpus > 1 ? &caches_ : nullptr},
        .unknown_msr = config.unknown_msr,
        .lvtpc_masked = config.lvtpc_masked,
        .rdpmc = config.rdpmc};
    vcpus_.push_back(std::make_unique<VcpuThread>(
        services, id, std::move(processor),
        [this, pmu](VcpuPort& port) { return PmuVcpu::create(pmu, port, linear_, *log_); }, vcpu_image));
  }
  return {};
}

void Machine::start() {
  for (virtio::PciDevice* const device : virtio_)
    if (auto begun = device->begin(); !begun) fail(std::move(begun).error());
  started_ = std::chrono::steady_clock::now();
  for (auto& vcpu : vcpus_) {
    vcpu->start();
  }
}

Result<void> Machine::restore(const MachineImage& image) {
  VMM_TRY(accelerator_->restore_chips(image.chips));
  ByteReader in{image.devices};
  serial_->restore(in);
  rtc_->restore(in);
  power_->set_enable(in.get<std::uint16_t>());
  firmware_config_->restore(in);
  if (!in.done())
    return usage_error("the snapshot's state of the devices has another format than this version's", version_advice);
  return {};
}

/// While the vCPUs are paused.
Result<MachineImage> Machine::save() {
  MachineImage image = made_as_;
  for (auto& vcpu : vcpus_) {
    VMM_ASSIGN(image.vcpus.emplace_back(), vcpu->paused());
  }
  VMM_ASSIGN(image.chips, accelerator_->save_chips());
  ByteWriter devices;
  serial_->save(devices);
  rtc_->save(devices);
  devices.put(power_->enable());
  firmware_config_->save(devices);
  image.devices = devices.take();
  return image;
}

Result<void> Machine::snapshot(WholeFile file, AfterSnapshot then) {
  if (!virtio_.empty())
    return usage_error("cannot save a guest with virtio devices: a part of their state is in other processes",
                       "save a guest that has no such devices");
  if (uncore_ && uncore_->was_written())
    return usage_error("cannot save this guest: it has used the uncore's counters, which a snapshot does not include",
                       "save a guest that runs without --bare-metal");
  for (auto& vcpu : vcpus_) vcpu->pause();
  const auto image = save();
  const auto written = image ? write_snapshot(std::move(file), *image, memory_) : Failure{image.error()};
  if (written && then == AfterSnapshot::stop) request_stop(StopReason::user);
  for (auto& vcpu : vcpus_) vcpu->resume();
  return written;
}

void Machine::request_stop(StopReason reason) {
  {
    const std::scoped_lock lock{mutex_};
    if (reason_) {
      return;
    }
    reason_ = reason;
  }
  for (virtio::PciDevice* const device : virtio_) device->cancel();
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
                 {"ports.unclaimed", ports_.unclaimed()},
                 {"uncore.unserved_selects", uncore_ ? uncore_->unserved_selects() : 0}};
  for (auto& vcpu : vcpus_) {
    all.vcpus.push_back(vcpu->statistics());
  }
  return all;
}

}  // namespace vmm
