#include "machine/machine.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "boot/layout.hpp"
#include "kvm/kick.hpp"
#include "machine/automatic.hpp"
#include "machine/load_guest.hpp"
#include "model/own_part.hpp"
#include "passthrough/passed_vcpu.hpp"
#include "perf/linux_perf_host.hpp"
#include "support/assert.hpp"

namespace vmm {
namespace {

static_assert(MachineConfig::max_cpus <= MachineImage::max_vcpus);

/// Takes over what of its processor model was changed. Fails if that is not possible, or if something else is asked
/// for.
Result<void> match_changes(const MachineImage& image, MachineConfig& config) {
  vpmu::uarch::ProfileChanges saved;
  if (!image.changes.empty() && !add_changes(image.changes, saved))
    return usage_error(fmt::format("the snapshot has changes of the processor model that this version does not know: "
                                   "{}",
                                   printable(image.changes)),
                       snapshot_advice);
  vpmu::uarch::ProfileChanges& asked = config.source_options.changes;
  if (!asked.empty() && asked != saved)
    return usage_error(fmt::format("the machine saved in {} has {}, not {}", printable(config.restore),
                                   saved.empty() ? "its model's own parameters" : saved.text(), asked.text()),
                       "leave --set away: it goes on as it was saved");
  if (!saved.empty() && config.source != "exact")
    return usage_error(fmt::format("the machine saved in {} has {}, and the source {} has no processor model",
                                   printable(config.restore), saved.text(), printable(config.source)),
                       "give --source exact with --restore");
  asked = saved;
  return {};
}

/// Fails unless the machine continues on the accelerator that it ran on. Takes over its time, and without KVM its
/// configuration.
Result<void> match_accelerator(const MachineImage& image, MachineConfig& config) {
  const bool without_kvm = config.accel == Accel::soft;
  if (image.without_kvm != without_kvm)
    return usage_error(fmt::format("the machine saved in {} ran {} KVM", printable(config.restore),
                                   image.without_kvm ? "without" : "on"),
                       fmt::format("give --accel {} with --restore", image.without_kvm ? "soft" : "kvm"));
  if (image.time > static_cast<std::uint64_t>(TimeModel::pipeline))
    return usage_error(fmt::format("the snapshot has an unknown kind of time: {}", image.time), snapshot_advice);
  config.source_options.time = static_cast<TimeModel>(image.time);
  VMM_TRY(match_changes(image, config));
  if (!without_kvm) return {};
  config.epoch = image.epoch;
  const Schedule schedule{.turn = image.turn, .seed = image.turn_seed};
  if (!schedule.is_possible())
    return usage_error(fmt::format("the snapshot has an impossible length of vCPU turns: {} ticks", schedule.turn),
                       snapshot_advice);
  if (!config.schedule) config.schedule = schedule;
  return {};
}

}  // namespace

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
  VMM_ASSIGN(const Chosen chosen, choose_automatic(config));
  for (const std::string& line : chosen.lines()) log.info("{}", line);
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
    if (!image->changes.empty() && chosen.set.empty()) log.info("set {}", config.source_options.changes.text());
  }
  VMM_ASSIGN(const auto resolved, resolve(config));
  const bool has_bus = static_cast<bool>(hooks.make_devices);
  VMM_ASSIGN(auto memory, GuestMemory::create(config.memory_bytes, has_bus ? GuestBacking::shared : GuestBacking::own));
  LoadedGuest loaded;
  if (image) {
    VMM_TRY(snapshot->read_memory(memory));
  } else {
    VMM_ASSIGN(loaded, load_guest(memory, config, has_bus ? PciBridge::present : PciBridge::absent));
  }
  VMM_TRY(install_kick_handler());
  std::unique_ptr<Machine> machine{new Machine{std::move(memory), std::move(hooks), log}};
  const AcceleratorNeeds needs{.config = config,
                               .resolved = resolved,
                               .memory = machine->memory_,
                               .linear = machine->linear_,
                               .mmio = machine->test_memory_,
                               .log = log};
  const auto make = config.accel == Accel::kvm ? make_kvm_accelerator : make_soft_accelerator;
  VMM_ASSIGN(machine->accelerator_, make(needs));
  machine->add_devices(config);
  if (has_bus) {
    VMM_ASSIGN(auto devices, machine->hooks_.make_devices(machine->memory_));
    if (devices.size() >= PciBus::max_devices)
      return usage_error(
          fmt::format("{} devices, but a PCI bus has room for {}", devices.size(), PciBus::max_devices - 1),
          "share fewer directories");
    machine->add_virtio(std::move(devices));
  }
  VMM_TRY(machine->add_vcpus(config, resolved, loaded, image));
  if (image) VMM_TRY(machine->restore(*image));
  return machine;
}

