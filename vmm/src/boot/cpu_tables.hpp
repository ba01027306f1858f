#pragma once
#include <cstdint>

#include "kvm/vcpu.hpp"
#include "memory/guest_memory.hpp"
#include "support/result.hpp"
#include "vpmu/address.hpp"

namespace vmm {

/// The mode and the general registers with which the first vCPU starts; other general registers are 0.
struct StartRegisters {
  enum class Mode : std::uint8_t { bits64, bits32 };
  Mode mode{};
  vpmu::GuestPhysical rip;
  std::uint64_t rax{};
  std::uint64_t rbx{};
  std::uint64_t rsp{};
  std::uint64_t rdi{};
  std::uint64_t rsi{};
};

/// Writes the boot GDT and page tables (4 GiB mapped one to one in 2 MiB pages) at their places in vmm::layout.
/// False when the places are not RAM.
[[nodiscard]] bool write_cpu_tables(const GuestMemory& memory);

/// The boot vCPU's registers with those tables, interrupts off and data segments 18H: in 64-bit mode with CS 10H
/// (Linux's 64-bit boot protocol), or in protected mode without paging with CS 8 (multiboot). Registers that do not
/// depend on the mode stay as in `from`.
kvm_sregs start_sregs(const kvm_sregs& from, StartRegisters::Mode mode);
kvm_regs start_registers(const StartRegisters& start);
/// Gives the boot vCPU these registers.
Result<void> enter_at(Vcpu& vcpu, const StartRegisters& start);

}  // namespace vmm
