#include "kvm/capabilities.hpp"

#include <linux/kvm.h>

#include <array>

#include <fmt/format.h>

namespace vmm {
namespace {

#define VMM_CAP(name) name, #name

constexpr std::array capability_rows{
    CapabilityRow{VMM_CAP(KVM_CAP_IRQCHIP), Need::required, "in-kernel LAPIC and IOAPIC"},
    CapabilityRow{VMM_CAP(KVM_CAP_PIT2), Need::required, "in-kernel timer 8254"},
    CapabilityRow{VMM_CAP(KVM_CAP_USER_MEMORY), Need::required, "guest memory from this process"},
    CapabilityRow{VMM_CAP(KVM_CAP_SET_TSS_ADDR), Need::required, "real mode on Intel hosts"},
    CapabilityRow{VMM_CAP(KVM_CAP_EXT_CPUID), Need::required, "the chosen CPU model"},
    CapabilityRow{VMM_CAP(KVM_CAP_MP_STATE), Need::required, "more than one vCPU"},
    CapabilityRow{VMM_CAP(KVM_CAP_USER_NMI), Need::required, "performance monitoring interrupts as NMI"},
    CapabilityRow{VMM_CAP(KVM_CAP_SIGNAL_MSI), Need::required, "performance monitoring interrupts by vector"},
    CapabilityRow{VMM_CAP(KVM_CAP_SET_GUEST_DEBUG), Need::required, "RDPMC and precise samples"},
    CapabilityRow{VMM_CAP(KVM_CAP_DEBUGREGS), Need::required, "the guest's own breakpoints"},
    CapabilityRow{VMM_CAP(KVM_CAP_VCPU_EVENTS), Need::required, "exceptions in flight"},
    CapabilityRow{VMM_CAP(KVM_CAP_IMMEDIATE_EXIT), Need::required, "completing an access before a sample (Linux 4.12)"},
    CapabilityRow{VMM_CAP(KVM_CAP_X86_USER_SPACE_MSR), Need::required, "PMU registers (Linux 5.10)"},
    CapabilityRow{VMM_CAP(KVM_CAP_X86_MSR_FILTER), Need::required, "PMU registers (Linux 5.10)"},
    CapabilityRow{VMM_CAP(KVM_CAP_SYNC_REGS), Need::optional, "fewer system calls per exit (Linux 4.17)"},
    CapabilityRow{VMM_CAP(KVM_CAP_HALT_POLL), Need::optional, "thread CPU time without idle polling (Linux 5.10)"},
    CapabilityRow{VMM_CAP(KVM_CAP_PMU_CAPABILITY), Need::optional,
                  "turning KVM's own vPMU off; absent when it is off (Linux 5.18)"},
    CapabilityRow{VMM_CAP(KVM_CAP_SET_GUEST_DEBUG2), Need::optional, "stepping with interrupts held back (Linux 5.13)"},
    CapabilityRow{VMM_CAP(KVM_CAP_VCPU_ATTRIBUTES), Need::optional, "exact guest time stamps (Linux 5.16)"},
    CapabilityRow{VMM_CAP(KVM_CAP_TSC_DEADLINE_TIMER), Need::optional, "the guest's cheapest timer"},
};

#undef VMM_CAP

}  // namespace

std::vector<CapabilityAnswer> probe_capabilities(const System& system) {
  std::vector<CapabilityAnswer> answers;
  for (const auto& row : capability_rows) {
    answers.push_back({.row = &row, .value = system.check(row.number)});
  }
  return answers;
}

Result<void> require_capabilities(const System& system) {
  for (const auto& answer : probe_capabilities(system)) {
    if (answer.row->need == Need::required && answer.value == 0) {
      return host_error(fmt::format("this KVM lacks {} ({})", answer.row->name, answer.row->use), 0,
                        "use a newer host kernel, or run in the bed: `tools/dev/bed/run -- COMMAND`");
    }
  }
  return {};
}

}  // namespace vmm