void Machine::add_virtio(std::vector<std::unique_ptr<virtio::Device>> devices) {
  ports_.add(pci_);
  auto window = static_cast<std::uint32_t>(layout::pci_window.value());
  for (auto& device : devices) {
    const virtio::PciDevice::Machine machine{
        .written =
            [this](vpmu::GuestPhysical at, std::uint64_t bytes) {
              const std::uint64_t first = at.value() / vpmu::page_size,
                                  end = (at.value() + bytes - 1) / vpmu::page_size;
              // A driver may name all of RAM, and a guest that stops runs no code.
              for (std::uint64_t page = first; bytes != 0 && page <= end && !stops_; ++page)
                accelerator_->written(vpmu::GuestPhysical{page * vpmu::page_size});
            },
        .failed = [this](Error error) { fail(std::move(error)); },
        .refused =
            [this](const Error& error) {
              if (!stops_) log_->warning("a virtio device needs a reset: {}", describe(error));
            },
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

Result<void> Machine::add_vcpus(const MachineConfig& config, const ResolvedConfig& resolved, const LoadedGuest& loaded,
                                const MachineImage* image) {
  made_as_ = {.model = config.model,
              .memory_bytes = config.memory_bytes,
              .cpus = config.cpus,
              .threads_per_core = config.threads_per_core,
              .bare_metal = config.bare_metal,
              .without_kvm = config.accel == Accel::soft,
              .epoch = config.epoch,
              .turn = config.schedule.value_or(Schedule{}).turn,
              .turn_seed = config.schedule.value_or(Schedule{}).seed,
              .time = static_cast<std::uint64_t>(config.source_options.time),
              .changes = config.source_options.changes.text()};
  const VcpuServices services{.memory = linear_,
                              .ports = ports_,
                              .mmio = test_memory_,
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
  const vpmu::UncoreDesc* const uncore =
      resolved.model == nullptr ? nullptr : vpmu::describe(resolved.model->generation).uncore;
  if (config.accel == Accel::soft && uncore != nullptr)
    caches_ = std::make_unique<SharedCaches>(config.cpus, config.threads_per_core, uncore->caches.slices);
  const bool passes_through = resolved.passes_through();
  if (!passes_through && uncore != nullptr)
    uncore_ = std::make_unique<PackageUncore>(
        *uncore, config.threads_per_core, config.cpus, [this](unsigned id) { vcpus_[id]->kick_if_running(); },
        caches_ != nullptr && resolved.source == "exact" ? std::function{[this] { return caches_->llc(); }}
                                                         : std::function<vpmu::LlcCounts()>{});
  if (config.tasks != nullptr)
    config.tasks->kick_by([this] {
      for (auto& vcpu : vcpus_) vcpu->kick_if_running();
    });
  const PerfHostFactory perf_hosts = hooks_.perf_hosts ? hooks_.perf_hosts : linux_perf_hosts(linux_event_opener());
  for (unsigned id = 0; id < config.cpus; ++id) {
    VMM_ASSIGN(auto processor, accelerator_->add_processor(id));
    if (id == 0 && image == nullptr) {
      VMM_TRY(tell_tsc_rate(memory_, config, loaded, accelerator_->untold_tsc_khz()));
      VMM_TRY(processor->start_at(loaded.start));
    }
    const Bytes vcpu_image = image == nullptr ? Bytes{} : image->vcpus[id];
    if (passes_through) {
      vcpus_.push_back(std::make_unique<VcpuThread>(
          services, id, std::move(processor),
          [](VcpuBackend& backend) { return std::make_unique<PassedVcpu>(backend); }, vcpu_image));
      continue;
    }
    const PmuVcpuConfig pmu{.pmu = {.generation = resolved.model->generation,
                                    .smt = config.threads_per_core == 2,
                                    .policies = config.pmu_policies},
                            .uncore = {.package = uncore_.get(), .id = id, .core_khz = core_khz(config.source_options)},
                            .source = resolved.source,
                            .source_options = config.source_options,
                            .source_services = {.make_timer = processor->timers(),
                                                .make_perf_host = perf_hosts,
                                                .cpu = id,
                                                .caches = caches_.get()},
                            .unknown_msr = config.unknown_msr,
                            .tasks = config.tasks,
                            .cpu = id};
    vcpus_.push_back(std::make_unique<VcpuThread>(
        services, id, std::move(processor),
        [this, pmu](VcpuBackend& backend) { return PmuVcpu::create(pmu, backend, linear_, *log_); }, vcpu_image));
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
  return restore_devices(image.devices);
}

/// When the vCPUs have been asked to pause. What devices still do, they do before a CPU or an interrupt controller is
/// saved.
Result<MachineImage> Machine::save() {
  MachineImage image = made_as_;
  for (auto& vcpu : vcpus_) VMM_TRY(vcpu->wait_until_paused());
  if (uncore_ && uncore_->was_written())
    return usage_error("cannot save this guest: it has used the uncore's counters, which a snapshot does not include",
                       "save a guest that runs without --bare-metal");
  VMM_ASSIGN(const Bytes virtio, save_virtio());
  for (auto& vcpu : vcpus_) {
    VMM_ASSIGN(image.vcpus.emplace_back(), vcpu->save());
  }
  VMM_ASSIGN(image.chips, accelerator_->save_chips());
  image.devices = save_devices(virtio);
  return image;
}

void Machine::ask_to_pause() {
  for (auto& vcpu : vcpus_) vcpu->pause();
}

Result<MachineImage> Machine::pause() {
  ask_to_pause();
  auto image = save();
  if (!image) resume();
  return image;
}

void Machine::resume() {
  for (virtio::PciDevice* const device : virtio_) device->go_on();
  for (auto& vcpu : vcpus_) vcpu->resume();
}

Result<void> Machine::snapshot(WholeFile file, AfterSnapshot then) {
  VMM_ASSIGN(const MachineImage image, pause());
  const auto written = write_snapshot(std::move(file), image, memory_);
  if (written && then == AfterSnapshot::stop) request_stop(StopReason::user);
  resume();
  return written;
}

void Machine::request_stop(StopReason reason) {
  {
    const std::scoped_lock lock{mutex_};
    if (reason_) {
      return;
    }
    reason_ = reason;
    stops_ = true;
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
                 {"log.held_back", log_->held_back()},
                 {"uncore.unserved_selects", uncore_ ? uncore_->unserved_selects() : 0}};
  for (auto& vcpu : vcpus_) {
    all.vcpus.push_back(vcpu->statistics());
  }
  return all;
}

}  // namespace vmm
