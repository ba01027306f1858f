// The devices on the port bus, and their saved state.
#include <fmt/format.h>

#include "devices/chipset.hpp"
#include "devices/firmware_config.hpp"
#include "devices/rtc.hpp"
#include "machine/machine.hpp"

namespace vmm {

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

// The order is that of their states in a snapshot. One more device with a state makes another section_file_version.
void Machine::add_devices(const MachineConfig& config) {
  const auto add = [this](std::unique_ptr<PortDevice> device) {
    ports_.add(*device);
    devices_.push_back(std::move(device));
  };
  serial_line_ = std::make_unique<Line>(*this, Serial16550::com1_line);
  auto serial = std::make_unique<Serial16550>(hooks_.console, *serial_line_);
  serial_ = serial.get();
  add(std::move(serial));
  add(std::make_unique<Rtc>([this] { return accelerator_->time_of_day(); }));
  add(std::make_unique<AcpiPower>(*this));
  add(std::make_unique<FirmwareConfig>(config.memory_bytes, config.cpus));
  add(std::make_unique<SystemControlPort>());
  add(std::make_unique<StoppedTimer>());
  add(std::make_unique<TestDevice>([this](std::uint32_t line, LineLevel level) { Line{*this, line}.set(level); }));
  add(std::make_unique<IgnoredPort>());
  add(std::make_unique<ExitPort>(*this));
  add(std::make_unique<ResetPort>(*this));
  add(std::make_unique<PanicPort>(*this));
  add(std::make_unique<KeyboardController>(*this));
}

Bytes Machine::save_devices(std::span<const std::byte> virtio) {
  ByteWriter out;
  for (const auto& device : devices_) device->save(out);
  out.put_run(test_memory_.kept());
  out.put_run(virtio);
  return out.take();
}

Result<void> Machine::restore_devices(std::span<const std::byte> image) {
  ByteReader in{image};
  for (const auto& device : devices_) device->restore(in);
  const bool kept = test_memory_.set_kept(in.get_run());
  const auto virtio = in.get_run();
  if (!kept || !in.done())
    return usage_error("the snapshot's state of the devices has another format than this version's", version_advice);
  return restore_virtio(virtio);
}

Result<Bytes> Machine::save_virtio() {
  ByteWriter out;
  out.put(std::uint64_t{virtio_.size()});
  if (!virtio_.empty()) pci_.save(out);
  for (virtio::PciDevice* const device : virtio_) VMM_TRY(device->save(out));
  return out.take();
}

Result<void> Machine::restore_virtio(std::span<const std::byte> image) {
  ByteReader in{image};
  const auto saved = in.get<std::uint64_t>();
  if (saved != virtio_.size())
    return usage_error(fmt::format("the snapshot has {} virtio devices, and this machine {}", saved, virtio_.size()),
                       "restore it with the devices that it was saved with");
  if (!virtio_.empty()) pci_.restore(in);
  for (virtio::PciDevice* const device : virtio_) VMM_TRY(device->restore(in));
  if (!in.done())
    return usage_error("the snapshot's state of the virtio devices has another format than this version's",
                       version_advice);
  return {};
}

}  // namespace vmm
