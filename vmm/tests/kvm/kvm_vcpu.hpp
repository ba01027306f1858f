#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "boot/cpu_tables.hpp"
#include "boot/layout.hpp"
#include "kvm/system.hpp"
#include "memory/guest_memory.hpp"

namespace vmm::test {

constexpr vpmu::GuestPhysical code_at{0x200000};

/// A VM with a LAPIC that runs a few instructions in 64-bit mode.
class KvmVcpu : public testing::Test {
 protected:
  void SetUp() override {
    auto system = System::open();
    if (!system) {
      GTEST_SKIP() << describe(system.error());
    }
    memory_ = *GuestMemory::create(GuestMemory::min_bytes);
    vm_.emplace(*system->create_vm());
    ASSERT_TRUE(vm_->set_reserved_pages(layout::kvm_reserved));
    ASSERT_TRUE(vm_->create_irqchip());
    ASSERT_TRUE(vm_->enable(KVM_CAP_X86_USER_SPACE_MSR, {KVM_MSR_EXIT_REASON_FILTER}));
    ASSERT_TRUE(memory_->attach(*vm_));
    vcpu_.emplace(*vm_->create_vcpu(0));
    ASSERT_TRUE(vcpu_->set_cpuid(*system->supported_cpuid()));
    ASSERT_TRUE(write_cpu_tables(*memory_));
  }

  void load(const std::vector<std::uint8_t>& code) {
    ASSERT_TRUE(memory_->write(code_at, std::as_bytes(std::span{code})));
    ASSERT_TRUE(enter_at(*vcpu_, {.rip = code_at, .rsp = layout::stack_top.value()}));
  }

  /// Runs to the next exit that no signal caused.
  Exit run() {
    for (;;) {
      auto exit = vcpu_->run();
      if (!exit) {
        ADD_FAILURE() << describe(exit.error());
        return Unknown{0};
      }
      if (!std::holds_alternative<Interrupted>(*exit)) {
        return *exit;
      }
    }
  }
  std::uint64_t rip() { return vcpu_->regs()->rip; }
  std::uint64_t rax() { return vcpu_->regs()->rax; }

  std::optional<GuestMemory> memory_;
  std::optional<Vm> vm_;
  std::optional<Vcpu> vcpu_;
};

}  // namespace vmm::test
