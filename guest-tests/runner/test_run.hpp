#pragma once
#include <chrono>
#include <string>
#include <string_view>

#include "sources/source_options.hpp"
#include "support/result.hpp"
#include "test_kernel.hpp"
#include "test_result.hpp"
#include "vcpu/guest_clock.hpp"

namespace gt_runner {

/// Where and how tests run.
struct RunOptions {
  std::string model{"skylake"};
  std::string source{"clock"};
  unsigned threads_per_core{2};                  ///< See MachineConfig.
  bool soft{};                                   ///< Without KVM, by the instruction engine: deterministic.
  std::chrono::milliseconds time_limit{20'000};  ///< For one test with KVM.
  std::uint64_t tick_limit{500'000'000};         ///< For one test without KVM, in instructions.
  vmm::PmuTime pmu_time{vmm::PmuTime::hidden};   ///< See MachineConfig.
  vmm::SourceOptions source_options{};           ///< See MachineConfig.
  std::string kvm_device{"/dev/kvm"};            ///< See MachineConfig.
  bool statistics{};                             ///< Adds the machine's counters to the test's log.
  bool lengthy{};                                ///< Tests that repeat something do it in full.
};

enum class Port : std::uint8_t { kvm, soft };
/// Why a test cannot run with a source on a port, in this time; empty if it can.
std::string unmet_need(const Test& test, std::string_view source, Port port, vmm::TimeModel time = {});

/// Runs one test in a fresh machine with the vCPUs that it needs. The result says what the guest did; the call itself
/// fails only when the host does, or when the options name something that does not exist.
vmm::Result<TestResult> run_test(const TestKernel& kernel, const Test& test, const RunOptions& options);

}  // namespace gt_runner
