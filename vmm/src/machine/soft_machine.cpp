#include "machine/soft_machine.hpp"

#include <fmt/format.h>

#include "boot/cpu_tables.hpp"
#include "boot/elf_image.hpp"
#include "boot/file.hpp"
#include "boot/layout.hpp"
#include "machine/guest_cpuid.hpp"
#include "machine/model.hpp"
#include "support/assert.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

/// What the engine and SystemUnit can do of what CPUID tells, in the form of KVM_GET_SUPPORTED_CPUID.
CpuidTable supported_features() {
  using vpmu::bit;
  CpuidTable table;
  // CMPXCHG16B, MOVBE and the vector extensions are not there; POPCNT is.
  constexpr auto leaf_1_ecx = static_cast<std::uint32_t>(bit(23));
  // TSC, MSR, PAE, CX8, APIC, MTRR, PGE, CMOV, PAT.
  constexpr auto leaf_1_edx = static_cast<std::uint32_t>(bit(4) | bit(5) | bit(6) | bit(8) | bit(9) | bit(12) | bit(13) | bit(15) | bit(16));
  table.add(1, {.ecx = leaf_1_ecx, .edx = leaf_1_edx});
  // LAHF64, LZCNT; NX, long mode.
  table.add(0x80000001, {.ecx = static_cast<std::uint32_t>(bit(0) | bit(5)), .edx = static_cast<std::uint32_t>(bit(20) | bit(29))});
  return table;
}

/// After reset: enabled, the boot processor's. SDM 3A figure 10-5.
constexpr std::uint64_t apic_base_after_reset = 0xFEE0'0000 | vpmu::bit(11) | vpmu::bit(8);

Result<StartRegisters> load_kernel(const GuestMemory& memory, const MachineConfig& config) {
  VMM_ASSIGN(const auto kernel, InputFile::open(config.kernel, "kernel"));
  VMM_ASSERT(write_cpu_tables(memory));
  VMM_ASSIGN(const auto entry, load_elf(memory, kernel.bytes()));
  return StartRegisters{.rip = entry,
                        .rsp = layout::stack_top.value(),
                        .rdi = config.elf_arguments.rdi,
                        .rsi = config.elf_arguments.rsi};
}

}  // namespace

SoftMachine::SoftMachine(GuestMemory memory, Log& log)
    : memory_{std::move(memory)}, log_{&log}, ram_access_{memory_}, linear_{ram_access_} {}

Result<std::unique_ptr<SoftMachine>> SoftMachine::create(const MachineConfig& config, Log& log) {
  VMM_ASSIGN(const auto resolved, resolve(config));
  VMM_ASSIGN(auto memory, GuestMemory::create(config.memory_bytes));
  VMM_ASSIGN(const auto start, load_kernel(memory, config));
  std::unique_ptr<SoftMachine> machine{new SoftMachine{std::move(memory), log}};
  const CpuidTable supported = supported_features();
  const CpuidRequest request{.model = machine_model(resolved.generation),
                             .supported = supported,
                             .tsc_deadline = false,
                             .tsc_hz = SoftPort::default_tsc_khz * 1000,
                             .cpus = 1};
  kvm_sregs reset{};
  reset.apic_base = apic_base_after_reset;
  machine->port_ = std::make_unique<SoftPort>(machine->linear_, guest_cpuid(request, 0), long_mode(reset), start_registers(start));
  const PmuVcpuConfig pmu{.pmu = {.generation = resolved.generation, .policies = config.pmu_policies},
                          .source = resolved.source,
                          .unknown_msr = config.unknown_msr,
                          .lvtpc_masked = config.lvtpc_masked,
                          .make_timer = machine->port_->timers(),
                          .rdpmc = config.rdpmc};
  VMM_ASSIGN(machine->pmu_, PmuVcpu::create(pmu, *machine->port_, machine->linear_, log));
  return machine;
}

Result<StopReason> SoftMachine::run(std::uint64_t ticks) {
  port_->stop_after(ticks);
  while (!reason_) {
    VMM_ASSIGN(const Exit exit, pmu_->run());
    VMM_TRY(answer(exit));
  }
  return *reason_;
}

Result<void> SoftMachine::answer(const Exit& exit) {
  const auto cannot_go_on = [&](std::string_view what) -> Result<void> {
    VMM_ASSIGN(const kvm_regs regs, port_->regs());
    return host_error(fmt::format("the vCPU without KVM stopped at RIP {:#x}: {}", regs.rip, what), 0, "run this guest with KVM");
  };
  return std::visit(overload{
                        [&](const PortRead& access) -> Result<void> {
                          ports_.read(access);
                          return {};
                        },
                        [&](const PortWrite& access) -> Result<void> {
                          ports_.write(access);
                          return {};
                        },
                        [&](const Interrupted& /*exit*/) -> Result<void> {
                          if (port_->is_stopped()) request_stop(StopReason::user);
                          return {};
                        },
                        [&](const Hlt& /*exit*/) -> Result<void> {
                          request_stop(StopReason::power_off);
                          return {};
                        },
                        [&](const Shutdown& /*exit*/) -> Result<void> {
                          request_stop(StopReason::triple_fault);
                          return {};
                        },
                        [&](const InternalError& /*exit*/) { return cannot_go_on("the engine does not know the instruction there"); },
                        [&](const auto& /*exit*/) { return cannot_go_on("an exit that nobody answers"); },
                    },
                    exit);
}

MachineStatistics SoftMachine::statistics() const {
  MachineStatistics all{.machine = {{"memory.bytes", memory_.bytes()}, {"ports.unclaimed", ports_.unclaimed()}}, .vcpus = {{.id = 0, .counters = {}}}};
  pmu_->visit_statistics([&all](std::string_view name, std::uint64_t value) { all.vcpus[0].counters.push_back({std::string{name}, value}); });
  return all;
}

}  // namespace vmm
