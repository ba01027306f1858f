#include "virtio/pci_device.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "support/assert.hpp"
#include "vpmu/bits.hpp"

namespace vmm::virtio {
namespace {

// BAR 0 holds the four structures, a page each; BAR 1 the MSI-X table.
constexpr unsigned bar_structures = 0, bar_msix = 1;
constexpr std::uint32_t structure_bytes = 4096, structures_bytes = 4 * structure_bytes;
constexpr std::uint32_t page_common = 0, page_isr = 1, page_device = 2, page_notify = 3;
constexpr std::uint32_t notify_multiplier = 4;

constexpr std::uint16_t vendor = 0x1AF4, first_device = 0x1040;  // Virtio 1.2 4.1.2
constexpr std::uint8_t capability_vendor = 0x09, capability_msix = 0x11;

/// Virtio 1.2 2.1.
namespace status {
constexpr std::uint8_t driver_ok = 4, features_ok = 8, needs_reset = 64;
}
constexpr std::uint8_t isr_queue = 1, isr_configuration = 2;

/// Class, subclass, programming interface. PCI code and ID assignment specification.
std::uint32_t class_of(DeviceType type) {
  switch (type) {
    case DeviceType::net: return 0x02'00'00;
    case DeviceType::block: return 0x01'00'00;
    case DeviceType::console: return 0x07'80'00;
    case DeviceType::file_system: return 0x01'80'00;
  }
  return 0xFF'00'00;
}

std::uint64_t number(std::span<const std::byte> in) {
  std::uint64_t value = 0;
  std::memcpy(&value, in.data(), std::min(in.size(), sizeof value));
  return value;
}

Failure unreadable_device() {
  return usage_error("the snapshot's state of a virtio device makes no sense", snapshot_advice);
}

std::uint16_t largest(const Device& device, std::size_t queue) { return device.queue_sizes()[queue]; }

/// Sets one half of a 64-bit field, or all of it.
void put_address(std::uint64_t& field, bool high, unsigned bytes, std::uint64_t value) {
  if (bytes == 8 && !high) {
    field = value;
    return;
  }
  if (bytes != 4) return;
  const unsigned shift = high ? 32 : 0;
  field = (field & ~(0xFFFF'FFFFULL << shift)) | value << shift;
}

/// The common configuration. Virtio 1.2 4.1.4.3.
namespace common {
enum Offset : std::uint32_t {
  device_feature_select = 0,
  device_feature = 4,
  driver_feature_select = 8,
  driver_feature = 12,
  configuration_vector = 16,
  num_queues = 18,
  device_status = 20,
  configuration_generation = 21,
  queue_select = 22,
  queue_size = 24,
  queue_vector = 26,
  queue_enable = 28,
  queue_notify_off = 30,
  queue_descriptors = 32,
  queue_driver = 40,
  queue_device = 48,
  end = 56,
};
}

}  // namespace

PciDevice::PciDevice(std::unique_ptr<Device> device, std::uint32_t window, DeviceWires& wires, Machine machine)
    : device_{std::move(device)},
      wires_{&wires},
      machine_{std::move(machine)},
      header_{{.vendor = vendor,
               .device = static_cast<std::uint16_t>(first_device + static_cast<unsigned>(device_->type())),
               .class_code = class_of(device_->type()),
               .revision = 1,
               .subsystem_vendor = vendor,
               .subsystem = 0x40}},
      msix_{static_cast<unsigned>(device_->queue_sizes().size()) + 1},
      queues_(device_->queue_sizes().size()),
      wired_(queues_.size()) {
  header_.add_bar(bar_structures, structures_bytes, window);
  header_.add_bar(bar_msix, MsixTable::bytes, window + structures_bytes);
  add_capabilities();
  for (std::size_t i = 0; i < queues_.size(); ++i) queues_[i].size = largest(*device_, i);
}

PciDevice::~PciDevice() {
  if (started_) device_->stop();
}

// Virtio 1.2 4.1.4; PCI 3.0 6.8.2.
void PciDevice::add_capabilities() {
  const auto put = [](auto& body, std::size_t at, std::uint32_t value) { std::memcpy(body.data() + at, &value, 4); };
  const auto add = [&](std::uint8_t type, std::uint32_t page, std::uint32_t length) {
    // From cap_len on: the length, the type, the BAR, id and padding, then offset and length in the BAR.
    std::array<std::uint8_t, 14> body{16, type, bar_structures};
    put(body, 6, page * structure_bytes);
    put(body, 10, length);
    header_.add_capability(capability_vendor, body);
  };
  add(1, page_common, 64);
  add(3, page_isr, 4);
  add(4, page_device, structure_bytes);
  std::array<std::uint8_t, 18> notify{20, 2, bar_structures};
  put(notify, 6, page_notify * structure_bytes);
  put(notify, 10, structure_bytes);
  put(notify, 14, notify_multiplier);
  header_.add_capability(capability_vendor, notify);
  std::array<std::uint8_t, 10> msix{};
  msix[0] = static_cast<std::uint8_t>(msix_.vectors() - 1);
  put(msix, 2, bar_msix);
  put(msix, 6, MsixTable::pending_offset | bar_msix);
  msix_capability_ = header_.add_capability(capability_msix, msix);
  header_.make_writable(msix_capability_, 0xC000'0000);  // enable, function mask
}

std::uint32_t PciDevice::config_read(std::uint8_t offset) {
  const std::scoped_lock lock{mutex_};
  return header_.read(offset);
}

void PciDevice::config_write(std::uint8_t offset, std::uint32_t value, std::uint32_t mask) {
  {
    const std::scoped_lock lock{mutex_};
    header_.write(offset, value, mask);
    msix_.set_control(static_cast<std::uint16_t>(header_.read(msix_capability_) >> 16U));
  }
  rewire();
}

bool PciDevice::memory_read(vpmu::GuestPhysical at, std::span<std::byte> out) {
  std::unique_lock lock{mutex_};
  const auto hit = header_.find(at);
  if (!hit) return false;
  if (hit->bar == bar_msix) {
    msix_.read(hit->offset, out);
    return true;
  }
  const std::uint32_t offset = hit->offset % structure_bytes;
  std::ranges::fill(out, std::byte{0});
  switch (hit->offset / structure_bytes) {
    case page_common: {
      const std::uint64_t value = read_common(offset);
      std::memcpy(out.data(), &value, std::min(out.size(), sizeof value));
      return true;
    }
    case page_isr:
      if (offset == 0) out[0] = static_cast<std::byte>(std::exchange(isr_, 0));
      return true;
    case page_device:
      lock.unlock();
      with_driver([&] { device_->read_configuration(offset, out); });
      return true;
    default: return true;
  }
}

bool PciDevice::memory_write(vpmu::GuestPhysical at, std::span<const std::byte> in) {
  std::unique_lock lock{mutex_};
  const auto hit = header_.find(at);
  if (!hit) return false;
  if (hit->bar == bar_msix) {
    msix_.write(hit->offset, in);
    lock.unlock();
    rewire();
    return true;
  }
  lock.unlock();
  const std::uint32_t offset = hit->offset % structure_bytes;
  const auto bytes = static_cast<unsigned>(in.size());
  switch (hit->offset / structure_bytes) {
    case page_common:
      if (offset == common::device_status)
        write_status(static_cast<std::uint8_t>(number(in)));
      else
        write_common(offset, bytes, number(in));
      return true;
    case page_device: with_driver([&] { device_->write_configuration(offset, in); }); return true;
    case page_notify: notify(offset); return true;
    default: return true;
  }
}

std::uint64_t PciDevice::read_common(std::uint32_t offset) const {
  const Queue none{};
  const Queue& queue = select_ < queues_.size() ? queues_[select_] : none;
  const auto half = [](std::uint64_t value, std::uint32_t select) {
    return select > 1 ? 0 : value >> (select * 32) & 0xFFFF'FFFF;
  };
  switch (offset) {
    case common::device_feature_select: return device_feature_select_;
    case common::device_feature: return half(device_->features() | f_version_1, device_feature_select_);
    case common::driver_feature_select: return driver_feature_select_;
    case common::driver_feature: return half(driver_features_, driver_feature_select_);
    case common::configuration_vector: return configuration_vector_;
    case common::num_queues: return queues_.size();
    case common::device_status: return status_;
    case common::configuration_generation: return generation_;
    case common::queue_select: return select_;
    case common::queue_size: return queue.size;
    case common::queue_vector: return queue.vector;
    case common::queue_enable: return queue.enabled ? 1 : 0;
    case common::queue_notify_off: return select_ < queues_.size() ? select_ : 0;
    case common::queue_descriptors: return queue.descriptors;
    case common::queue_descriptors + 4: return queue.descriptors >> 32U;
    case common::queue_driver: return queue.driver;
    case common::queue_driver + 4: return queue.driver >> 32U;
    case common::queue_device: return queue.device;
    case common::queue_device + 4: return queue.device >> 32U;
    default: return 0;
  }
}

void PciDevice::write_common(std::uint32_t offset, unsigned bytes, std::uint64_t value) {
  {
    const std::scoped_lock lock{mutex_};
    switch (offset) {
      case common::device_feature_select: device_feature_select_ = static_cast<std::uint32_t>(value); break;
      case common::driver_feature_select: driver_feature_select_ = static_cast<std::uint32_t>(value); break;
      case common::driver_feature:
        if ((status_ & status::features_ok) == 0 && driver_feature_select_ <= 1)
          put_address(driver_features_, driver_feature_select_ == 1, bytes, value);
        break;
      case common::configuration_vector:
        configuration_vector_ = value < msix_.vectors() ? static_cast<std::uint16_t>(value) : no_vector;
        break;
      case common::queue_select: select_ = static_cast<std::uint16_t>(value); break;
      default: write_queue(offset, bytes, value); break;
    }
  }
  rewire();
}

void PciDevice::write_queue(std::uint32_t offset, unsigned bytes, std::uint64_t value) {
  Queue* const queue = selected();
  if (queue == nullptr) return;
  if (offset == common::queue_vector) {
    queue->vector = value < msix_.vectors() ? static_cast<std::uint16_t>(value) : no_vector;
    return;
  }
  // The settings of an enabled queue cannot be changed until the next reset.
  if (queue->enabled) return;
  switch (offset) {
    case common::queue_size:
      if (value != 0 && (value & (value - 1)) == 0 && value <= largest(*device_, select_))
        queue->size = static_cast<std::uint16_t>(value);
      return;
    case common::queue_enable: queue->enabled = value == 1; return;
    default: break;
  }
  const std::array addresses{&queue->descriptors, &queue->driver, &queue->device};
  const std::uint32_t half = (offset - common::queue_descriptors) / 4;
  if (offset % 4 == 0 && half / 2 < addresses.size()) put_address(*addresses[half / 2], half % 2 != 0, bytes, value);
}

// Virtio 1.2 3.1.1: the driver's steps, in its order.
void PciDevice::write_status(std::uint8_t value) {
  const std::scoped_lock order{driver_};
  if (value == 0) return reset();
  bool starts = false;
  {
    const std::scoped_lock lock{mutex_};
    const std::uint64_t offered = device_->features() | f_version_1;
    const bool acceptable = (driver_features_ & ~offered) == 0 && (driver_features_ & f_version_1) != 0;
    if (!acceptable) value = static_cast<std::uint8_t>(value & ~status::features_ok);
    status_ = static_cast<std::uint8_t>(value | (status_ & status::needs_reset));
    starts = (status_ & status::driver_ok) != 0 && (status_ & status::features_ok) != 0 && !started_;
  }
  if (starts) start();
  rewire();
}

void PciDevice::start() {
  const auto started = device_->start(setup());
  if (started)
    started_ = true;
  else
    broken(started.error());
}

void PciDevice::broken(const Error& error) {
  machine_.refused(error);
  const std::scoped_lock lock{mutex_};
  status_ |= status::needs_reset;
  isr_ |= isr_configuration;
  raise(configuration_vector_);
}

DriverSetup PciDevice::setup() const {
  const std::scoped_lock lock{mutex_};
  DriverSetup setup{.features = driver_features_, .rings = {}};
  for (const Queue& queue : queues_) {
    auto& ring = setup.rings.emplace_back();
    if (!queue.enabled) continue;
    using vpmu::GuestPhysical;
    ring = {queue.size, GuestPhysical{queue.descriptors}, GuestPhysical{queue.driver}, GuestPhysical{queue.device}};
  }
  return setup;
}

void PciDevice::reset() {
  if (started_.exchange(false)) device_->stop();
  {
    const std::scoped_lock lock{mutex_};
    for (std::size_t i = 0; i < queues_.size(); ++i) queues_[i] = Queue{.size = largest(*device_, i)};
    driver_features_ = device_feature_select_ = driver_feature_select_ = 0;
    select_ = status_ = isr_ = 0;
    configuration_vector_ = no_vector;
  }
  rewire();
}

// The device first: until it rests, it may interrupt.
Result<void> PciDevice::save(ByteWriter& out) {
  const std::scoped_lock order{driver_};
  ByteWriter of_device;
  if (started_) VMM_TRY(device_->save(of_device));
  const std::scoped_lock lock{mutex_};
  out.put(Saved{.driver_features = driver_features_,
                .device_feature_select = device_feature_select_,
                .driver_feature_select = driver_feature_select_,
                .type = static_cast<std::uint16_t>(device_->type()),
                .queues = static_cast<std::uint16_t>(queues_.size()),
                .select = select_,
                .configuration_vector = configuration_vector_,
                .status = status_,
                .generation = generation_,
                .isr = isr_,
                .started = static_cast<std::uint8_t>(started_ ? 1 : 0),
                .none = 0});
  for (const Queue& queue : queues_)
    out.put(SavedQueue{.descriptors = queue.descriptors,
                       .driver = queue.driver,
                       .device = queue.device,
                       .size = queue.size,
                       .vector = queue.vector,
                       .enabled = static_cast<std::uint16_t>(queue.enabled ? 1 : 0),
                       .none = 0});
  header_.save(out);
  msix_.save(out);
  out.put_run(of_device.take());
  return {};
}

void PciDevice::go_on() {
  const std::scoped_lock order{driver_};
  if (!started_) return;
  device_->go_on();
  // As restore() does: what has come meanwhile is served before the guest runs on, whichever of the two it was.
  attention();
}

/// Whether a driver can have set it so.
bool PciDevice::is_possible(const Queue& queue, std::size_t number) const {
  return std::has_single_bit(queue.size) && queue.size <= largest(*device_, number) &&
         (queue.vector == no_vector || queue.vector < msix_.vectors());
}

Result<void> PciDevice::restore(ByteReader& in) {
  const std::scoped_lock order{driver_};
  const auto saved = in.get<Saved>();
  const auto type = static_cast<std::uint16_t>(device_->type());
  if (saved.type != type || saved.queues != queues_.size())
    return usage_error(fmt::format("the snapshot has a virtio device of type {} with {} queues where this machine has "
                                   "one of type {} with {}",
                                   saved.type, saved.queues, type, queues_.size()),
                       "restore it with the devices that it was saved with");
  {
    const std::scoped_lock lock{mutex_};
    for (std::size_t number = 0; number < queues_.size(); ++number) {
      const auto queue = in.get<SavedQueue>();
      queues_[number] = {.size = queue.size,
                         .vector = queue.vector,
                         .enabled = queue.enabled != 0,
                         .descriptors = queue.descriptors,
                         .driver = queue.driver,
                         .device = queue.device};
      if (!is_possible(queues_[number], number)) return unreadable_device();
    }
    driver_features_ = saved.driver_features;
    device_feature_select_ = saved.device_feature_select;
    driver_feature_select_ = saved.driver_feature_select;
    select_ = saved.select;
    configuration_vector_ = saved.configuration_vector;
    status_ = saved.status;
    generation_ = saved.generation;
    isr_ = saved.isr;
    header_.restore(in);
    msix_.restore(in);
    msix_.set_control(static_cast<std::uint16_t>(header_.read(msix_capability_) >> 16U));
  }
  const auto of_device = in.get_run();
  if (!in.good()) return unreadable_device();
  if (saved.started != 0) {
    if ((saved.driver_features & ~(device_->features() | f_version_1)) != 0)
      return usage_error(fmt::format("the snapshot's driver of a virtio device of type {} uses the features {:#x}, and "
                                     "the device has {:#x}",
                                     type, saved.driver_features, device_->features()),
                         "restore it with the daemons that it was saved with");
    ByteReader device{of_device};
    VMM_TRY(device_->resume(setup(), device));
    started_ = true;
    if (!device.done()) return unreadable_device();
    attention();  // what has arrived meanwhile comes before the guest runs
  }
  rewire();
  return {};
}

void PciDevice::notify(std::uint32_t offset) {
  const unsigned queue = offset / notify_multiplier;
  if (!started_ || queue >= queues_.size()) return;
  device_->notify(queue);
}

void PciDevice::used(unsigned queue) {
  VMM_ASSERT(queue < queues_.size());
  const std::scoped_lock lock{mutex_};
  isr_ |= isr_queue;
  raise(queues_[queue].vector);
}

void PciDevice::attention() {
  wants_attention_ = true;
  machine_.attention();
}

void PciDevice::attend() {
  if (wants_attention_.exchange(false)) device_->attend();
}

void PciDevice::configuration_changed() {
  const std::scoped_lock lock{mutex_};
  ++generation_;
  isr_ |= isr_configuration;
  raise(configuration_vector_);
}

/// Under mutex_.
void PciDevice::raise(std::uint16_t vector) {
  if (vector >= msix_.vectors()) return;
  if (const auto message = msix_.message(vector))
    check(wires_->send(*message));
  else
    msix_.set_pending(vector);
}

/// Adapts KVM's wiring to what the guest has set, and delivers interrupts that a mask has held back.
void PciDevice::rewire() {
  const std::scoped_lock lock{mutex_};
  while (const auto vector = msix_.take_pending()) check(wires_->send(*msix_.message(*vector)));
  const auto structures = header_.bar_address(bar_structures);
  for (unsigned i = 0; i < queues_.size(); ++i) {
    Wired wanted;
    if (started_ && queues_[i].enabled) {
      wanted.interrupt = msix_.message(queues_[i].vector);
      if (structures) wanted.stores = *structures + page_notify * structure_bytes + i * notify_multiplier;
    }
    check(rewire(i, wanted));
  }
}

Result<void> PciDevice::rewire(unsigned queue, const Wired& wanted) {
  Wired& now = wired_[queue];
  if (const Fd* const event = device_->used_event(queue); event != nullptr && now.interrupt != wanted.interrupt) {
    VMM_TRY(wires_->wire_interrupt(*event, wanted.interrupt));
    now.interrupt = wanted.interrupt;
  }
  if (const Fd* const event = device_->notify_event(queue); event != nullptr && now.stores != wanted.stores) {
    if (now.stores) VMM_TRY(wires_->wire_store(*now.stores, *event, DeviceWires::Wire::cut));
    now.stores.reset();
    if (wanted.stores) VMM_TRY(wires_->wire_store(*wanted.stores, *event, DeviceWires::Wire::connect));
    now.stores = wanted.stores;
  }
  return {};
}

void PciDevice::check(const Result<void>& done) const {
  if (!done) machine_.failed(done.error());
}

}  // namespace vmm::virtio
