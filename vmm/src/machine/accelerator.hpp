#pragma once
#include <ctime>
#include <functional>
#include <memory>

#include "boot/cpu_tables.hpp"
#include "devices/device_wires.hpp"
#include "devices/interrupt_line.hpp"
#include "devices/mmio.hpp"
#include "machine/config.hpp"
#include "memory/linear.hpp"
#include "perf/cpu_timer.hpp"
#include "snapshot/byte_stream.hpp"
#include "support/log.hpp"
#include "vcpu/port.hpp"

namespace vmm {

/// One processor of a machine, and what its thread runs it by.
class Processor {
 public:
  virtual ~Processor() = default;
  /// Where and how the first processor starts. Before open().
  virtual Result<void> start_at(const StartRegisters& start) = 0;
  /// The processor as its thread runs it. Once, on that thread; lives as long as this object.
  virtual Result<VcpuPort*> open() = 0;
  /// That thread ends, and never runs it again.
  virtual void close() {}
  /// Somebody kicks that thread: brings it out of a run() in which the signal alone does not reach it. Any thread.
  virtual void kicked() {}
  /// That thread is going to do something else for long: other processors need not wait for it.
  virtual void let_go() {}
  /// What a kick sets: run() gives Interrupted.
  [[nodiscard]] virtual volatile std::uint8_t* kick_flag() = 0;
  /// The clock that sources count by.
  [[nodiscard]] virtual TimerFactory timers() { return CpuTimer::create; }
  /// All of it between two runs, as bytes, on its thread; and the reverse, before open(). Fails with kind usage where
  /// the bytes are not of such a processor.
  virtual Result<Bytes> save() = 0;
  virtual Result<void> restore(std::span<const std::byte> image) = 0;
};

/// What a machine needs of what its processors run on.
struct AcceleratorNeeds {
  const MachineConfig& config;
  const ResolvedConfig& resolved;
  GuestMemory& memory;
  LinearMemory& linear;
  MmioDevices& mmio;
  Log& log;
};

/// What the processors of a machine run on, with its interrupt controllers and clocks: KVM or software.
class Accelerator {
 public:
  virtual ~Accelerator() = default;
  /// Processor `id`; they are added in order.
  virtual Result<std::unique_ptr<Processor>> add_processor(unsigned id) = 0;
  /// Drives a line of the IOAPIC. Any thread.
  virtual Result<void> set_line(std::uint32_t gsi, LineLevel level) = 0;
  /// How devices on the PCI bus reach the processors.
  [[nodiscard]] virtual DeviceWires& wires() = 0;
  /// The time of day, in seconds since 1970. On a processor's thread.
  [[nodiscard]] virtual std::time_t time_of_day() const = 0;
  /// A page of RAM was written to by other means than a processor's own.
  virtual void written(vpmu::GuestPhysical /*page*/) {}
  /// The interrupt controllers and timers, while no processor runs; and the reverse.
  virtual Result<Bytes> save_chips() = 0;
  virtual Result<void> restore_chips(std::span<const std::byte> image) = 0;
};

/// Fails with kind host when this host has no fit KVM.
Result<std::unique_ptr<Accelerator>> make_kvm_accelerator(const AcceleratorNeeds& needs);
/// Fails with kind usage for what only KVM can do.
Result<std::unique_ptr<Accelerator>> make_soft_accelerator(const AcceleratorNeeds& needs);

}  // namespace vmm
