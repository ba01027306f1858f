#include "test_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>

#include "conversation.hpp"
#include "gt/protocol.hpp"
#include "machine/machine.hpp"
#include "pmu/registry.hpp"

namespace gt_runner {
namespace {

using Clock = std::chrono::steady_clock;

/// Wakes the thread that waits for a machine to stop.
class Bell {
 public:
  void ring() {
    const std::scoped_lock lock{mutex_};
    rung_ = true;
    changed_.notify_all();
  }
  /// False if the machine has not stopped within `limit`.
  bool wait(std::chrono::milliseconds limit) {
    std::unique_lock lock{mutex_};
    return changed_.wait_for(lock, limit, [this] { return rung_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool rung_{};
};

std::string describe(vmm::StopReason reason) {
  switch (reason) {
    case vmm::StopReason::power_off: return "the guest powered itself off";
    case vmm::StopReason::reset: return "the guest reset itself";
    case vmm::StopReason::guest_panic: return "the guest panicked";
    case vmm::StopReason::guest_failed: return "the guest says that it failed";
    case vmm::StopReason::triple_fault: return "triple fault";
    case vmm::StopReason::time_limit:
    case vmm::StopReason::user: return "no end within the time limit";
    case vmm::StopReason::host_failure: return "the machine could not go on";
  }
  return "";
}

bool is_exact(std::string_view source) {
  const vmm::SourceRow* row = vmm::find_source(source);
  return row != nullptr && row->traits.exact_counts;
}

std::uint64_t boot_flags(const RunOptions& options) {
  return (is_exact(options.source) ? std::uint64_t{gt::boot_exact_counts} : 0) |
         (options.lengthy ? std::uint64_t{gt::boot_long} : 0);
}

vmm::MachineConfig config_for(const TestKernel& kernel, const Test& test, const RunOptions& options) {
  return {.kernel = kernel.path(),
          .memory_bytes = gt::ram_bytes,
          .cpus = (test.needs & gt::need_second_cpu) != 0 ? 2U : 1U,
          .threads_per_core = options.threads_per_core,
          .model = options.model,
          .source = options.source,
          .source_options = options.source_options,
          .accel = options.soft ? vmm::Accel::soft : vmm::Accel::kvm,
          .kvm_device = options.kvm_device,
          .pmu_time = options.pmu_time,
          .elf_arguments = {.rdi = test.index, .rsi = boot_flags(options)},
          .max_ticks = options.tick_limit};
}

/// Adds all counters except "vcpu.": how long kicks took depends on the host, and differs each time.
void add_statistics(const vmm::MachineStatistics& all, TestResult& result) {
  for (const vmm::VcpuStatistics& vcpu : all.vcpus)
    for (const vmm::Statistic& counter : vcpu.counters)
      if (counter.value != 0 && !counter.name.starts_with("vcpu."))
        result.log.push_back(fmt::format("{} {}", counter.name, counter.value));
}

/// Whether the host's KVM lacks what the test needs, as only a run can show.
bool lacks_need(const Test& test, const vmm::MachineStatistics& all) {
  if ((test.needs & gt::need_branch_steps) == 0) return false;
  return std::ranges::any_of(all.vcpus, [](const vmm::VcpuStatistics& vcpu) {
    return std::ranges::any_of(vcpu.counters, [](const vmm::Statistic& counter) {
      return counter.name == "pmu.msr.lost_btf" && counter.value != 0;
    });
  });
}

/// Makes the machine and the conversation with its guest, and runs them. Without KVM only the guest's time limits the
/// run.
vmm::Result<TestResult> run_machine(const vmm::MachineConfig& config, const Test& test, const RunOptions& options) {
  vmm::Log log;
  Bell bell;
  VMM_ASSIGN(const auto machine,
             vmm::Machine::create(config, {.console = {}, .stop_requested = [&bell] { bell.ring(); }}, log));
  Conversation conversation{machine->memory(), [&machine] { machine->request_stop(vmm::StopReason::user); }};
  machine->ports().add(gt::command_port, 1, conversation);
  machine->start();
  if (!options.soft && !bell.wait(options.time_limit)) machine->request_stop(vmm::StopReason::user);
  const vmm::StopReason stop = machine->wait();
  if (auto failure = machine->failure()) return vmm::Failure{std::move(*failure)};
  TestResult result = conversation.result();
  if (!conversation.ended()) result.reason = describe(stop);
  const vmm::MachineStatistics statistics = machine->statistics();
  if (lacks_need(test, statistics))
    result = {.verdict = Verdict::skipped, .reason = "needs branch steps, the host's KVM drops DEBUGCTL.BTF"};
  if (options.statistics) add_statistics(statistics, result);
  return result;
}

}  // namespace

std::string unmet_need(const Test& test, std::string_view source, Port port, vmm::TimeModel time) {
  if ((test.needs & gt::need_pipeline_time) != 0 && time != vmm::TimeModel::pipeline)
    return "needs the time of a pipeline";
  if ((test.needs & gt::need_instruction_time) != 0 && time == vmm::TimeModel::pipeline)
    return "needs an instruction to be a cycle";
  if ((test.needs & gt::need_second_cpu) != 0 && port == Port::soft) return "needs a second CPU, port 'soft' has none";
  if ((test.needs & gt::need_exact_counts) != 0 && !is_exact(source))
    return fmt::format("needs exact counts, source '{}' estimates", source);
  const vmm::SourceRow* const row = vmm::find_source(source);
  const bool time_only = row != nullptr && !row->traits.exact_counts && !row->traits.needs_host_pmu;
  if ((test.needs & gt::need_all_events) != 0 && time_only)
    return fmt::format("needs all events, source '{}' counts time only", source);
  if ((test.needs & gt::need_records) != 0 && row == nullptr)
    return fmt::format("needs PEBS, source '{}' has KVM's own PMU", source);
  if ((test.needs & gt::need_uncore) != 0 && row == nullptr)
    return fmt::format("needs an uncore, source '{}' has KVM's own PMU", source);
  if ((test.needs & gt::need_hit_levels) != 0 && (row == nullptr || !row->traits.latency))
    return fmt::format("needs hit levels, source '{}' has none", source);
  if ((test.needs & gt::need_modelled_levels) != 0 &&
      (row == nullptr || !row->traits.latency || row->traits.needs_host_pmu))
    return fmt::format("needs hit levels of one model, source '{}' has none, or the host's", source);
  return {};
}

vmm::Result<TestResult> run_test(const TestKernel& kernel, const Test& test, const RunOptions& options) {
  if (std::string reason =
          unmet_need(test, options.source, options.soft ? Port::soft : Port::kvm, options.source_options.time);
      !reason.empty())
    return TestResult{.name = test.name, .verdict = Verdict::skipped, .reason = std::move(reason)};
  const auto begin = Clock::now();
  VMM_ASSIGN(TestResult result, run_machine(config_for(kernel, test, options), test, options));
  result.name = test.name;
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return result;
}

}  // namespace gt_runner
