#pragma once
#include "kvm/cpuid_table.hpp"
#include "processor/guest_features.hpp"
#include "processor/msr_unit.hpp"
#include "processor/port_unit.hpp"
#include "processor/program_unit.hpp"
#include "processor/segment_unit.hpp"
#include "processor/split_mix.hpp"
#include "processor/system_operands.hpp"

namespace vmm {

/// Emulates system instructions for a vCPU without KVM, as kernels use them: by the units for segments, programs and
/// ports; and itself what depends on the vCPU's features, MSRs, time or APIC. SDM volume 2.
class SystemUnit {
 public:
  /// All must outlive it. `view` reads the guest through `state`.
  SystemUnit(SoftState& state, GuestView& view, MsrUnit& msrs, InterruptUnit& interrupts, const CpuidTable& cpuid,
             const GuestFeatures& features)
      : s_{&state},
        view_{&view},
        msrs_{&msrs},
        interrupts_{&interrupts},
        cpuid_{&cpuid},
        features_{&features},
        segments_{state, view},
        programs_{state, view},
        ports_{state, view},
        random_{.state = std::uint64_t{state.id} << 32U} {}

  /// Runs `i`, whose memory operand, if any, is at `operand`. Advances RIP when the instruction completes; otherwise
  /// RIP is unchanged, except for traps.
  SystemResult run(const SystemInstruction& i, std::optional<std::uint64_t> operand);

  /// What the TLBs have lost by the instruction that has just run, if it changes_translations(). SDM 3A 4.10.4.1.
  [[nodiscard]] vpmu::TlbFlush lost(const SystemInstruction& i, std::optional<std::uint64_t> operand) const {
    return i.op == SystemOp::invpcid ? invalidated_ : flush_by(*s_, i, operand);
  }

  /// Takes the device's answer to a port access, of which a write has none. RIP is unchanged.
  PortUnit::End complete(const PortAccess& access, std::uint32_t value) { return ports_.complete(access, value); }

  /// The state of the generator behind RDRAND and RDSEED.
  [[nodiscard]] std::uint64_t random_state() const { return random_.state; }
  void set_random_state(std::uint64_t state) { random_.state = state; }

  /// CR8: the class of the task's priority. False for a value that is #GP. SDM 3A 10.8.6.
  [[nodiscard]] std::uint64_t cr8() const;
  [[nodiscard]] bool set_cr8(std::uint64_t value);
  /// What CPUID gives the guest now.
  [[nodiscard]] CpuidRegisters cpuid(std::uint32_t leaf, std::uint32_t subleaf) const;

 private:
  SystemResult execute(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  SystemResult rdmsr();
  SystemResult wrmsr();
  SystemResult rdtsc();
  void give_cpuid();
  SystemResult load_machine_status(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  SystemResult write_control(const SystemInstruction& i);
  SystemResult write_cr0(std::uint64_t value);
  SystemResult write_cr3(std::uint64_t value);
  SystemResult write_cr4(std::uint64_t value);
  SystemResult invalidate_by_pcid(const SystemInstruction& i, std::uint64_t descriptor);
  [[nodiscard]] bool has_bad_table_pointers(std::uint64_t cr3, std::uint64_t cr4);
  SystemResult read_control(const SystemInstruction& i);
  SystemResult write_debug(const SystemInstruction& i);
  SystemResult read_debug(const SystemInstruction& i);
  [[nodiscard]] std::optional<Raised> debug_fault(const SystemInstruction& i);
  SystemResult xsetbv();
  SystemResult xgetbv();
  SystemResult give_random(const SystemInstruction& i);

  SoftState* s_;
  GuestView* view_;
  MsrUnit* msrs_;
  InterruptUnit* interrupts_;
  const CpuidTable* cpuid_;
  const GuestFeatures* features_;
  SegmentUnit segments_;
  ProgramUnit programs_;
  PortUnit ports_;
  vpmu::TlbFlush invalidated_;  ///< By the last INVPCID.
  SplitMix64 random_;           ///< For RDRAND and RDSEED: the same numbers in each run.
};

}  // namespace vmm
