#pragma once
#include <variant>

#include "decode/system_instruction.hpp"
#include "kvm/cpuid_table.hpp"
#include "processor/exceptions.hpp"
#include "processor/guest_features.hpp"
#include "processor/msr_unit.hpp"
#include "processor/split_mix.hpp"

namespace vmm {

/// Results of a system instruction.
struct Completed {};
struct Raised {
  Exception exception;
  EventKind kind{EventKind::fault};
};
/// An MSR that is not held here: the instruction completes when the access has been answered.
struct MsrAccess {
  std::uint32_t index{};
  std::uint64_t value{};  ///< Of a write.
  bool write{};
};
/// RDPMC of the counter in ECX.
struct CounterAccess {};
struct PortAccess {
  std::uint16_t port{};
  std::uint8_t bytes{};
  bool write{};
};
using SystemResult = std::variant<Completed, Raised, MsrAccess, CounterAccess, PortAccess>;

/// Emulates system instructions for a vCPU without KVM, as kernels use them. SDM volume 2.
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
        random_{.state = std::uint64_t{state.id} << 32U} {}

  /// Runs `i`, whose memory operand, if any, is at `operand`. Advances RIP when the instruction completes; otherwise
  /// RIP is unchanged, except for traps.
  SystemResult run(const SystemInstruction& i, std::optional<std::uint64_t> operand);

  /// The state of the generator behind RDRAND and RDSEED.
  [[nodiscard]] std::uint64_t random_state() const { return random_.state; }
  void set_random_state(std::uint64_t state) { random_.state = state; }

 private:
  SystemResult execute(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  SystemResult rdmsr();
  SystemResult wrmsr();
  SystemResult load_table(kvm_dtable& table, const SystemInstruction& i, std::uint64_t operand);
  SystemResult store_table(const kvm_dtable& table, std::uint64_t operand);
  SystemResult load_task(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  SystemResult load_local_table(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  SystemResult load_system_segment(kvm_segment& to, std::uint16_t selector, unsigned type);
  SystemResult examine_segment(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  SystemResult load_machine_status(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  SystemResult give(const SystemInstruction& i, std::optional<std::uint64_t> operand, std::uint64_t value);
  SystemResult system_call(const SystemInstruction& i);
  SystemResult write_segment(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  SystemResult load_segment(unsigned number, std::uint16_t selector);
  SystemResult set_segment(unsigned number, std::uint16_t selector);
  SystemResult push_segment(const SystemInstruction& i);
  SystemResult pop_segment(const SystemInstruction& i);
  SystemResult far_branch(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  SystemResult read_segment(const SystemInstruction& i, std::optional<std::uint64_t> operand);
  SystemResult write_control(const SystemInstruction& i);
  SystemResult write_cr0(std::uint64_t value);
  SystemResult read_control(const SystemInstruction& i);
  SystemResult write_debug(const SystemInstruction& i);
  SystemResult read_debug(const SystemInstruction& i);
  SystemResult port(const SystemInstruction& i);
  SystemResult interrupt_flag(bool on);
  SystemResult popf(std::uint8_t bytes);
  [[nodiscard]] std::optional<Exception> fetch_selector(const SystemInstruction& i,
                                                        std::optional<std::uint64_t> operand, std::uint16_t& selector);
  void cpuid();
  SystemResult write_cr4(std::uint64_t value);
  [[nodiscard]] std::optional<Raised> debug_fault(const SystemInstruction& i);
  SystemResult xsetbv();
  SystemResult xgetbv();
  SystemResult read_base(const SystemInstruction& i);
  SystemResult write_base(const SystemInstruction& i);
  SystemResult give_random(const SystemInstruction& i);
  void set_gpr(const SystemInstruction& i, std::uint64_t value);
  [[nodiscard]] __u64& gpr(const SystemInstruction& i);
  [[nodiscard]] kvm_segment& segment(unsigned number);

  SoftState* s_;
  GuestView* view_;
  MsrUnit* msrs_;
  InterruptUnit* interrupts_;
  const CpuidTable* cpuid_;
  const GuestFeatures* features_;
  SplitMix64 random_;  ///< For RDRAND and RDSEED: the same numbers in each run.
};

}  // namespace vmm
