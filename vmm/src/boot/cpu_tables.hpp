#pragma once
#include <cstdint>

#include "kvm/vcpu.hpp"
#include "memory/guest_memory.hpp"
#include "support/result.hpp"
#include "vpmu/address.hpp"

namespace vmm {

/// The general registers with which the first vCPU starts; all others are 0.
struct StartRegisters {
  vpmu::GuestPhysical rip;
  std::uint64_t rsp{};
  std::uint64_t rdi{};
  std::uint64_t rsi{};
};

/// Writes the boot GDT and page tables (4 GiB mapped one to one in 2 MiB pages) at their places in vmm::layout.
/// False when the places are not RAM.
[[nodiscard]] bool write_cpu_tables(const GuestMemory& memory);

/// The boot vCPU's registers in 64-bit mode on those tables: CS 10H, data segments 18H, interrupts off (the 64-bit boot
/// protocol's state). What the mode does not decide stays as in `from`.
kvm_sregs long_mode(const kvm_sregs& from);
kvm_regs start_registers(const StartRegisters& start);
/// Puts the boot vCPU there.
Result<void> enter_long_mode(Vcpu& vcpu, const StartRegisters& start);

}  // namespace vmm
