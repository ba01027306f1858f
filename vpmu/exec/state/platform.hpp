#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "exec/state/cpu_feature.hpp"
#include "vpmu/paging.hpp"

namespace vpmu::exec {

/// Guest RAM as the engine uses it: page table words, and whole pages by host address.
class Ram : public PhysicalWords {
 public:
  virtual ~Ram() = default;
  /// The host address of the 4 KiB page of RAM that starts at `page`, or null where there is none. It is aligned as the
  /// page is, stays valid, and the guest may change the bytes at any time.
  virtual std::byte* page(GuestPhysical page) = 0;
  /// The engine is going to write to the page: for those who must know, such as a dirty log. Called before the first
  /// write to a page since Engine::tell_of_writes_anew(), and possibly before later ones.
  virtual void will_write(GuestPhysical page) = 0;
};

struct VectorState;

/// Executable memory for the engine's own routines.
class HostCode {
 public:
  virtual ~HostCode() = default;
  /// Copies `routine`, which is position-independent, and returns where the CPU can run it; null: there is no room, or
  /// no executable memory.
  virtual const std::byte* add(std::span<const std::byte> routine) = 0;
  /// Changes four bytes of added code, which no other thread runs meanwhile. False: nothing was changed.
  virtual bool change(const std::byte* at, std::uint32_t to) = 0;
  /// Forgets all that was added.
  virtual void clear() = 0;
};

/// The owner's answer for a system instruction.
enum class Answer : std::uint8_t {
  done,
  leave,  ///< Not the engine's to do: it stops before the instruction.
};

/// What CPUID gives.
struct CpuidAnswer {
  std::uint32_t eax{}, ebx{}, ecx{}, edx{};
};

/// What the engine asks its owner for. `leave` is always a right answer.
class Platform {
 public:
  virtual ~Platform() = default;
  virtual Answer rdmsr(std::uint32_t index, std::uint64_t& value) = 0;
  virtual Answer wrmsr(std::uint32_t index, std::uint64_t value) = 0;
  virtual Answer rdpmc(std::uint32_t index, std::uint64_t& value) = 0;
  virtual Answer rdtsc(std::uint64_t& value) = 0;
  /// With IA32_TSC_AUX beside it; `leave` also where the guest has no RDTSCP.
  virtual Answer rdtscp(std::uint64_t& /*value*/, std::uint64_t& /*aux*/) { return Answer::leave; }
  /// CPUID with these in EAX and ECX; what it gives in EAX, EBX, ECX and EDX.
  virtual Answer cpuid(std::uint32_t /*leaf*/, std::uint32_t /*subleaf*/, CpuidAnswer& /*out*/) {
    return Answer::leave;
  }
  /// CR8, the class of the task's priority. Asked in ring 0 only.
  virtual Answer read_cr8(std::uint64_t& /*value*/) { return Answer::leave; }
  virtual Answer write_cr8(std::uint64_t /*value*/) { return Answer::leave; }
  /// In ring 0 IF becomes 1, by STI or POPF. `done`: no interrupt waits, so none can come before the next look at that.
  virtual Answer enables_interrupts() { return Answer::leave; }
  /// SWAPGS in ring 0: exchanges the base of GS with IA32_KERNEL_GS_BASE.
  virtual Answer swap_gs(std::uint64_t& /*base*/) { return Answer::leave; }
  /// Ring 0 loads RSP from the memory at RSI and a displacement, as Linux does where it goes from the task in RDI to
  /// the one in RSI. Told with RSP as it was, before it changes.
  virtual void switches_stack(std::uint64_t /*to*/) {}
  /// Ring 3 executes XCHG RBX, RBX, which does nothing: Valgrind's client requests end with it. `behind`: RIP of the
  /// next instruction.
  virtual void exchanges_rbx(std::uint64_t /*behind*/) {}
  /// Whether the guest's CPU has the feature. Instructions of a feature that it lacks are left to the owner; LZCNT and
  /// TZCNT then are BSR and BSF. Asked when an instruction is decoded: the answer must stay the same.
  virtual bool has(CpuFeature /*feature*/) { return true; }
  /// Whether no other vCPU of the guest runs at the same time. Then LOCK with a misaligned operand need not be atomic,
  /// and the engine runs it; otherwise it leaves that to the owner.
  virtual bool runs_alone() { return false; }
  /// The vCPU's x87 and vector state, which the engine then changes in place until the next Engine::load() or resume().
  /// Asked for at the first such instruction. Null: those are left to the owner.
  virtual VectorState* vectors() { return nullptr; }
};

/// Leaves everything to the owner.
class NoPlatform : public Platform {
 public:
  Answer rdmsr(std::uint32_t, std::uint64_t&) override { return Answer::leave; }
  Answer wrmsr(std::uint32_t, std::uint64_t) override { return Answer::leave; }
  Answer rdpmc(std::uint32_t, std::uint64_t&) override { return Answer::leave; }
  Answer rdtsc(std::uint64_t&) override { return Answer::leave; }
};

}  // namespace vpmu::exec
