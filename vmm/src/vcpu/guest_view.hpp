#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "memory/linear.hpp"
#include "support/result.hpp"
#include "vcpu/backend.hpp"
#include "vpmu/env.hpp"
#include "vpmu/paging.hpp"

namespace vmm {

/// The privilege level the vCPU runs at: SS.DPL. SDM 3A 5.5.
unsigned cpl_of(const kvm_sregs& sregs);
/// Whether KVM is delivering an exception or interrupt: it enters the guest's handler before the next instruction.
bool is_delivering(const kvm_vcpu_events& events);
/// The registers that determine address translation, from KVM's structures.
vpmu::PagingState paging_state(const kvm_sregs& sregs, const kvm_regs& regs, PagingLimits limits);

/// The guest's linear memory as its current registers map it. Reads the registers at each call: cheap if KVM copies
/// them with each exit.
class GuestView {
 public:
  GuestView(VcpuBackend& backend, LinearMemory& memory) : backend_{&backend}, memory_{&memory} {}

  /// Implicit supervisor accesses, as the DS area and descriptor tables take them: RFLAGS.AC does not lift SMAP. SDM
  /// 3A 4.6.1.
  vpmu::AccessResult read(vpmu::GuestLinear at, std::span<std::byte> out);
  vpmu::AccessResult write(vpmu::GuestLinear at, std::span<const std::byte> in);
  vpmu::AccessResult probe(vpmu::GuestLinear at, std::uint64_t size, vpmu::AccessKind kind);
  /// The same, as loads and stores of the vCPU at its current privilege level. Where there is no RAM, the back end may
  /// know what is there.
  vpmu::AccessResult read_current(vpmu::GuestLinear at, std::span<std::byte> out);
  /// The same, as a program would, whatever runs now.
  vpmu::AccessResult read_as_program(vpmu::GuestLinear at, std::span<std::byte> out);
  vpmu::AccessResult write_current(vpmu::GuestLinear at, std::span<const std::byte> in);
  vpmu::AccessResult probe_current(vpmu::GuestLinear at, std::uint64_t size, vpmu::AccessKind kind);
  /// Instruction bytes at `at` as code at `cpl` would fetch them: up to the first fault, at most `out.size()`. No side
  /// effect.
  std::size_t fetch(vpmu::GuestLinear at, std::span<std::byte> out, unsigned cpl);
  /// An aligned word of 8 bytes of physical memory; empty where there is no RAM.
  std::optional<std::uint64_t> word_at(vpmu::GuestPhysical at) { return memory_->physical().read_word(at, 8); }
  /// Overwrites code in spite of its write protection; see LinearMemory::patch.
  bool patch(vpmu::GuestLinear at, std::span<const std::byte> in);

 private:
  struct Now {
    vpmu::PagingState paging;
    unsigned cpl;
  };
  std::optional<Now> now();
  std::optional<Now> implicit();
  VcpuBackend* backend_;
  LinearMemory* memory_;
};

}  // namespace vmm
