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
#include "vcpu/backend.hpp"

namespace vmm {

/// One processor of a machine, as its thread runs it.
class Processor {
 public:
  virtual ~Processor() = default;
  /// Sets where and in which state the first processor starts. Before open().
  virtual Result<void> start_at(const StartRegisters& start) = 0;
  /// The back end through which its thread runs the processor. Once, on that thread; it lives as long as this object.
  virtual Result<VcpuBackend*> open() = 0;
  /// The thread ends and will not run the processor again.
  virtual void close() {}
  /// That thread is being kicked: ends a run() that the signal alone does not interrupt. Any thread.
  virtual void kicked() {}
  /// That thread will do something else for some time: other processors need not wait for it.
  virtual void let_go() {}
  /// The flag that a kick sets: run() then returns Interrupted.
  [[nodiscard]] virtual volatile std::uint8_t* kick_flag() = 0;
  /// The clock that sources count by.
  [[nodiscard]] virtual TimerFactory timers() { return CpuTimer::create; }
  /// The whole state as bytes between two runs, on its thread; restore() is called before open(). Fails with kind usage
  /// if the bytes are not of such a processor.
  virtual Result<Bytes> save() = 0;
  virtual Result<void> restore(std::span<const std::byte> image) = 0;
};

/// What an accelerator needs from its machine.
struct AcceleratorNeeds {
  const MachineConfig& config;
  const ResolvedConfig& resolved;
  GuestMemory& memory;
  LinearMemory& linear;
  MmioDevices& mmio;
  Log& log;
};

/// Runs a machine's processors, and provides their interrupt controllers and clocks: KVM or software.
class Accelerator {
 public:
  virtual ~Accelerator() = default;
  /// Adds processor `id`; ids must be added in order.
  virtual Result<std::unique_ptr<Processor>> add_processor(unsigned id) = 0;
  /// The rate of the guest's TSC if CPUID does not tell it. After the first processor was added.
  [[nodiscard]] virtual std::optional<std::uint64_t> untold_tsc_khz() const = 0;
  /// Drives a line of the IOAPIC. Any thread.
  virtual Result<void> set_line(std::uint32_t gsi, LineLevel level) = 0;
  /// Connects devices on the PCI bus to the processors.
  [[nodiscard]] virtual DeviceWires& wires() = 0;
  /// The time of day, in seconds since 1970. On a processor's thread.
  [[nodiscard]] virtual std::time_t time_of_day() const = 0;
  /// A page of RAM was written by something other than a processor.
  virtual void written(vpmu::GuestPhysical /*page*/) {}
  /// The state of the interrupt controllers and timers, while no processor runs; and the reverse.
  virtual Result<Bytes> save_chips() = 0;
  virtual Result<void> restore_chips(std::span<const std::byte> image) = 0;
};

/// Fails with kind host if this host has no usable KVM.
Result<std::unique_ptr<Accelerator>> make_kvm_accelerator(const AcceleratorNeeds& needs);
/// Fails with kind usage if the configuration needs KVM.
Result<std::unique_ptr<Accelerator>> make_soft_accelerator(const AcceleratorNeeds& needs);

}  // namespace vmm
